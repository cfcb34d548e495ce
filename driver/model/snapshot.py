"""The Snapshot: everything known about the node's GPUs at one moment. Made by the monitor alone; all others read it."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING

from driver.model.device import Device, FullGpu, Gpu, MigDevice, MigPartition
from driver.model.health import HEALTHY, Effect, Health
from driver.model.ownership import ALL_DRA, Owner, Ownership

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from driver.model.mig import MigState


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverVersions:
    """Raw version strings of the node's GPU driver; empty if unknown."""

    driver: str = ""  # 580.105.08
    cuda: str = ""  # 13.0


WHOLE_INVENTORY = "nvml"
"""The object of a problem that concerns the inventory as a whole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Something that could not be read. It costs the named object only, and it is told: log, Event, metric."""

    object: str  # gpu-3, GPU-…, nvml
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Immutable. `gpus` is sorted by identity; `health` (by UUID) holds those of which there is something to tell.

    `device_health` (by name) holds what concerns single MIG devices beyond their GPU: faults of their applications.
    `dynamic_mig` are the UUIDs of the GPUs that may be partitioned for claims, as the settings say. `ownership` (by
    UUID) holds the GPUs that are not simply DRA's.
    """

    versions: DriverVersions = field(default_factory=DriverVersions)
    gpus: tuple[Gpu, ...] = ()
    health: Mapping[str, Health] = field(default_factory=lambda: MappingProxyType({}))
    device_health: Mapping[str, Health] = field(default_factory=lambda: MappingProxyType({}))
    problems: tuple[Problem, ...] = ()
    dynamic_mig: frozenset[str] = frozenset()
    ownership: Mapping[str, Ownership] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def unavailable(self) -> str:
        """Why nothing can be said about any GPU now; empty if the inventory answers."""
        return next((problem.message for problem in self.problems if problem.object == WHOLE_INVENTORY), "")

    @property
    def has_notices(self) -> bool:
        """Whether some device has a taint without effect."""
        verdicts = (*self.health.values(), *self.device_health.values())
        return any(taint.effect is Effect.NONE for one in verdicts for taint in one.taints)

    def health_of(self, gpu_uuid: str) -> Health:
        """Return the verdict on a GPU."""
        return self.health.get(gpu_uuid, HEALTHY)

    def health_of_device(self, device: Device) -> Health:
        """Return the verdict on a device: that on its GPU, and what concerns it alone."""
        return self.health_of(device.gpu.uuid).with_more(self.device_health.get(device.name, HEALTHY))

    def ownership_of(self, gpu_uuid: str) -> Ownership:
        """Return who has a GPU, and who shall have it."""
        return self.ownership.get(gpu_uuid, ALL_DRA)

    def devices(self) -> tuple[Device, ...]:
        """Return what DRA may hand out, in stable order: by GPU; of one GPU the whole, then by placement.

        Where MIG mode is on, the whole GPU can't run CUDA and is not offered; its MIG devices are. A GPU that is
        partitioned for claims offers every partition at every placement, and itself where MIG mode can be switched
        at once; what exists on it at the moment makes no difference.
        """
        offered = (gpu for gpu in self.gpus if self.ownership_of(gpu.uuid).offers(Owner.DRA))
        return tuple(device for gpu in offered for device in self._devices_of(gpu))

    def device(self, name: str) -> Device | None:
        """Find a device by name, whoever may offer it now."""
        # Names of parts begin with the GPU's: of a partitioned node, look at one GPU only.
        near = (gpu for gpu in self.gpus if name == gpu.name or name.startswith(f"{gpu.name}-"))
        return next((device for gpu in near for device in self._devices_of(gpu) if device.name == name), None)

    def _devices_of(self, gpu: Gpu) -> Iterator[Device]:
        if gpu.uuid in self.dynamic_mig and gpu.mig is not None:
            yield from _dynamic_devices(gpu, gpu.mig)
        elif gpu.mig is None or not gpu.mig.enabled:
            yield FullGpu(gpu=gpu)
        else:
            ordered = sorted(gpu.mig.instances, key=lambda one: (one.placement, one.compute_instance_id))
            yield from (MigDevice(gpu=gpu, instance=instance) for instance in ordered)


def _dynamic_devices(gpu: Gpu, mig: MigState) -> Iterator[Device]:
    if mig.switches_at_once or not mig.enabled:
        yield FullGpu(gpu=gpu)
    if mig.switches_at_once or mig.enabled:
        places = [(placement, profile) for profile in mig.profiles for placement in profile.placements]
        for placement, profile in sorted(places, key=lambda place: (place[0].start, -place[0].size, place[1].id)):
            yield MigPartition(gpu=gpu, profile=profile, placement=placement)
