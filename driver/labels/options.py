"""What labels depend on besides the Snapshot, and who shares what. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING

from driver.config.device_plugin import PluginConfig
from driver.model.ownership import Owner

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from driver.config.device_plugin import NamePattern, Replicas
    from driver.labels.vgpu import HostDriver
    from driver.model.device import Gpu
    from driver.model.snapshot import Snapshot

COMPUTE, GRAPHICS, UNKNOWN_MODE = "compute", "graphics", "unknown"
UNKNOWN_MACHINE = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelOptions:
    """The device plugin's config, the machine's name, and `modes` by GPU UUID: what PCI says of a GPU's use.

    `host_driver` is the hypervisor's, where GPUs are virtual and tell.
    """

    config: PluginConfig = field(default_factory=PluginConfig)
    machine: str = UNKNOWN_MACHINE
    modes: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    host_driver: HostDriver | None = None


def is_parted(gpu: Gpu, snapshot: Snapshot) -> bool:
    """Say whether a GPU is in MIG mode, with devices that stay."""
    return gpu.mig is not None and gpu.mig.enabled and gpu.uuid not in snapshot.dynamic_mig


def is_plugins(gpu: Gpu, snapshot: Snapshot) -> bool:
    """Say whether the device-plugin API has a GPU, or is to have it."""
    return snapshot.ownership_of(gpu.uuid).wanted is Owner.DEVICE_PLUGIN


def is_mps(snapshot: Snapshot, config: PluginConfig) -> bool:
    """Say whether GPUs are shared by MPS, as the peer's label means it: it does not go with MIG."""
    if config.sharing.kind != "mps" or any(is_parted(gpu, snapshot) for gpu in snapshot.gpus):
        return False
    return any(is_plugins(gpu, snapshot) for gpu in snapshot.gpus)


def resource_of(word: str, patterns: Iterable[NamePattern], default: str, config: PluginConfig) -> str:
    """Return the resource as which the device-plugin API offers a product or MIG profile."""
    found = next((pattern.name for pattern in patterns if pattern.matches(word)), None)
    return found or f"{config.flags.resource_prefix}/{default}"


def sharing_of(resource: str, snapshot: Snapshot, config: PluginConfig) -> Replicas | None:
    """Return how a resource is shared on this node; not at all where the device-plugin API has no GPU."""
    if not any(is_plugins(gpu, snapshot) for gpu in snapshot.gpus):
        return None
    return next((one for one in config.sharing.resources if one.name == resource), None)
