"""Drives the fake NVML library: compiles it, installs copies, writes what it answers, switches faults on and off."""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from driver.inventory.fake_gpus import build_gpus
from driver.inventory.fake_spec import NodeSpec, parse_node
from driver.inventory.profiles import Wiring, load_products

if TYPE_CHECKING:
    from collections.abc import Iterator

    from driver.inventory.profiles import Product
    from driver.model.device import Gpu

SOURCES = Path(__file__).parent / "lib"
COMPILER = shutil.which("cc")
FLAGS = ("-std=c11", "-D_GNU_SOURCE", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-fvisibility=hidden")
SONAME = "libnvidia-ml.so.1"
NODE = "test-node"
WHOLE = 0xFFFFFFFF

_ARCHITECTURES = {"Turing": 6, "Ampere": 7, "Ada Lovelace": 8, "Hopper": 9, "Blackwell": 10}
_ADDRESSING = {"None": 0, "HMM": 1, "ATS": 2}
_STATES = {"not_started": 1, "in_progress": 2, "completed": 3}
_NVIDIA = 14
_TO_GPU, _TO_SWITCH = 0, 2


def compiled(without: tuple[str, ...] = ()) -> Path:
    """Compile the library once for all test processes; the functions `without` are missing from it."""
    assert COMPILER is not None
    renames = [f"-D{name}=absent_{name}" for name in without]
    digest = hashlib.sha256(repr((FLAGS, renames)).encode())
    files = sorted(SOURCES.glob("*.[ch]"))
    for file in files:
        digest.update(file.read_bytes())
    cache = Path(tempfile.gettempdir()) / f"gpu-dra-fake-nvml-{os.getuid()}"
    cache.mkdir(mode=0o700, exist_ok=True)
    library = cache / f"{digest.hexdigest()[:24]}.so"
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not library.exists():
            unfinished = library.with_suffix(".new")
            sources = [str(file) for file in files if file.suffix == ".c"]
            subprocess.run(
                [COMPILER, *FLAGS, f"-Wl,-soname,{SONAME}", *renames, "-o", str(unfinished), *sources], check=True
            )
            unfinished.rename(library)
    return library


class FakeNvml:
    """A driver root with the fake library in it, and a sysfs beside it, both below `directory`."""

    def __init__(self, directory: Path, libraries: str = "usr/lib/x86_64-linux-gnu") -> None:
        self.root = directory / "driver"
        self.sys = directory / "sys"
        self.library = self.root / libraries / SONAME
        self.config = Path(f"{self.library}.conf")
        self.node: NodeSpec | None = None
        self.gpus: tuple[Gpu, ...] = ()

    def install(self, gpus: str | None = None, without: tuple[str, ...] = ()) -> FakeNvml:
        """Put the library there in one step, as a package manager does; `gpus` as in `--gpus`."""
        self.library.parent.mkdir(parents=True, exist_ok=True)
        if gpus is not None:
            self.configure(gpus)
        unfinished = self.library.with_suffix(".new")
        shutil.copy(compiled(without), unfinished)
        unfinished.rename(self.library)
        return self

    def configure(self, gpus: str) -> None:
        """Write what the library answers from its next initialisation on, and the sysfs that goes with it."""
        self.node = parse_node(gpus, load_products())
        self.gpus = build_gpus(self.node, NODE)
        self.write("\n".join(render(self.node, self.gpus)))
        for gpu in self.gpus:
            add_to_sysfs(self.sys, gpu)

    def write(self, config: str) -> None:
        """Write the configuration itself."""
        self.library.parent.mkdir(parents=True, exist_ok=True)
        self.config.write_text(config + "\n")

    def edit(self, old: str, new: str) -> None:
        """Change something in the configuration."""
        config = self.config.read_text()
        assert old in config
        self.write(config.replace(old, new))

    def share(self) -> FakeNvml:
        """Let all processes see one state of MIG, which outlives each of them (see lib/shared.c)."""
        Path(f"{self.library}.state").touch()
        return self

    def control(self, *lines: str) -> None:
        """Let exactly these faults apply from now on (see lib/control.c)."""
        file = Path(f"{self.library}.control")
        unfinished = file.with_suffix(".new")
        unfinished.write_text("".join(f"{line}\n" for line in lines))
        unfinished.rename(file)


def render(node: NodeSpec, gpus: tuple[Gpu, ...]) -> Iterator[str]:
    """Write a node's GPUs as the library's configuration."""
    products = [group.product for group in node.groups for _ in range(group.count)]
    wirings = [group.wiring for group in node.groups for _ in range(group.count)]
    major, minor = node.versions.cuda.split(".")
    yield f"driver {node.versions.driver}"
    yield f"cuda {int(major) * 1000 + int(minor) * 10}"
    buses = {gpu.uuid: nvml_bus(gpu) for gpu in gpus}
    for gpu, product, wiring in zip(gpus, products, wirings, strict=True):
        yield from _identity(gpu, product)
        yield from _links(gpu, product, wiring, buses)
        if product.fabric is not None:
            report = product.fabric
            yield f"fabric {_STATES[report.state]} {report.clique} {report.cluster_uuid.replace('-', '')}"
        yield from _mig(gpu)


def nvml_bus(gpu: Gpu) -> str:
    """Write a PCI address as NVML does."""
    return f"0000{gpu.pci_bus_id}".upper()


def _identity(gpu: Gpu, product: Product) -> Iterator[str]:
    assert product.brand == "Nvidia"
    yield f"gpu {gpu.uuid}"
    yield f"name {product.nvml_name}"
    yield f"minor {gpu.minor}"
    yield f"bus {nvml_bus(gpu)} {product.pci_device_id:x}"
    yield f"brand {_NVIDIA}"
    yield f"architecture {_ARCHITECTURES[product.architecture]}"
    yield f"capability {product.compute_capability[0]} {product.compute_capability[1]}"
    yield f"memory {product.memory}"
    yield f"addressing {_ADDRESSING[product.addressing_mode]}"


def _links(gpu: Gpu, product: Product, wiring: Wiring, buses: dict[str, str]) -> Iterator[str]:
    yield f"links {product.nvlinks}"
    if wiring is Wiring.NVSWITCH:
        yield from (f"link {number} 1 {_TO_SWITCH} 00000008:00:00.0" for number in range(product.nvlinks))
    number = 0
    for peer, links in gpu.nvlink.peers:
        for _ in range(links):
            yield f"link {number} 1 {_TO_GPU} {buses[peer]}"
            number += 1


def _mig(gpu: Gpu) -> Iterator[str]:
    mig = gpu.mig
    if mig is None:
        return
    yield f"mig {mig.enabled:d} {mig.pending:d} {mig.switches_at_once:d}"
    for one in mig.profiles:
        engines = f"{one.copy_engines} {one.decoders} {one.encoders} {one.jpeg_engines} {one.ofa_engines}"
        yield (
            f"profile {one.index} {one.id} {one.compute_slices} {one.max_instances} {one.memory >> 20}"
            f" {one.multiprocessors} {engines} {one.name}"
        )
        yield from (f"place {place.start} {place.size}" for place in one.placements)
    for instance in mig.instances:
        place = instance.placement
        yield (
            f"instance {instance.gpu_instance_id} {instance.profile.id} {place.start} {place.size}"
            f" {instance.compute_instance_id} 0 {instance.compute_slices} {instance.uuid}"
        )


def add_to_sysfs(sys: Path, gpu: Gpu) -> None:
    """Make the PCI device of a GPU as sysfs shows it, behind a bridge below its root."""
    device = sys / "devices" / str(gpu.pcie_root) / "0000:00:01.0" / str(gpu.pci_bus_id)
    device.mkdir(parents=True, exist_ok=True)
    (device / "numa_node").write_text(f"{gpu.numa_node}\n")
    link = sys / "bus/pci/devices" / str(gpu.pci_bus_id)
    link.parent.mkdir(parents=True, exist_ok=True)
    if not link.is_symlink():
        link.symlink_to(device)


async def threads_ended() -> None:
    """Let calls that hung come back: nvidia-ml-py is one for the process, and they would end the next test's NVML."""
    for thread in threading.enumerate():
        if thread.name.startswith("nvml"):
            await asyncio.to_thread(thread.join, 10)
            assert not thread.is_alive(), f"the thread {thread.name} does not end"
