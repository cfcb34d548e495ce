"""Devices: what the node has, and what may be handed out.

`Gpu` holds facts as observed. What can be allocated is a closed union, `Device`: a full GPU, a MIG partition that could
be made (plan), or a MIG device that exists (fact).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from driver.model import names

if TYPE_CHECKING:
    from driver.model.mig import MigInstance, MigProfile, MigState, Placement

UNKNOWN = "Unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class NvLink:
    """NVLink as one GPU sees it."""

    active_links: int = 0
    peers: tuple[tuple[str, int], ...] = ()  # (UUID of a GPU on this node, links to it), sorted
    switched: bool = False  # some link ends at an NVSwitch: every GPU on the switches is reachable


@dataclass(frozen=True, slots=True, kw_only=True)
class Fabric:
    """Membership in a multi-node NVLink fabric. A zero cluster UUID is no fabric and is never stored here (A16)."""

    cluster_uuid: str
    clique: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """A physical GPU as last observed: facts only. `None` is 'the hardware or driver can't tell'; memory in bytes."""

    uuid: str
    index: int
    minor: int | None = None
    product: str = UNKNOWN
    brand: str = UNKNOWN
    architecture: str = UNKNOWN
    compute_capability: tuple[int, int] = (0, 0)
    memory: int | None = None
    addressing_mode: str = UNKNOWN
    pci_bus_id: str | None = None
    pcie_root: str | None = None
    numa_node: int | None = None
    nvlink: NvLink = field(default_factory=NvLink)
    fabric: Fabric | None = None
    mig: MigState | None = None  # None: not MIG-capable

    @property
    def name(self) -> str:
        """The device name of the whole GPU, stable while the node runs."""
        return names.gpu_name(self.minor, self.uuid)

    @property
    def rank(self) -> tuple[bool, int, str]:
        """Its place among the node's GPUs: by minor number, then UUID."""
        return self.minor is None, self.minor or 0, self.uuid


@dataclass(frozen=True, slots=True, kw_only=True)
class FullGpu:
    """A whole GPU that can be allocated."""

    gpu: Gpu

    @property
    def name(self) -> str:
        """The device name, `gpu-<minor>`."""
        return self.gpu.name


@dataclass(frozen=True, slots=True, kw_only=True)
class MigPartition:
    """A MIG device that does not exist yet: a profile at a placement of a GPU."""

    gpu: Gpu
    profile: MigProfile
    placement: Placement

    @property
    def name(self) -> str:
        """The device name, the same as that of the MIG device made of it."""
        return names.mig_name(self.gpu.name, self.profile.name, self.profile.id, self.placement.start)

    @property
    def made(self) -> MigDevice | None:
        """The MIG device that was made of it; None if there was none when the GPU was last seen."""
        instances = self.gpu.mig.instances if self.gpu.mig is not None else ()
        found = (MigDevice(gpu=self.gpu, instance=one) for one in instances if one.placement == self.placement)
        return next((device for device in found if device.name == self.name), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class MigDevice:
    """A MIG device that exists."""

    gpu: Gpu
    instance: MigInstance

    @property
    def name(self) -> str:
        """The device name; compute instances that share a GPU instance are told apart by their id."""
        instance = self.instance
        base = names.mig_name(self.gpu.name, instance.name, instance.profile.id, instance.placement.start)
        if instance.compute_slices == instance.profile.compute_slices:
            return base
        return f"{base}-{instance.compute_instance_id}"


Device = FullGpu | MigPartition | MigDevice
