"""Tells each prepared claim about its devices, in `status.devices` of the ResourceClaim.

Never on the way of a call of the kubelet: `changed` only sets a flag, and a burst becomes one round. Written by
server-side apply under a field manager of our own, bound to the claim's UID: entries of other drivers are untouched,
and a claim of the same name that came later gets nothing. What the API server refuses is told once and left alone.

When a claim is unprepared the API server drops the entries with the allocation (`dropDeallocatedStatusDevices`), which
follows within seconds, or the claim goes with its pod. Those of a claim that may stay allocated are taken back later.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Protocol

from driver.claims import allocation
from driver.claims.device_status import device_statuses, key_of, own_entries, same_entries
from driver.errors import (
    ApiConflictError,
    ApiForbiddenError,
    ApiInvalidError,
    ApiNotFoundError,
    ClaimRefusedError,
    DriverError,
    InvalidValueError,
)
from driver.model.wording import timestamp
from driver.waiting import happens

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from driver.claims.allocation import ClaimRef
    from driver.claims.record import Record
    from driver.model.json_object import JsonObject
    from driver.model.snapshot import Snapshot
    from driver.teller import Teller

log = logging.getLogger(__name__)

_SETTLE = 0.1  # seconds in which a burst is awaited, and the answer to the kubelet gets away
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 300.0  # seconds between tries
_TAKE_BACK = 15.0  # seconds after the unprepare
_OFF = 3600.0  # seconds until it is tried again whether the API server keeps the field


class StatusApi(Protocol):
    """The claims of the API server (`driver.kube.resources.ResourceApi`)."""

    async def claim(self, namespace: str, name: str) -> Mapping[str, Any]:
        """Read a claim."""
        ...

    async def apply_claim_devices(
        self, namespace: str, name: str, uid: str, devices: list[JsonObject]
    ) -> Mapping[str, Any]:
        """Make these all entries of ours; return the claim as stored."""
        ...


class StatusObserver(Protocol):
    """Who counts (metrics)."""

    def claim_status_written(self, error_type: str = "") -> None:
        """Count a write of a claim's status; the type of its error if it failed."""
        ...


@dataclass(slots=True)
class _Claim:
    """What is known about one claim's status."""

    ref: ClaimRef
    made_for_pod: bool = False  # of a template: it goes with its pod
    seen: tuple[Record, Snapshot] | None = None  # of what the entries were made that are written, or refused
    written: list[JsonObject] = field(default_factory=list)
    refused: list[JsonObject] | None = None  # the entries that the API server will not take
    left_at: float = 0.0  # when it was unprepared
    over: bool = False  # the claim is gone, or no longer has these devices: nothing to tell


