"""Plan a prepare: which device each result means, and whether it may be given. Pure, deterministic, repeatable.

The plan is the last line of defence: the scheduler decides, but a device that another claim holds, that is on another
node, or that does not exist is refused here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from driver.claims.holding import Holding, holding_of
from driver.config.parameters import TimeSlicing
from driver.config.precedence import effective
from driver.errors import ClaimRefusedError, DeviceHeldError, DeviceNotReadyError
from driver.model import names
from driver.model.device import FullGpu

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from driver.claims.allocation import Allocation, Result
    from driver.model.device import Device
    from driver.model.snapshot import Snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedDevice:
    """A result with the device that it means on this node."""

    result: Result
    device: Device
    holding: Holding

    def cdi_name(self, claim_uid: str) -> str:
        """Name the device within the claim's CDI file."""
        return names.cdi_device(claim_uid, self.result.device, self.result.share_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What preparing a claim will do."""

    allocation: Allocation
    devices: tuple[PlannedDevice, ...]


def make_plan(
    allocation: Allocation, *, snapshot: Snapshot, pool: str, held: Mapping[str, Iterable[Holding]], node: str
) -> Plan:
    """Resolve and check every result; `held` is what the other claims (by UID) hold.

    :raises ClaimRefusedError: a result can't be prepared on this node, or a setting is refused.
    :raises InvalidValueError: parameters are malformed.
    :raises DeviceHeldError: another claim holds a device.
    """
    devices = tuple(_resolve(result, snapshot, pool, node) for result in allocation.results)
    _check_parameters(allocation, devices)
    _check_within(devices, allocation)
    for planned in devices:
        _check_free(planned.holding, held)
    return Plan(allocation=allocation, devices=devices)


def _resolve(result: Result, snapshot: Snapshot, pool: str, node: str) -> PlannedDevice:
    if result.pool != pool:
        raise ClaimRefusedError(
            f"device {result.device} is in pool {result.pool}, but this is node {node} with pool {pool}: "
            "the pod runs on a node that the claim is not allocated on; delete the pod"
        )
    device = snapshot.device(result.device)
    if snapshot.unavailable and not result.admin_access:
        raise DeviceNotReadyError(f"device {result.device} can't be checked now: {snapshot.unavailable}")
    if device is None:
        known = ", ".join(found.name for found in snapshot.devices()) or "none"
        raise ClaimRefusedError(
            f"device {result.device} does not exist on node {node} (there are: {known}): "
            "it left after the claim was allocated; delete the pod so that it is scheduled again"
        )
    health = snapshot.health_of(device.gpu.uuid)
    if not health.healthy and not result.admin_access:
        raise ClaimRefusedError(
            f"device {result.device} (GPU {device.gpu.uuid}) is unhealthy: {health.reason}; "
            "delete the pod so that it is scheduled elsewhere"
        )
    holding = holding_of(device, share_id=result.share_id, admin_access=result.admin_access)
    return PlannedDevice(result=result, device=device, holding=holding)


def _check_within(devices: tuple[PlannedDevice, ...], allocation: Allocation) -> None:
    for index, planned in enumerate(devices):
        for earlier in devices[:index]:
            if planned.holding.excludes(earlier.holding):
                raise ClaimRefusedError(
                    f"claim {allocation.claim} has {earlier.result.device} (request {earlier.result.request}) and "
                    f"{planned.result.device} (request {planned.result.request}), which can't be used at once"
                )


def _check_free(wanted: Holding, held: Mapping[str, Iterable[Holding]]) -> None:
    for uid, holdings in held.items():
        for other in holdings:
            if wanted.excludes(other):
                raise DeviceHeldError(wanted.device, other.device, uid)


def _check_parameters(allocation: Allocation, devices: tuple[PlannedDevice, ...]) -> None:
    kinds = {one.result.request: "gpu" if isinstance(one.device, FullGpu) else "mig" for one in devices}
    for request, config in effective(allocation.configs, kinds).items():
        if config.sharing is not None and config.sharing != TimeSlicing():  # on a MIG device it has no effect
            raise ClaimRefusedError(
                f"claim {allocation.claim} asks for sharing settings for request {request}: this driver does not "
                "change GPUs yet; remove `sharing` from the claim's and the class's parameters"
            )
