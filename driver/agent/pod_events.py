"""Events on the pods that hold a device whose health changed, so that their owners see it where they look.

Who holds a device is in the records; which pods those are, in the status of their claims. What could not be asked is
asked again, as long as it is still news. Who has one by the device-plugin API, the kubelet tells, but without UIDs:
`kubectl events` shows those pods' Events, `kubectl describe` does not.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Protocol

from driver.errors import ApiError, ApiNotFoundError, DriverError
from driver.model.device import MigDevice
from driver.model.health import HEALTHY

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping

    from driver.claims.allocation import ClaimRef
    from driver.claims.record import Record
    from driver.model.health import Health
    from driver.model.snapshot import Snapshot

log = logging.getLogger(__name__)

_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 60.0  # seconds until what failed is tried again


class ObjectTeller(Protocol):
    """Who writes Events (kube.events)."""

    def emit(
        self, reason: str, message: str, *, warning: bool = False, involved: Mapping[str, str] | None = None
    ) -> None:
        """Tell about an object."""
        ...


class Claims(Protocol):
    """Who reads claims (kube.resources)."""

    async def claim(self, namespace: str, name: str) -> dict[str, Any]:
        """Read a claim."""
        ...


class Plugged(Protocol):
    """Who knows which pods have devices by the device-plugin API (kubelet.pod_resources)."""

    async def device_holders(self) -> Mapping[str, tuple[str, ...]] | None:
        """Return them (`namespace/name`) by the devices' UUIDs; None if that can't be told."""
        ...


class PodEvents:
    """Compares what was told with what is. `records` returns those of all prepared claims."""

    def __init__(
        self, records: Callable[[], Awaitable[Iterable[Record]]], plugged: Plugged, claims: Claims, tell: ObjectTeller
    ) -> None:
        self._records = records
        self._plugged = plugged
        self._claims = claims
        self._tell = tell
        self._snapshot: Snapshot | None = None
        self._changed = asyncio.Event()
        self._told: dict[tuple[str, str], str] = {}  # (claim's UID or pod, device) to the reason that was told

    def publish(self, snapshot: Snapshot) -> None:
        """Take a new Snapshot; cheap, and does not wait."""
        self._snapshot = snapshot
        self._changed.set()

    async def run(self) -> None:
        """Tell until cancelled."""
        pause = _FIRST_PAUSE
        while True:
            await self._changed.wait()
            self._changed.clear()
            if await self._catch_up():
                pause = _FIRST_PAUSE
                continue
            await asyncio.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE)
            self._changed.set()

    async def _catch_up(self) -> bool:
        """Tell all that is news; say whether that worked."""
        snapshot = self._snapshot
        if snapshot is None:
            return True
        verdicts = (*snapshot.health.values(), *snapshot.device_health.values())
        if not self._told and all(health.healthy for health in verdicts):
            return True  # the usual case: nobody is asked for the records
        try:
            records = [record for record in await self._records() if record.ready]
        except DriverError as exc:
            log.warning("cannot tell pods of their devices' health: %s", exc)
            return False
        plugged = await self._plugged.device_holders()
        held = {(record.claim.uid, device) for record in records for device, _ in _held(record, snapshot)}
        held |= self._plugged_before() if plugged is None else {(pod, one) for one in plugged for pod in plugged[one]}
        self._told = {key: reason for key, reason in self._told.items() if key in held}
        self._of_plugged(plugged or {}, snapshot)
        done = [await self._of_record(record, snapshot) for record in records]
        return all(done)

    def _plugged_before(self) -> set[tuple[str, str]]:
        return {(holder, device) for holder, device in self._told if "/" in holder}

    def _of_plugged(self, plugged: Mapping[str, tuple[str, ...]], snapshot: Snapshot) -> None:
        for uuid, pods in plugged.items():
            name, health = _of_uuid(uuid, snapshot)
            reason = "" if health.healthy else health.reason
            for pod in pods:
                if self._told.get((pod, uuid), "") == reason:
                    continue
                namespace, _, pod_name = pod.partition("/")
                about = {"apiVersion": "v1", "kind": "Pod", "namespace": namespace, "name": pod_name}
                self._say((pod, uuid), f"device {name} ({uuid})", health, [about])

    async def _of_record(self, record: Record, snapshot: Snapshot) -> bool:
        news = [
            (device, health)
            for device, health in _held(record, snapshot)
            if self._told.get((record.claim.uid, device), "") != ("" if health.healthy else health.reason)
        ]
        if not news:
            return True
        try:
            pods = await self._pods(record.claim)
        except ApiNotFoundError:
            pods = []
        except ApiError as exc:
            log.info("cannot tell the pods of claim %s of their devices' health yet: %s", record.claim, exc)
            return False
        for device, health in news:
            about = f"device {device} of claim {record.claim.name}"
            self._say((record.claim.uid, device), about, health, pods)
        return True

    async def _pods(self, ref: ClaimRef) -> list[dict[str, str]]:
        claim = await self._claims.claim(ref.namespace, ref.name)
        if (claim.get("metadata") or {}).get("uid") != ref.uid:
            return []
        users = (claim.get("status") or {}).get("reservedFor") or ()
        return [
            {"apiVersion": "v1", "kind": "Pod", "namespace": ref.namespace, "name": user["name"], "uid": user["uid"]}
            for user in users
            if user.get("resource") == "pods" and user.get("name") and user.get("uid")
        ]

    def _say(self, key: tuple[str, str], about: str, health: Health, pods: Iterable[Mapping[str, str]]) -> None:
        if health.healthy:
            self._told.pop(key, None)
        else:
            self._told[key] = health.reason
        for pod in pods:
            if health.healthy:
                self._tell.emit("GPURecovered", f"{about} is healthy again", involved=pod)
            else:
                self._tell.emit("GPUUnhealthy", f"{about} is unhealthy: {health.reason}", warning=True, involved=pod)


def _held(record: Record, snapshot: Snapshot) -> Iterator[tuple[str, Health]]:
    """Yield the devices that a record holds, with their health; one that has left is as its GPU is."""
    for one in record.devices:
        device = snapshot.device(one.holding.device)
        if device is not None:
            yield one.holding.device, snapshot.health_of_device(device)
        else:
            yield one.holding.device, snapshot.health_of(one.holding.gpu_uuid)


def _of_uuid(uuid: str, snapshot: Snapshot) -> tuple[str, Health]:
    """Return a device's name and health; what is not ours is healthy."""
    for gpu in snapshot.gpus:
        if gpu.uuid == uuid:
            return gpu.name, snapshot.health_of(uuid)
        for instance in gpu.mig.instances if gpu.mig is not None else ():
            if instance.uuid == uuid:
                device = MigDevice(gpu=gpu, instance=instance)
                return device.name, snapshot.health_of_device(device)
    return uuid, HEALTHY
