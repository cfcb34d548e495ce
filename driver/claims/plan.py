"""Plan a prepare: which device each result means, and whether it may be given. Pure, deterministic, repeatable.

The plan is the last line of defence: the scheduler decides, but a device that another claim holds, that is on another
node, or that does not exist is refused here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from driver.claims.holding import Holding, holding_of
from driver.claims.toleration import hindrance
from driver.claims.wishes import effects_of
from driver.config.parameters import Mps
from driver.config.precedence import effective
from driver.errors import ClaimRefusedError, DeviceHeldError, DeviceNotReadyError
from driver.model import quantity
from driver.model.device import FullGpu, MigPartition
from driver.model.ownership import Owner

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from driver.claims.allocation import Allocation, Result
    from driver.claims.effect import Effect
    from driver.config.parameters import DeviceConfig
    from driver.model.device import Device
    from driver.model.snapshot import Snapshot

_SHOWN = 12  # device names in a message


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedDevice:
    """A result with the device that it means on this node."""

    result: Result
    device: Device
    holding: Holding
    memory_limit: int | None = None  # bytes; None: all of the device
    thread_percentage: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What preparing a claim will do."""

    allocation: Allocation
    devices: tuple[PlannedDevice, ...]
    effects: tuple[Effect, ...]


def make_plan(
    allocation: Allocation,
    *,
    snapshot: Snapshot,
    pool: str,
    held: Mapping[str, Iterable[Holding]],
    node: str,
    made: Mapping[str, str] = MappingProxyType({}),
) -> Plan:
    """Resolve and check every result; `held` is what the other claims (by UID) hold.

    `made` has the UUIDs of the MIG devices that other claims have made, by the partition's name.

    :raises DeviceNotReadyError: what admin access asks for was made a moment ago, or the GPUs can't be asked now.
    :raises ClaimRefusedError: a result can't be prepared on this node, or a setting is refused.
    :raises InvalidValueError: parameters are malformed.
    :raises DeviceHeldError: another claim holds a device.
    """
    found = [_resolve(result, snapshot, pool, node) for result in allocation.results]
    for planned in found:
        _check_made(planned, made)
    kinds = {one.result.request: "gpu" if isinstance(one.device, FullGpu) else "mig" for one in found}
    shared = {one.result.request for one in found if one.result.share_id is not None}
    configs = effective(allocation.configs, kinds, shared)
    devices = tuple(_with_threads(one, configs.get(one.result.request)) for one in found)
    _check_within(devices, allocation)
    for planned in devices:
        _check_free(planned.holding, held)
    return Plan(allocation=allocation, devices=devices, effects=effects_of(allocation.claim, devices, configs))


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
        known = _known(snapshot)
        raise ClaimRefusedError(
            f"device {result.device} does not exist on node {node} (there are: {known}): "
            "it left after the claim was allocated; delete the pod so that it is scheduled again"
        )
    _check_owner(device, result, snapshot)
    why = hindrance(snapshot.health_of_device(device), result.tolerations)
    if why and not result.admin_access:
        raise ClaimRefusedError(
            f"device {result.device} (GPU {device.gpu.uuid}) is unhealthy: {why}; "
            "delete the pod so that it is scheduled elsewhere"
        )
    holding = holding_of(device, share_id=result.share_id, admin_access=result.admin_access)
    return PlannedDevice(result=result, device=device, holding=holding, memory_limit=_share_memory(result))


def _check_made(planned: PlannedDevice, made: Mapping[str, str]) -> None:
    """Let admin access see only a partition that another claim holds: what was seen of it lags behind the records."""
    device, result = planned.device, planned.result
    if not (isinstance(device, MigPartition) and result.admin_access):
        return
    uuid = made.get(device.name)
    if uuid is None:
        raise ClaimRefusedError(
            f"device {result.device} (request {result.request}) is a partition that nobody uses now, and admin access "
            "makes none: ask for the whole GPU with admin access instead"
        )
    if device.made is None or device.made.instance.uuid != uuid:
        raise DeviceNotReadyError(f"device {result.device} was made a moment ago, and was not looked at since")


def _check_owner(device: Device, result: Result, snapshot: Snapshot) -> None:
    """Refuse a GPU that is not DRA's now (K6); one that DRA is about to leave may still be prepared."""
    ownership = snapshot.ownership_of(device.gpu.uuid)
    if ownership.owner is not Owner.DRA and not result.admin_access:
        raise ClaimRefusedError(
            f"device {result.device} (GPU {device.gpu.uuid}) is not offered through DRA on this node: its owner is "
            f"{ownership.owner}, as the setting `ownership` says; delete the pod so that it is scheduled again"
        )


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


def _share_memory(result: Result) -> int | None:
    """Return the bytes that a share was given. None: it may use all; where memory is not what is shared, that is 0."""
    amount = result.consumed_capacity.get("memory")
    if amount is None or result.share_id is None:
        return None
    return quantity.parse_bytes(amount, "consumedCapacity.memory") or None


def _with_threads(planned: PlannedDevice, config: DeviceConfig | None) -> PlannedDevice:
    sharing = config.sharing if config is not None else None
    return replace(planned, thread_percentage=sharing.active_thread_percentage) if isinstance(sharing, Mps) else planned


def _known(snapshot: Snapshot) -> str:
    found = [device.name for device in snapshot.devices()]
    more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    return f"{', '.join(found[:_SHOWN]) or 'none'}{more}"
