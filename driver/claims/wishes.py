"""Which effects the devices and the parameters of a claim call for. Pure.

Nothing that nobody asked for is set (M7). Admin access changes nothing and is refused settings (M9). Within one claim,
and between claims that share a GPU, wishes for one thing must agree.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, assert_never

from driver.claims.effect import ComputeMode, Effect, MigMode, MpsDaemon, Partition, TimeSlice
from driver.config.parameters import Mps
from driver.errors import ClaimRefusedError, DeviceHeldError
from driver.model.device import Device, FullGpu, MigDevice, MigPartition

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from driver.claims.allocation import ClaimRef
    from driver.claims.plan import PlannedDevice
    from driver.config.parameters import DeviceConfig, Sharing

DEFAULT, EXCLUSIVE = "DEFAULT", "EXCLUSIVE_PROCESS"
"""Compute modes, as `nvidia-smi -c` takes them."""

_ORDER = (MigMode, Partition, ComputeMode, TimeSlice, MpsDaemon)


def effects_of(
    claim: ClaimRef, devices: Sequence[PlannedDevice], configs: Mapping[str, DeviceConfig]
) -> tuple[Effect, ...]:
    """Return the effects in the order in which they are done; they are undone backwards.

    :raises ClaimRefusedError: a setting with admin access, or two wishes that exclude each other.
    """
    wanted: dict[tuple[str, ...], Effect] = {}
    for effect in (*_partitioning(devices), *_sharing(claim, devices, configs)):
        known = wanted.setdefault(effect.key, effect)
        if known.wish != effect.wish:
            raise ClaimRefusedError(
                f"claim {claim} wants two different settings of {_named(effect)}: {known.wish} and {effect.wish}; "
                "use separate claims, or the same parameters for all its requests"
            )
    return tuple(sorted(wanted.values(), key=lambda effect: _ORDER.index(type(effect))))


def check_agreement(
    mine: Iterable[Effect], others: Mapping[str, Iterable[Effect]], shared: Mapping[str, Iterable[str]]
) -> None:
    """Check wishes against those of other prepared claims, by UID; `shared` are the GPUs that each shares with us.

    :raises ClaimRefusedError: they differ; a GPU has one compute mode, one time slice and one MPS daemon.
    :raises DeviceHeldError: another claim has a partition of another profile at the very placement of ours.
    """
    mine = tuple(mine)
    _check_partitions(mine, others)
    wishes = {effect.key: effect.wish for effect in mine if not isinstance(effect, Partition)}
    for uid, effects in others.items():
        theirs = {effect.key: effect.wish for effect in effects if not isinstance(effect, Partition)}
        gpus = set(shared.get(uid, ()))
        for key in sorted(wishes.keys() | theirs.keys()):
            both = key in wishes and key in theirs
            concerns_shared_gpu = key[1] in gpus and key[0] != MigMode.__name__
            if (both or concerns_shared_gpu) and wishes.get(key) != theirs.get(key):
                raise ClaimRefusedError(
                    f"{key[0]} of {key[1]} is {theirs.get(key, 'unset')} for the prepared claim with uid {uid}, which "
                    f"shares the GPU; this claim wants {wishes.get(key, 'it unset')}: give both the same parameters"
                )


def _check_partitions(mine: Iterable[Effect], others: Mapping[str, Iterable[Effect]]) -> None:
    """Refuse another profile at one placement: 1g.10gb and 1g.10gb+me have the same ones (M5)."""
    wanted = {effect.key: effect for effect in mine if isinstance(effect, Partition)}
    for uid, effects in others.items():
        for theirs in effects:
            ours = wanted.get(theirs.key)
            if ours is not None and isinstance(theirs, Partition) and ours.wish != theirs.wish:
                raise DeviceHeldError(ours.device, theirs.device, uid)


def _partitioning(devices: Sequence[PlannedDevice]) -> Iterable[Effect]:
    for planned in devices:
        device = planned.device
        if planned.result.admin_access:
            continue
        if isinstance(device, MigPartition):
            yield MigMode(gpu=device.gpu.uuid, enabled=True)
            yield Partition(
                gpu=device.gpu.uuid, device=device.name, profile_id=device.profile.id, placement=device.placement
            )
        elif isinstance(device, FullGpu) and device.gpu.mig is not None and device.gpu.mig.enabled:
            yield MigMode(gpu=device.gpu.uuid, enabled=False)


def _sharing(
    claim: ClaimRef, devices: Sequence[PlannedDevice], configs: Mapping[str, DeviceConfig]
) -> Iterable[Effect]:
    clients: dict[str, list[tuple[PlannedDevice, Mps]]] = {}
    for planned in devices:
        config = configs.get(planned.result.request)
        sharing: Sharing | None = config.sharing if config else None
        if sharing is None:
            continue
        if planned.result.admin_access:
            raise ClaimRefusedError(
                f"claim {claim}: request {planned.result.request} has admin access, which sees a device as it is: "
                "sharing settings are not allowed with it; name the other requests in the config"
            )
        whole = isinstance(planned.device, FullGpu)
        if isinstance(sharing, Mps):
            if whole:
                yield ComputeMode(gpu=planned.device.gpu.uuid, mode=EXCLUSIVE)
            clients.setdefault(_daemon_id(claim, planned), []).append((planned, sharing))
        elif whole and sharing.interval is not None:
            yield ComputeMode(gpu=planned.device.gpu.uuid, mode=DEFAULT)
            yield TimeSlice(gpu=planned.device.gpu.uuid, level=sharing.interval.level)
    if len(clients) > 1:
        raise ClaimRefusedError(
            f"claim {claim} has shares of several GPUs under MPS, but a container reaches one MPS daemon: "
            "use a claim and a container for each GPU"
        )
    for daemon, members in clients.items():
        yield from _daemon(claim, daemon, members)


def _daemon_id(claim: ClaimRef, planned: PlannedDevice) -> str:
    """One daemon per claim; shares of one device, which belong to several claims, have one for the device."""
    return claim.uid if planned.result.share_id is None else planned.device.name


def _daemon(claim: ClaimRef, daemon: str, members: Sequence[tuple[PlannedDevice, Mps]]) -> Iterable[Effect]:
    """Return the daemon; for shares it has no limits of its own, as each share's limit is its container's."""
    settings = members[0][1]
    if any(other != settings for _, other in members):
        raise ClaimRefusedError(
            f"claim {claim} wants different MPS settings for its devices, but they have one control daemon: "
            "use separate claims, or one config without `requests`"
        )
    own = daemon == claim.uid
    _check_limits(claim, settings, [planned for planned, _ in members])
    uuids = {planned.device.name: _uuid(planned.device) for planned, _ in members}
    yield MpsDaemon(
        id=daemon,
        gpus=tuple(dict.fromkeys(planned.device.gpu.uuid for planned, _ in members)),
        devices=tuple(uuids),
        uuids=tuple(uuids.values()),
        settings=settings if own else Mps(multi_user=settings.multi_user),
    )


def _check_limits(claim: ClaimRef, settings: Mps, members: Sequence[PlannedDevice]) -> None:
    """Refuse limits for devices that the claim has not got: they would be ignored in silence."""
    known = {str(index) for index in range(len(members))} | {_uuid(planned.device) for planned in members}
    for key in settings.memory_limit_by_device:
        if key not in known:
            raise ClaimRefusedError(
                f"claim {claim}: defaultPerDevicePinnedMemoryLimit[{key}] is none of its {len(members)} devices: "
                f"use an index from 0 to {len(members) - 1}, or the UUID of a device that exists before the claim"
            )


def _uuid(device: Device) -> str:
    match device:
        case FullGpu():
            return device.gpu.uuid
        case MigDevice():
            return device.instance.uuid
        case MigPartition():
            return ""
        case _:
            assert_never(device)


def _named(effect: Effect) -> str:
    return f"{type(effect).__name__} of {effect.key[1]}"
