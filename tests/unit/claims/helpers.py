"""Builders for claims, GPUs and a state on real files, and an API server stand-in that is only a dict."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from driver.cdi.spec import ContainerEdits
from driver.cdi.store import CdiStore
from driver.claims.allocation import ClaimRef
from driver.claims.cdi_files import ClaimCdi
from driver.claims.state import ClaimState
from driver.claims.store import RecordStore
from driver.errors import ApiNotFoundError, DeviceNotReadyError
from driver.model.device import Gpu, MigDevice, MigPartition
from driver.model.mig import MigInstance, MigState, Placement
from driver.model.snapshot import Snapshot
from driver.sharing.base import client_edits
from tests.unit.cdi.gpus import PROFILE_1G as PROFILE

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from driver.model.device import Device

NODE = "node-a"


def uid(number: int) -> str:
    return f"{number:08x}-0000-4000-8000-000000000000"


def ref(number: int) -> ClaimRef:
    return ClaimRef(namespace="default", name=f"claim-{number}", uid=uid(number))


def result(device: str, request: str = "gpus", **further: Any) -> dict[str, Any]:
    return {"driver": "gpu.nvidia.com", "request": request, "pool": NODE, "device": device, **further}


def claim(number: int, *results: dict[str, Any], config: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    devices: dict[str, Any] = {"results": list(results)}
    if config is not None:
        devices["config"] = config
    return {
        "metadata": {"namespace": "default", "name": f"claim-{number}", "uid": uid(number)},
        "status": {"allocation": {"devices": devices}},
    }


def gpus(count: int) -> tuple[Gpu, ...]:
    return tuple(Gpu(uuid=f"GPU-{minor}", index=minor, minor=minor) for minor in range(count))


def mig_gpu(minor: int, starts: tuple[int, ...]) -> Gpu:
    instances = tuple(
        MigInstance(
            uuid=f"MIG-{minor}-{start}",
            gpu_instance_id=start + 7,
            compute_instance_id=0,
            profile=PROFILE,
            placement=Placement(start, 1),
            compute_slices=1,
        )
        for start in starts
    )
    mig = MigState(
        enabled=True, pending=True, switches_at_once=True, memory_slices=8, profiles=(PROFILE,), instances=instances
    )
    return Gpu(uuid=f"GPU-{minor}", index=minor, minor=minor, mig=mig)


class EnvEdits:
    """The simplest edits: one variable per device. `missing` names devices whose nodes are not there."""

    def __init__(self) -> None:
        self.missing: set[str] = set()
        self.version = "1"

    def common(self) -> ContainerEdits:
        return ContainerEdits(env={"DRIVER": self.version})

    def device(self, device: Device) -> ContainerEdits:
        if device.name in self.missing:
            raise DeviceNotReadyError(f"device {device.name}: /dev/nvidia{device.gpu.minor} is missing")
        if isinstance(device, MigPartition):
            raise DeviceNotReadyError(f"{device.name}: the MIG device was not made yet")
        identity = device.instance.uuid if isinstance(device, MigDevice) else device.gpu.uuid
        return ContainerEdits(env={f"GPU_{device.name}".replace("-", "_").upper(): identity})


class Claims:
    """What the API server holds; `errors` are raised one by one before it answers."""

    def __init__(self) -> None:
        self.objects: dict[str, dict[str, Any]] = {}
        self.errors: list[Exception] = []
        self.gets = 0
        self.on_get: Callable[[], None] = lambda: None

    def add(self, obj: dict[str, Any]) -> None:
        self.objects[obj["metadata"]["name"]] = obj

    async def claim(self, namespace: str, name: str) -> dict[str, Any]:
        self.gets += 1
        self.on_get()
        if self.errors:
            raise self.errors.pop(0)
        if name not in self.objects:
            raise ApiNotFoundError(f'resourceclaims "{name}" not found', status=404, reason="NotFound")
        return self.objects[name]


class Node:
    """A node's disk, with as many driver instances on it as a test wants."""

    def __init__(self, root: Path, *, count: int = 4, boot_id: str = "boot-1") -> None:
        self.root = root
        self.cdi = CdiStore(root / "cdi")
        self.edits = EnvEdits()
        self.snapshot = Snapshot(gpus=gpus(count))
        self.boot_id = boot_id
        self.quarantined: list[str] = []

    @property
    def claims_dir(self) -> Path:
        return self.root / "claims"

    def state(self) -> ClaimState:
        store = RecordStore(self.claims_dir, on_quarantine=lambda entry: self.quarantined.append(entry.uid))
        state = ClaimState(
            store=store,
            cdi=ClaimCdi(self.cdi, self.edits, lambda: self.snapshot, lambda daemon: client_edits(daemon.id, "shm")),
            snapshot=lambda: self.snapshot,
            node=NODE,
            pool=NODE,
            boot_id=self.boot_id,
        )
        state.recover()
        return state

    def leftovers(self) -> list[str]:
        """Names of all state files but the lock and what is kept on purpose."""
        kept = {"lock", "boot"}
        found = [path for path in self.claims_dir.rglob("*") if path.is_file() and path.name not in kept]
        found = [path for path in found if not path.name.endswith(".settled") and path.parent.name != "spare"]
        return sorted(path.name for path in found) + sorted(self.cdi.claim_uids())
