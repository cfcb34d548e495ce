"""`gpu-dra inventory`: the node's GPUs, or fake ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from driver.cli import output, source
from driver.model.wording import counted

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

    from driver.inventory.base import Reading
    from driver.model.device import Gpu
    from driver.model.mig import MigInstance, MigProfile, MigState
    from driver.model.topology import NvLinkDomain

DESCRIPTION = "Show this node's GPUs as the driver sees them, or the fake ones that --gpus asks for."
EPILOG = """\
examples:
  gpu-dra inventory                                        the node's GPUs, by NVML
  gpu-dra inventory --driver-root /run/nvidia/driver       with the driver in a container
  gpu-dra inventory --gpus h100:8 --topology               fake ones, and how they are connected
  gpu-dra inventory --gpus h100@mig=1g.10gb*3 -o json      all facts, MIG devices included

fake GPUs: PRODUCT[:COUNT][@pairs|@nvswitch|@none][@mig[=PROFILE[:START][*N]+...]], separated by commas.
An unknown product's error names the known ones.
"""

_HEADER = ("NAME", "PRODUCT", "MEMORY", "CC", "PCI", "NUMA", "NVLINK", "MIG", "UUID")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    output.add_format(parser)
    parser.add_argument("--topology", action="store_true", help="show how the GPUs are connected, too")
    source.add_inventory_flags(parser)


def run(args: argparse.Namespace) -> int:
    """Print the GPUs."""
    from driver.model.topology import nvlink_domains

    settings, reading = source.read_gpus(args)
    domains = nvlink_domains(reading.gpus)
    if args.output == "table":
        _print_tables(reading, domains, topology=args.topology)
        return 0
    value = describe(reading, domains, node_name=settings.node_name, fake=settings.fake)
    if args.topology:
        value["topology"] = _topology(reading)
    output.print_value(args.output, value)
    return 0


def _print_tables(reading: Reading, domains: Mapping[str, NvLinkDomain], *, topology: bool) -> None:
    versions = reading.versions
    print(
        f"Driver {versions.driver or 'unknown'}, CUDA {versions.cuda or 'unknown'}, {counted(len(reading.gpus), 'GPU')}"
    )
    print()
    output.print_table(_HEADER, [_row(gpu, domains[gpu.uuid]) for gpu in reading.gpus])
    instances = [(gpu, one) for gpu in reading.gpus if gpu.mig for one in gpu.mig.instances]
    if instances:
        print()
        output.print_table(("MIG DEVICE", "GPU", "SLICES", "UUID"), [_mig_row(gpu, one) for gpu, one in instances])
    if topology:
        from driver.cli.topology import LEGEND, matrix

        print()
        names = [gpu.name for gpu in reading.gpus]
        rows = [[name, *cells] for name, cells in zip(names, matrix(reading.gpus), strict=True)]
        output.print_table(["", *names], rows)
        print(f"\n{LEGEND}")


def _row(gpu: Gpu, domain: NvLinkDomain) -> tuple[object, ...]:
    return (
        gpu.name,
        gpu.product,
        "" if gpu.memory is None else f"{gpu.memory >> 20} MiB",
        _capability(gpu),
        gpu.pci_bus_id,
        gpu.numa_node,
        f"{counted(gpu.nvlink.active_links, 'link')}, {counted(domain.size, 'GPU')}" if gpu.nvlink.active_links else "",
        _mig_word(gpu.mig),
        gpu.uuid,
    )


def _mig_word(mig: MigState | None) -> str:
    if mig is None:
        return ""
    mode = "on" if mig.enabled else "off"
    return mode if mig.enabled == mig.pending else f"{mode}, {'on' if mig.pending else 'off'} after reset"


def _mig_row(gpu: Gpu, one: MigInstance) -> tuple[object, ...]:
    last = one.placement.start + one.placement.size - 1
    slices = str(last) if one.placement.size == 1 else f"{one.placement.start}-{last}"
    return one.name, gpu.name, slices, one.uuid


def _capability(gpu: Gpu) -> str:
    return ".".join(map(str, gpu.compute_capability)) if gpu.compute_capability != (0, 0) else ""


def _topology(reading: Reading) -> dict[str, dict[str, str]]:
    from driver.cli.topology import matrix

    names = [gpu.name for gpu in reading.gpus]
    cells = matrix(reading.gpus)
    return {name: dict(zip(names, line, strict=True)) for name, line in zip(names, cells, strict=True)}


# --- JSON and YAML ---------------------------------------------------------------------------------------------------


def describe(reading: Reading, domains: Mapping[str, NvLinkDomain], *, node_name: str, fake: bool) -> dict[str, Any]:
    """Return all facts as JSON values; what is unknown is null."""
    names = {gpu.uuid: gpu.name for gpu in reading.gpus}
    return {
        "nodeName": node_name,
        "fake": fake,
        "driverVersion": reading.versions.driver or None,
        "cudaVersion": reading.versions.cuda or None,
        "gpus": [_describe_gpu(gpu, domains[gpu.uuid], names) for gpu in reading.gpus],
        "problems": [{"object": one.object, "message": one.message} for one in reading.problems],
    }


def _describe_gpu(gpu: Gpu, domain: NvLinkDomain, names: Mapping[str, str]) -> dict[str, Any]:
    fabric = gpu.fabric
    return {
        "name": gpu.name,
        "uuid": gpu.uuid,
        "index": gpu.index,
        "minor": gpu.minor,
        "productName": gpu.product,
        "brand": gpu.brand,
        "architecture": gpu.architecture,
        "cudaComputeCapability": _capability(gpu) or None,
        "memoryBytes": gpu.memory,
        "addressingMode": gpu.addressing_mode,
        "pciBusID": gpu.pci_bus_id,
        "pcieRoot": gpu.pcie_root,
        "numaNode": gpu.numa_node,
        "nvlink": {
            "activeLinks": gpu.nvlink.active_links,
            "switched": gpu.nvlink.switched,
            "peers": [{"name": names.get(uuid), "uuid": uuid, "links": n} for uuid, n in gpu.nvlink.peers],
            "domain": domain.id,
            "domainSize": domain.size,
        },
        "fabric": {"clusterUUID": fabric.cluster_uuid, "cliqueID": fabric.clique} if fabric else None,
        "mig": _describe_mig(gpu.mig) if gpu.mig else None,
    }


def _describe_mig(mig: MigState) -> dict[str, Any]:
    return {
        "enabled": mig.enabled,
        "pending": mig.pending,
        "switchesAtOnce": mig.switches_at_once,
        "memorySlices": mig.memory_slices,
        "profiles": [_describe_profile(one) for one in mig.profiles],
        "instances": [_describe_instance(one) for one in mig.instances],
    }


def _describe_profile(profile: MigProfile) -> dict[str, Any]:
    return {
        "name": profile.name,
        "id": profile.id,
        "computeSlices": profile.compute_slices,
        "maxInstances": profile.max_instances,
        "placements": [{"start": one.start, "size": one.size} for one in profile.placements],
        "memoryBytes": profile.memory,
        "multiprocessors": profile.multiprocessors,
        "copyEngines": profile.copy_engines,
        "decoders": profile.decoders,
        "encoders": profile.encoders,
        "jpegEngines": profile.jpeg_engines,
        "ofaEngines": profile.ofa_engines,
    }


def _describe_instance(one: MigInstance) -> dict[str, Any]:
    return {
        "uuid": one.uuid,
        "profile": one.name,
        "gpuInstanceID": one.gpu_instance_id,
        "computeInstanceID": one.compute_instance_id,
        "placement": {"start": one.placement.start, "size": one.placement.size},
    }
