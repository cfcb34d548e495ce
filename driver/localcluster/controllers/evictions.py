"""Evicts pods from devices with a NoExecute taint that their claims do not tolerate (KEP-5055)."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from driver.localcluster import events
from driver.localcluster.apiserver.objects import Object, metadata, name_of, namespace_of
from driver.localcluster.controllers.controller import Controller, Key, is_finished, key_of
from driver.localcluster.scheduler import taints

if TYPE_CHECKING:
    from collections.abc import Iterable

    from driver.localcluster.apiserver.store import Store

_NAME = "device-taint-eviction-controller"
_Device = tuple[str, str, str]


class EvictionController(Controller):
    """The device taint eviction controller of one cluster."""

    def __init__(self, store: Store) -> None:
        watched = {"resourceslices": self._slice_changed, "resourceclaims": self._claim_changed}
        super().__init__(store, self._sync_key, watched)
        self._tainted: dict[str, dict[_Device, list[Object]]] = {}
        self._holders: dict[_Device, dict[Key, None]] = {}
        self._held: dict[Key, list[_Device]] = {}

    def _slice_changed(self, type_: str, obj: Object) -> None:
        self._tainted.pop(name_of(obj), None)
        tainted = {} if type_ == "DELETED" else _no_execute(obj["spec"])
        if tainted:
            self._tainted[name_of(obj)] = tainted
        for device in tainted:
            for key in self._holders.get(device, ()):
                self.add(key)

    def _claim_changed(self, type_: str, claim: Object) -> None:
        key = key_of("resourceclaims", claim)
        for device in self._held.pop(key, ()):
            self._holders.get(device, {}).pop(key, None)
        if type_ == "DELETED":
            return
        self._held[key] = [_device(result) for result in _results(claim)]
        for device in self._held[key]:
            self._holders.setdefault(device, {})[key] = None
        if self._tainted:
            self.add(key)

    def _sync_key(self, key: Key) -> None:
        claim = self._store.find(key[0], key[2], key[1])
        if claim is None:
            return
        waits = [wait for result in _results(claim) if (wait := self._wait(result)) is not None]
        if not waits:
            return
        if min(waits) > 0:
            self.add_later(key, min(waits))
            return
        for consumer in (claim.get("status") or {}).get("reservedFor") or ():
            self._evict(claim, consumer)

    def _wait(self, result: Object) -> float | None:
        """Return the seconds until a result's pods have to go, None if they may stay."""
        found = [tainted[_device(result)] for tainted in self._tainted.values() if _device(result) in tainted]
        waits = [
            _tolerated_for(raw, result.get("tolerations") or ()) for device_taints in found for raw in device_taints
        ]
        return min((wait for wait in waits if wait is not None), default=None)

    def _evict(self, claim: Object, consumer: Object) -> None:
        pod = self._store.find("pods", consumer["name"], namespace_of(claim))
        if pod is None or metadata(pod)["uid"] != consumer["uid"] or metadata(pod).get("deletionTimestamp"):
            return
        if is_finished(pod):
            return
        events.record(self._store, _NAME, pod, "DeviceTaintManagerEviction", "Marking for deletion")
        condition = {
            "type": "DisruptionTarget",
            "status": "True",
            "reason": "DeletionByDeviceTaintManager",
            "message": "Device Taint Manager: deleting due to NoExecute taint",
            "lastTransitionTime": self._store.now(),
        }
        conditions = [*((pod.get("status") or {}).get("conditions") or ()), condition]
        patch = {"status": {"conditions": conditions}}
        self._store.patch("pods", name_of(pod), patch, namespace_of(pod), subresource="status")
        self._store.delete("pods", name_of(pod), namespace_of(pod), uid=metadata(pod)["uid"])


def _no_execute(spec: Object) -> dict[_Device, list[Object]]:
    found: dict[_Device, list[Object]] = {}
    for device in spec.get("devices") or ():
        raw = [taint for taint in device.get("taints") or () if taint.get("effect") == "NoExecute"]
        if raw:
            found[spec["driver"], spec["pool"]["name"], device["name"]] = raw
    return found


def _tolerated_for(raw: Object, tolerations: Iterable[Object]) -> float | None:
    """Return for how many seconds more a taint is tolerated; None: for ever."""
    (taint,) = taints.read([raw])
    matching = [toleration for toleration in tolerations if taints.tolerates(toleration, taint)]
    limits = [
        toleration["tolerationSeconds"] for toleration in matching if toleration.get("tolerationSeconds") is not None
    ]
    if matching and not limits:
        return None
    return max(0.0, min(limits, default=0) - _age(raw))


def _age(raw: Object) -> float:
    added = raw.get("timeAdded")
    if not isinstance(added, str):
        return 0.0
    return (datetime.now(UTC) - datetime.fromisoformat(added)).total_seconds()


def _results(claim: Object) -> list[Any]:
    allocation = (claim.get("status") or {}).get("allocation") or {}
    return (allocation.get("devices") or {}).get("results") or []


def _device(result: Object) -> _Device:
    return result["driver"], result["pool"], result["device"]
