"""What the agent tells about devices beside the slices, wired: use, claims' status, the answers of `gpu-dra status`."""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import driver
from driver.claims.status_writer import ClaimStatusWriter
from driver.model.wording import timestamp
from driver.telemetry.exposition import verdicts
from driver.telemetry.report import AgentState, describe
from driver.telemetry.sampler import Sampler, Sources
from driver.telemetry.status_server import StatusServer

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from driver.claims.allocation import ClaimRef
    from driver.claims.record import PreparedDevice, Record
    from driver.claims.store import Quarantined
    from driver.errors import DriverError
    from driver.inventory.base import Inventory
    from driver.kube.events import EventSink
    from driver.kube.resources import ResourceApi
    from driver.kubelet.dra import ClaimService
    from driver.kubelet.pod_resources import PodResources
    from driver.metrics import Metrics
    from driver.monitor.monitor import Monitor
    from driver.settings import Settings

_FRESH, _PATIENCE = 1.0, 2.0  # seconds: how old the use may be that a person is shown, how long it is waited for


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What telling needs of the other parts of the agent."""

    inventory: Inventory
    monitor: Monitor
    records: Callable[[], Awaitable[tuple[Record, ...]]]
    pods: PodResources
    missing: Callable[[], Mapping[str, str]]
    unreadable: Callable[[], Sequence[Quarantined]]


class Telemetry:
    """All that is told. Making it serves nothing."""

    def __init__(
        self, settings: Settings, parts: Parts, api: ResourceApi, *, events: EventSink, metrics: Metrics
    ) -> None:
        self._settings = settings
        self._parts = parts
        self._sampler = Sampler(
            Sources(
                usage=parts.inventory.usage,
                snapshot=lambda: parts.monitor.snapshot,
                records=parts.records,
                containers=parts.pods.containers,
            ),
            hostname=settings.node_name,
            interval=settings.telemetry_interval,
        )
        self._statuses: ClaimStatusWriter | None = None
        if settings.claim_status == "on":
            self._statuses = ClaimStatusWriter(
                api,
                records=parts.records,
                snapshot=lambda: parts.monitor.snapshot,
                tell=events,
                observer=metrics,
            )
        if settings.telemetry == "on":
            metrics.append(self._sampler.text)
        else:
            metrics.append(lambda: verdicts(parts.monitor.snapshot, settings.node_name).encode())
        self._server = StatusServer(settings.status_socket, self._document)

    def watched(self, claims: ClaimService) -> ClaimService:
        """Return the same service, which tells of each call that may have changed claims."""
        return _Watched(claims, self._changed)

    def _changed(self) -> None:
        self._sampler.changed()
        if self._statuses is not None:
            self._statuses.changed()

    async def run(self) -> None:
        """Tell until cancelled, once the GPUs have been read."""
        await self._server.start()
        await self._parts.monitor.ready.wait()
        async with asyncio.TaskGroup() as tasks:
            if self._settings.telemetry == "on":
                tasks.create_task(self._sampler.run(), name="telemetry")
            if self._statuses is not None:
                self._parts.monitor.subscribe(self._statuses.publish)
                tasks.create_task(self._statuses.run(), name="claim status")

    async def stop(self) -> None:
        """Close the socket."""
        await self._server.stop()

    async def _document(self) -> dict[str, Any]:
        sample = await self._sampler.refresh(oldest=_FRESH, limit=_PATIENCE)
        state = AgentState(
            node=self._settings.node_name,
            version=driver.__version__,
            pid=os.getpid(),
            time=timestamp(datetime.now(UTC)),
            missing=self._parts.missing(),
            since=self._since(),
            problem=self._sampler.problem,
            age=self._sampler.age,
            unreadable={f"claim {one.uid}": one.told for one in self._parts.unreadable()},
        )
        return describe(state, self._parts.monitor.snapshot, sample)

    def _since(self) -> dict[str, str]:
        """Return when claims were prepared, by UID: that is when their records were written."""
        found = {}
        for path in (self._settings.state / "claims").glob("*.json"):
            try:
                found[path.stem] = timestamp(datetime.fromtimestamp(path.stat().st_mtime, UTC))
            except OSError:  # it was unprepared this moment
                continue
        return found


class _Watched:
    """A claim service that calls `changed` after each call. It only sets a flag: the answer does not wait for it."""

    def __init__(self, claims: ClaimService, changed: Callable[[], None]) -> None:
        self._claims = claims
        self._changed = changed

    async def prepare(
        self, refs: Sequence[ClaimRef], *, deadline: float
    ) -> Mapping[str, tuple[PreparedDevice, ...] | DriverError]:
        """Prepare claims."""
        try:
            return await self._claims.prepare(refs, deadline=deadline)
        finally:
            self._changed()

    async def unprepare(self, refs: Sequence[ClaimRef], *, deadline: float) -> Mapping[str, DriverError | None]:
        """Undo what was prepared."""
        try:
            return await self._claims.unprepare(refs, deadline=deadline)
        finally:
            self._changed()
