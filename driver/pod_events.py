"""Events on the pods that hold a device whose health changed, so that their owners see it where they look.

Who holds a device is in the records; which pods those are, in the status of their claims. What could not be asked is
asked again, as long as it is still news.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Protocol

from driver.errors import ApiError, ApiNotFoundError, DriverError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping

    from driver.claims.allocation import ClaimRef
    from driver.claims.record import Record
    from driver.model.health import Health
    from driver.model.snapshot import Snapshot

log = logging.getLogger(__name__)

_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 60.0  # seconds until what failed is tried again


class Teller(Protocol):
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


class PodEvents:
    """Compares what was told with what is. `records` returns those of all prepared claims."""

    def __init__(self, records: Callable[[], Awaitable[Iterable[Record]]], claims: Claims, tell: Teller) -> None:
        self._records = records
        self._claims = claims
        self._tell = tell
        self._snapshot: Snapshot | None = None
        self._changed = asyncio.Event()
        self._told: dict[tuple[str, str], str] = {}  # (claim's UID, device) to the reason that was told

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
        held = {(record.claim.uid, device) for record in records for device, _ in _held(record, snapshot)}
        self._told = {key: reason for key, reason in self._told.items() if key in held}
        done = [await self._of_record(record, snapshot) for record in records]
        return all(done)

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
            self._say(record.claim, device, health, pods)
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

    def _say(self, ref: ClaimRef, device: str, health: Health, pods: Iterable[Mapping[str, str]]) -> None:
        about = f"device {device} of claim {ref.name}"
        if health.healthy:
            self._told.pop((ref.uid, device), None)
        else:
            self._told[ref.uid, device] = health.reason
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
