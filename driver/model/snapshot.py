"""The Snapshot: everything known about the node's GPUs at one moment. Made by the monitor alone; all others read it."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING

from driver.model.device import Device, FullGpu, Gpu, MigDevice
from driver.model.health import HEALTHY, Health

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


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
    """Immutable. `gpus` is sorted by identity; `health` (by UUID) holds the unhealthy ones only."""

    versions: DriverVersions = field(default_factory=DriverVersions)
    gpus: tuple[Gpu, ...] = ()
    health: Mapping[str, Health] = field(default_factory=lambda: MappingProxyType({}))
    problems: tuple[Problem, ...] = ()

    @property
    def unavailable(self) -> str:
        """Why nothing can be said about any GPU now; empty if the inventory answers."""
        return next((problem.message for problem in self.problems if problem.object == WHOLE_INVENTORY), "")

    def health_of(self, gpu_uuid: str) -> Health:
        """Return the verdict on a GPU."""
        return self.health.get(gpu_uuid, HEALTHY)

    def devices(self) -> tuple[Device, ...]:
        """Return what may be handed out, in stable order: by GPU, then by placement.

        Where MIG mode is on, the whole GPU can't run CUDA and is not offered; its MIG devices are.
        """
        return tuple(device for gpu in self.gpus for device in _devices_of(gpu))

    def device(self, name: str) -> Device | None:
        """Find a device by name."""
        return next((device for device in self.devices() if device.name == name), None)


def _devices_of(gpu: Gpu) -> Iterator[Device]:
    if gpu.mig is None or not gpu.mig.enabled:
        yield FullGpu(gpu=gpu)
        return
    ordered = sorted(gpu.mig.instances, key=lambda one: (one.placement, one.compute_instance_id))
    for instance in ordered:
        yield MigDevice(gpu=gpu, instance=instance)
