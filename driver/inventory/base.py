"""The lowest seam: what answers for the node's GPUs. NVML on a real node, a fake elsewhere; nothing above can tell."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from driver.model.snapshot import DriverVersions, Problem

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from driver.model.device import Gpu
    from driver.model.health_facts import HealthReport
    from driver.model.mig import MigInstance, MigState, Placement
    from driver.model.usage import GpuUsage

WHOLE_GPU = 0xFFFFFFFF
"""NVML's GPU and compute instance id of an event that concerns the whole GPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One observation of all GPUs, in NVML's order.

    A GPU that failed to answer is missing from `gpus` and named in `problems`: partial facts are never passed on (A11).
    """

    versions: DriverVersions = field(default_factory=DriverVersions)
    gpus: tuple[Gpu, ...] = ()
    problems: tuple[Problem, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Changed:
    """Something about the GPUs may have changed: read again."""

    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Xid:
    """The driver reported an XID error on a GPU; instance ids are None for the whole GPU."""

    gpu_uuid: str
    xid: int
    gpu_instance_id: int | None = None
    compute_instance_id: int | None = None


InventoryEvent = Changed | Xid


class Inventory(Protocol):
    """The node's GPUs. One instance per process; its calls may be made from one event loop only."""

    @property
    def fake(self) -> bool:
        """Whether the GPUs are made up, so that containers get environment variables instead of device nodes."""
        ...

    async def read(self) -> Reading:
        """Observe all GPUs now.

        :raises InventoryError: nothing can be said about any GPU (library missing, call timed out).
        """
        ...

    @property
    def monitored(self) -> frozenset[str] | None:
        """The UUIDs of the GPUs whose XIDs arrive; None while that is not known. The others are not bad (H4)."""
        ...

    async def health_facts(self) -> Mapping[str, HealthReport]:
        """Check the GPUs' health now, and return the reports by UUID; a GPU that does not answer has none.

        :raises InventoryError: as `read`.
        """
        ...

    async def usage(self) -> Mapping[str, GpuUsage]:
        """Look at what the GPUs and their MIG devices do now, by the GPU's UUID; one that does not answer is missing.

        :raises InventoryError: as `read`.
        """
        ...

    def events(self) -> AsyncIterator[InventoryEvent]:
        """Yield events until closed. A library that appears, changes or dies is a `Changed`."""
        ...

    async def aclose(self) -> None:
        """Release threads and handles."""
        ...


class Partitioner(Protocol):
    """Changes MIG on the node's GPUs; inventories implement it. Every call is safe to repeat.

    All raise `InventoryError` if NVML does not answer in time, `DeviceNotReadyError` for what may pass, `GpuLostError`
    if the GPU is not there (any more), and `MigError` for what else does not pass.
    """

    async def mig_state(self, gpu_uuid: str) -> MigState:
        """Observe the MIG mode and the instances of one GPU now, GPU instances without a compute instance included.

        :raises MigError: the GPU has no MIG.
        """
        ...

    async def set_mig_mode(self, gpu_uuid: str, enabled: bool) -> None:
        """Switch MIG mode at once; nothing to do if it is so already.

        :raises MigError: it would need a reset, or instances exist.
        :raises DeviceNotReadyError: processes use the GPU.
        """
        ...

    async def create_mig(self, gpu_uuid: str, profile_id: int, placement: Placement) -> MigInstance:
        """Make a GPU instance at exactly this placement and one compute instance that fills it.

        All or nothing: if the compute instance fails, the GPU instance is removed again (M1).

        :raises MigError: the placement is taken, MIG mode is off, or the profile is not offered there.
        """
        ...

    async def destroy_mig(self, gpu_uuid: str, placement: Placement) -> bool:
        """Remove the GPU instance at exactly this placement, its compute instances first; say whether there was one.

        A GPU instance without a compute instance is found, too (M1).

        :raises DeviceNotReadyError: processes use it.
        """
        ...


class NodeInventory(Inventory, Partitioner, Protocol):
    """All that the agent needs of a node's GPUs."""
