"""What a claim's status says about its devices (`status.devices`, `AllocatedDeviceStatus` of resource.k8s.io). Pure.

One entry per allocated device, under the keys of its allocation, with two conditions: `Ready`, it is prepared on its
node; `Healthy`, its GPU may be used; and a third, `Withdrawn`, while its GPU is to leave DRA and the claim is what that
waits for. The data is for people and for programs that want to know what they got.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from driver.claims.effect import MpsDaemon
from driver.model import names
from driver.model.device import MigDevice, MigPartition
from driver.model.ownership import ALL_DRA, Owner
from driver.model.quantity import binary_si

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from driver.claims.record import Record, RecordedDevice
    from driver.model.device import Device
    from driver.model.json_object import JsonObject
    from driver.model.snapshot import Snapshot

MAX_DATA: Final = 10 * 1024
"""Bytes of an entry's data (`AllocatedDeviceStatusDataMaxLength`)."""

_KEYS = ("driver", "pool", "device", "shareID")


def device_statuses(record: Record, snapshot: Snapshot, known: Iterable[JsonObject], now: str) -> list[JsonObject]:
    """Return the entries of a prepared claim's devices, in the record's order.

    `known` are the entries so far: a condition that stays as it was keeps its time. `now` is an RFC 3339 time.
    """
    before = {key_of(entry): entry for entry in known}
    return [_entry(record, device, snapshot, before, now) for device in record.devices]


def key_of(entry: Mapping[str, Any]) -> tuple[str, ...]:
    """Return what tells an entry from others."""
    return tuple(str(entry.get(key) or "") for key in _KEYS)


def own_entries(claim: Mapping[str, Any]) -> list[JsonObject]:
    """Return this driver's entries of a claim as the API server has it; what is no entry is passed over."""
    status = claim.get("status")
    found = status.get("devices") if isinstance(status, dict) else None
    entries = found if isinstance(found, list) else []
    return [one for one in entries if isinstance(one, dict) and one.get("driver") == names.DRIVER]


def _entry(
    record: Record,
    device: RecordedDevice,
    snapshot: Snapshot,
    before: Mapping[tuple[str, ...], JsonObject],
    now: str,
) -> JsonObject:
    holding = device.holding
    entry: JsonObject = {"driver": names.DRIVER, "pool": device.pool, "device": holding.device}
    if holding.share_id:
        entry["shareID"] = holding.share_id
    current = snapshot.device(holding.device)
    if current is not None and current.gpu.uuid != holding.gpu_uuid:
        current = None  # another GPU has the name now
    times = _times(before.get(key_of(entry), {}))
    found = (_condition("Ready", "True", "Prepared"), _health(current, snapshot), *_withdrawn(current, snapshot))
    entry["conditions"] = [_timed(one, times, now) for one in found]
    entry["data"] = _fitting(_data(record, device, current))
    return entry


def _condition(kind: str, status: str, reason: str, message: str = "") -> JsonObject:
    return {"type": kind, "status": status, "reason": reason, "message": message}


def _health(device: Device | None, snapshot: Snapshot) -> JsonObject:
    if device is None:
        return _condition("Healthy", "Unknown", "NotFound", "the node's driver does not know this device any more")
    health = snapshot.health_of_device(device)
    if health.healthy:
        return _condition("Healthy", "True", "Healthy", health.reason)
    return _condition("Healthy", "False", "Unhealthy", health.reason)


def _withdrawn(device: Device | None, snapshot: Snapshot) -> Iterator[JsonObject]:
    ownership = snapshot.ownership_of(device.gpu.uuid) if device is not None else ALL_DRA
    if ownership.wanted is not Owner.DRA:
        message = f"its GPU is to be {ownership.wanted}'s as soon as no claim holds it"
        yield _condition("Withdrawn", "True", "OwnerChanges", message)


def _times(entry: Mapping[str, Any]) -> dict[tuple[str, str], str]:
    """Return when each condition of an entry began to be as it is, by type and status."""
    conditions = entry.get("conditions")
    return {
        (str(one.get("type")), str(one.get("status"))): one["lastTransitionTime"]
        for one in (conditions if isinstance(conditions, list) else [])
        if isinstance(one, dict) and isinstance(one.get("lastTransitionTime"), str)
    }


def _timed(condition: JsonObject, times: Mapping[tuple[str, str], str], now: str) -> JsonObject:
    return {**condition, "lastTransitionTime": times.get((condition["type"], condition["status"]), now)}


def _data(record: Record, device: RecordedDevice, current: Device | None) -> JsonObject:
    holding = device.holding
    placement = holding.placement
    made = record.partition(holding.device)
    uuid = holding.gpu_uuid if placement is None else made.uuid if made is not None else ""
    if isinstance(current, MigDevice):
        uuid = uuid or current.instance.uuid
    data: JsonObject = {"kind": device.kind, "uuid": uuid}
    if current is not None:
        data |= {"productName": current.gpu.product, "pciBusID": current.gpu.pci_bus_id}
    if placement is not None:
        data |= {
            "parentUUID": holding.gpu_uuid,
            "profile": _profile(current),
            "placement": {"start": placement.start, "size": placement.size},
        }
    return {key: value for key, value in {**data, **_sharing(record, device)}.items() if value not in (None, "")}


def _profile(device: Device | None) -> str:
    if isinstance(device, MigPartition):
        return device.profile.name
    return device.instance.name if isinstance(device, MigDevice) else ""


def _sharing(record: Record, device: RecordedDevice) -> JsonObject:
    mps = any(isinstance(effect, MpsDaemon) for effect in record.effects)
    return {
        "share": device.holding.share_id,
        "adminAccess": device.holding.admin_access or None,
        "mps": mps or None,
        "memoryLimit": binary_si(device.memory_limit) if device.memory_limit is not None else None,
        "threadPercentage": device.thread_percentage,
    }


def _fitting(data: JsonObject) -> JsonObject:
    """Leave out what would make the data too long for the API server; the identity comes first."""
    kept: JsonObject = {}
    for key, value in data.items():
        if _size({**kept, key: value}) <= MAX_DATA:
            kept[key] = value
    return kept


def _size(data: Mapping[str, Any]) -> int:
    return len(json.dumps(data, separators=(",", ":")).encode())


def same_entries(one: Sequence[JsonObject], other: Sequence[JsonObject]) -> bool:
    """Say whether two lists of entries tell the same, in any order."""
    return {key_of(entry): entry for entry in one} == {key_of(entry): entry for entry in other}
