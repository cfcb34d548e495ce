"""Who holds what: the part of a device that one prepared claim has, and when two of them exclude each other. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, assert_never

from driver.model.device import Device, FullGpu, MigDevice, MigPartition

if TYPE_CHECKING:
    from driver.model.mig import Placement


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """A claim's hold on one device. `placement` is None for the whole GPU."""

    device: str
    gpu_uuid: str
    placement: Placement | None = None
    share_id: str | None = None
    admin_access: bool = False

    def excludes(self, other: Holding) -> bool:
        """Say whether both can't be held at once (S11).

        Admin access never excludes nor is excluded; neither do two different shares of one device, nor two MIG
        devices at disjoint placements.
        """
        if self.admin_access or other.admin_access:
            return False
        if self.device == other.device:
            return self.share_id is None or other.share_id is None or self.share_id == other.share_id
        if self.gpu_uuid != other.gpu_uuid or not self.gpu_uuid:
            return False
        if self.placement is None or other.placement is None:
            return True
        # Compute instances that share one GPU instance have the same placement, and are separate devices.
        return self.placement != other.placement and self.placement.overlaps(other.placement)


def holding_of(device: Device, *, share_id: str | None = None, admin_access: bool = False) -> Holding:
    """Return what a claim holds once `device` is prepared for it."""
    placement: Placement | None
    match device:
        case FullGpu():
            placement = None
        case MigPartition():
            placement = device.placement
        case MigDevice():
            placement = device.instance.placement
        case _:
            assert_never(device)
    return Holding(
        device=device.name,
        gpu_uuid=device.gpu.uuid,
        placement=placement,
        share_id=share_id,
        admin_access=admin_access,
    )