class ClaimStatusWriter:
    """Keeps the statuses of this node's claims. `now` is the time of day, for the conditions."""

    def __init__(
        self,
        api: StatusApi,
        *,
        records: Callable[[], Awaitable[tuple[Record, ...]]],
        snapshot: Callable[[], Snapshot],
        tell: Teller,
        observer: StatusObserver,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        take_back: float = _TAKE_BACK,
    ) -> None:
        self._api = api
        self._records = records
        self._snapshot = snapshot
        self._tell = tell
        self._observer = observer
        self._now = now
        self._take_back = take_back
        self._claims: dict[str, _Claim] = {}
        self._wanted = asyncio.Event()
        self._wanted.set()
        self._first = True
        self._pause = 0.0
        self._off_until = 0.0
        self._told_forbidden = False

    def changed(self) -> None:
        """Note that claims or their devices' health may have changed. Returns at once."""
        self._wanted.set()

    def publish(self, _: Snapshot) -> None:
        """Note a new Snapshot."""
        self._wanted.set()

    async def run(self) -> None:
        """Write until cancelled."""
        while True:
            await self._wait()
            await asyncio.sleep(_SETTLE)
            self._wanted.clear()
            try:
                await self._round()
            except Exception as exc:
                await self._after(exc)
            else:
                self._pause = 0.0

    async def _wait(self) -> None:
        """Wait for news, or for the time to take entries back."""
        due = [claim.left_at + self._take_back for claim in self._claims.values() if claim.left_at]
        await happens(self._wanted, max(0.0, min(due) - self._time()) if due else None)

    # --- one round ---------------------------------------------------------------------------------------------------

    async def _round(self) -> None:
        if self._time() < self._off_until:
            return
        records = {record.claim.uid: record for record in await self._records() if record.ready}
        failed: list[DriverError] = []
        for record in records.values():
            try:
                await self._keep(record)
            except (ApiForbiddenError, ApiConflictError) as exc:  # it may be this claim's alone
                failed.append(exc)
        self._first = False
        for uid, claim in [*self._claims.items()]:
            if uid not in records:
                await self._leave(uid, claim)
        if failed:
            raise failed[0]

    async def _keep(self, record: Record) -> None:
        claim = self._claims.get(record.claim.uid)
        if claim is None:
            known = await self._known(record.claim) if self._first else []
            claim = _Claim(record.claim, made_for_pod=bool(record.pod_claim), written=known)
            self._claims[record.claim.uid] = claim
        if claim.left_at:
            claim.left_at, claim.over = 0.0, False  # prepared again
        snapshot = self._snapshot()
        if claim.seen is not None and claim.seen[0] is record and claim.seen[1] is snapshot:
            return
        entries = device_statuses(record, snapshot, claim.written, timestamp(self._now()))
        if claim.over or same_entries(entries, claim.written) or entries == claim.refused:
            claim.seen = record, snapshot
            return
        try:
            stored = await self._apply(claim, entries)
        except (ApiNotFoundError, ApiConflictError, ApiInvalidError) as exc:
            await self._refused(claim, record, entries, exc)
            return
        self._accept(claim, entries, stored)

    async def _leave(self, uid: str, claim: _Claim) -> None:
        """Take the entries back some time after the unprepare, if there is anything left to take back."""
        if claim.over or claim.made_for_pod or not claim.written:
            del self._claims[uid]
        elif not claim.left_at:
            claim.left_at = self._time()
        elif self._time() - claim.left_at >= self._take_back:
            try:
                await self._apply(claim, [])
            except (ApiNotFoundError, ApiConflictError, ApiInvalidError) as exc:
                log.debug("claim %s needs no status any more: %s", claim.ref, exc)
            del self._claims[uid]

    async def _known(self, ref: ClaimRef) -> list[JsonObject]:
        """Return what an earlier life of the agent wrote, so that times of conditions are kept."""
        try:
            claim = await self._api.claim(ref.namespace, ref.name)
        except ApiNotFoundError:
            return []
        metadata = claim.get("metadata")
        ours = isinstance(metadata, dict) and metadata.get("uid") == ref.uid
        return own_entries(claim) if ours else []

    async def _apply(self, claim: _Claim, entries: list[JsonObject]) -> Mapping[str, Any]:
        try:
            stored = await self._api.apply_claim_devices(claim.ref.namespace, claim.ref.name, claim.ref.uid, entries)
        except DriverError as exc:
            self._observer.claim_status_written(type(exc).__name__)
            raise
        self._observer.claim_status_written()
        return stored

    def _accept(self, claim: _Claim, entries: list[JsonObject], stored: Mapping[str, Any]) -> None:
        if {key_of(entry) for entry in entries} & {key_of(entry) for entry in own_entries(stored)}:
            claim.written = entries
            return
        self._off_until = self._time() + _OFF
        log.info(
            "the API server keeps no device status in claims (feature gate DRAResourceClaimDeviceStatus): "
            "claims are prepared all the same, `gpu-dra status` shows their devices"
        )

    # --- refusals ----------------------------------------------------------------------------------------------------

    async def _refused(self, claim: _Claim, record: Record, entries: list[JsonObject], error: DriverError) -> None:
        """Find out whether the claim is gone, which is no news; else tell, and leave it alone while nothing changes."""
        if isinstance(error, ApiNotFoundError) and not error.reason:
            raise error  # the API is away, not the claim
        if not await self._still_has(record):
            claim.over = True
            return
        if isinstance(error, ApiConflictError):
            raise error  # somebody wrote at the same moment: try again
        claim.refused = entries
        message = f"the API server refuses the device status of claim {claim.ref}: {error}"
        log.warning("%s", message)
        self._tell.emit("ClaimStatusRefused", message, warning=True)

    async def _still_has(self, record: Record) -> bool:
        try:
            claim = await self._api.claim(record.claim.namespace, record.claim.name)
            allocated = allocation.decode(claim, record.claim)
        except (ApiNotFoundError, ClaimRefusedError, InvalidValueError):
            return False
        current = {(one.pool, one.device, one.share_id) for one in allocated.results}
        return all((one.pool, one.holding.device, one.holding.share_id) in current for one in record.devices)

    async def _after(self, error: Exception) -> None:
        """Wait before the next try; what may not be done at all is told once."""
        self._wanted.set()
        self._pause = min(max(self._pause * 2, _FIRST_PAUSE), _LONGEST_PAUSE)
        if isinstance(error, ApiForbiddenError):
            self._pause = _LONGEST_PAUSE
            self._tell_forbidden(error)
        elif isinstance(error, DriverError):
            log.info("claims' device status can't be written now, next try in %.0f s: %s", self._pause, error)
        else:
            log.error("internal error while writing claims' device status", exc_info=error)
        await asyncio.sleep(max(self._pause, getattr(error, "retry_after", None) or 0.0))

    def _tell_forbidden(self, error: ApiForbiddenError) -> None:
        if self._told_forbidden:
            return
        self._told_forbidden = True
        message = (
            f"claims get no device status, as the agent may not write it: {error}. Its role needs patch on "
            "resourceclaims/status, and from Kubernetes 1.36 associated-node:patch on resourceclaims/driver"
        )
        log.warning("%s", message)
        self._tell.emit("ClaimStatusForbidden", message, warning=True)

    def _time(self) -> float:
        return asyncio.get_running_loop().time()
