"""The one writer of this node's ResourceSlices.

`publish` says what is wanted; `run` makes it so and keeps it so: whatever somebody else changes or deletes is repaired
within a second, and nothing is written while all is right. Slices stay when the process ends, as its pods do.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from driver.backoff import Backoff, Repairs
from driver.errors import (
    ApiConflictError,
    ApiGoneError,
    ApiNotFoundError,
    ApiUnavailableError,
    DriverError,
    PermanentError,
)
from driver.kube.resources import NOTICES_SINCE, PARTITIONABLE_SINCE
from driver.model import names
from driver.model.shares import EXCLUSIVE
from driver.slices.build import build
from driver.slices.diff import Owner, diff
from driver.slices.dropped import Feature, dropped_fields, features_of
from driver.slices.mirror import SliceMirror
from driver.slices.normal import normal
from driver.slices.report import PublishState, Reporter
from driver.waiting import happens

if TYPE_CHECKING:
    from driver.kube.client import KubeClient
    from driver.kube.resources import ResourceApi, ServerVersion
    from driver.model.json_object import JsonObject
    from driver.model.snapshot import Snapshot
    from driver.slices.build import BuildOptions
    from driver.slices.diff import Deletion, Plan
    from driver.slices.report import PublishMetrics
    from driver.teller import Teller

log = logging.getLogger(__name__)

_SINCE = {Feature.PARTITIONS: PARTITIONABLE_SINCE, Feature.NOTICES: NOTICES_SINCE}
_SETTLE = 0.03  # seconds in which a burst of changes is awaited


@dataclass(slots=True)
class _Wanted:
    """What was built last, and of what."""

    snapshot: Snapshot
    options: BuildOptions
    specs: tuple[JsonObject, ...]
    stored_as: list[tuple[JsonObject, JsonObject]] = field(default_factory=list)  # normal forms: asked, got

    def same(self, wanted: JsonObject, observed: JsonObject) -> bool:
        """Compare contents; what the server made of this very content counts as the same, or there were no end."""
        asked, got = normal(wanted), normal(observed)
        return asked == got or (asked, got) in self.stored_as


class SlicePublisher:
    """Publishes the pool of one node. `publish` and `run` belong to one event loop."""

    def __init__(
        self,
        client: KubeClient,
        api: ResourceApi,
        options: BuildOptions,
        *,
        events: Teller,
        metrics: PublishMetrics,
        longest_pause: float = 10.0,
    ) -> None:
        self._client = client
        self._api = api
        self._options = options
        self._report = Reporter(events, metrics)
        self._owner = Owner(driver=names.DRIVER, node_name=options.node_name)
        self._snapshot: Snapshot | None = None
        self._wanted: _Wanted | None = None
        self._off: frozenset[Feature] = frozenset()
        self._release: ServerVersion | None = None  # of the API server that `_off` was learned from
        self._session = 0  # of the mirror, when the release was read
        self._losses = 0  # of the mirror, when the Node was read
        self._repairs = Repairs()
        self._changed = asyncio.Event()  # there is something to look at
        self._news = asyncio.Event()  # another snapshot: a permanent error may be gone
        self._pause = Backoff(0.2, longest_pause)
        self._long_pause = Backoff(1.0, 60.0)
        self._mirror = SliceMirror(
            api,
            f"spec.driver={names.DRIVER},spec.nodeName={options.node_name}",
            changed=self._changed.set,
            failed=self._report.failed,
            backoff=Backoff(0.2, longest_pause),
        )

    @property
    def state(self) -> PublishState:
        """How far publishing is."""
        return self._report.state

    def publish(self, snapshot: Snapshot) -> None:
        """Set what is wanted. Returns at once; the same snapshot again changes nothing."""
        if snapshot == self._snapshot:
            return
        self._snapshot = snapshot
        self._report.pending()
        self._news.set()
        self._changed.set()

    async def run(self) -> None:
        """Publish until cancelled; slices are left as they are."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._mirror.run(), name="slices: watch")
            group.create_task(self._reconcile(), name="slices: write")

    async def _reconcile(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            self._news.clear()
            if self._snapshot is None or not self._mirror.synced:
                continue
            try:
                await self._round(self._snapshot)
            except Exception as error:  # a bug may cost an update, not the claims that the process serves
                await self._after(error)
            else:
                self._pause.reset()
                self._long_pause.reset()
                await asyncio.sleep(_SETTLE)

    async def _round(self, snapshot: Snapshot) -> None:
        """Compare once, and write what differs."""
        await self._know_node()
        await self._know_server(self._by_release(snapshot))
        wanted = self._build(snapshot)
        plan = diff(wanted.specs, self._mirror.items(), self._owner, wanted.same)
        if plan and self.state.complete:
            await self._before_repair(plan)
            return
        if await self._apply(plan, wanted):
            devices = sum(len(spec.get("devices") or ()) for spec in wanted.specs)
            current = snapshot is self._snapshot
            self._report.succeeded(slices=len(wanted.specs), devices=devices, complete=current)

    async def _know_node(self) -> None:
        """Read the Node's UID; again after a loss, as the Node may have been made anew and its slices collected."""
        losses = self._mirror.losses
        if self._owner.node_uid is not None and self._losses == losses:
            return
        name = self._owner.node_name
        try:
            node = await self._client.get(f"/api/v1/nodes/{name}")
        except ApiNotFoundError as error:
            raise ApiNotFoundError(f"there is no Node {name!r} (check the setting of the node's name)") from error
        metadata = node.get("metadata")
        uid = metadata.get("uid") if isinstance(metadata, dict) else None
        if not isinstance(uid, str):
            raise ApiUnavailableError(f"GET /api/v1/nodes/{name}: what came is no Node: it has no metadata.uid")
        self._owner = replace(self._owner, node_uid=uid)
        self._losses = losses

    def _by_release(self, snapshot: Snapshot) -> frozenset[Feature]:
        """Return what is to be published that an older API server would refuse rather than drop."""
        partitions = self._options.partitions and bool(snapshot.dynamic_mig)
        notices = self._options.taints and Feature.TAINTS not in self._off and snapshot.has_notices
        wanted = {Feature.PARTITIONS: partitions, Feature.NOTICES: notices}
        return frozenset(feature for feature, is_wanted in wanted.items() if is_wanted)

    async def _know_server(self, wanted: frozenset[Feature]) -> None:
        """Learn what the API server can store, whenever it may be another one than before."""
        if not (wanted or self._off):
            return
        release, session = self._release, self._mirror.sessions
        if release is None or self._session != session:
            release = await self._api.server_version()
            if self._release not in (None, release):
                self._off = frozenset()
            self._release, self._session = release, session
        self._off |= {feature for feature in wanted if release[:2] < _SINCE[feature]}
        self._report.without(self._off, f"the API server is {release.git_version}")

    def _build(self, snapshot: Snapshot) -> _Wanted:
        options = replace(
            self._options,
            taints=self._options.taints and Feature.TAINTS not in self._off,
            notices=self._options.notices and Feature.NOTICES not in self._off,
            partitions=self._options.partitions and Feature.PARTITIONS not in self._off,
            shares=EXCLUSIVE if Feature.SHARES in self._off else self._options.shares,
        )
        wanted = self._wanted
        if wanted is None or wanted.snapshot is not snapshot or wanted.options != options:
            wanted = self._wanted = _Wanted(snapshot, options, build(snapshot, options))
        return wanted

    async def _before_repair(self, plan: Plan) -> None:
        """Wait for the end of a burst; longer each time if somebody keeps changing what was repaired."""
        self._report.pending()
        self._changed.set()
        counts = len(plan.deletions), len(plan.updates), len(plan.creations)
        log.info("somebody changed the ResourceSlices: %d to delete, %d to update, %d to create", *counts)
        pause = self._repairs.pause(asyncio.get_running_loop().time())
        if pause > 0:
            log.warning("somebody keeps changing the ResourceSlices; the next repair is in %.0f s", pause)
        await happens(self._news, max(pause, _SETTLE))

    async def _apply(self, plan: Plan, wanted: _Wanted) -> bool:
        """Do the writes in order; return False at once if an answer shows that the slices must be built differently."""
        for deletion in plan.deletions:
            await self._delete(deletion)
        for item in plan.updates:
            self._accept(item, await self._api.update_slice(item), "update", wanted)
            if self._wanted is None:
                return False
        for item in plan.creations:
            self._accept(item, await self._api.create_slice(item), "create", wanted)
            if self._wanted is None:
                return False
        return True

    async def _delete(self, deletion: Deletion) -> None:
        try:
            await self._api.delete_slice(deletion.name, uid=deletion.uid, resource_version=deletion.resource_version)
            self._report.wrote("delete")
        except ApiNotFoundError as error:
            if not error.reason:  # the path is missing; else somebody was quicker, which is as good
                raise
        self._mirror.deleted(deletion.name)

    def _accept(self, asked: JsonObject, stored: JsonObject, verb: str, wanted: _Wanted) -> None:
        """Take an answer; forget what was built if the answer shows that a feature is off that was relied on."""
        self._report.wrote(verb)
        self._mirror.stored(stored)
        forms = normal(asked["spec"]), normal(stored["spec"])
        if forms[0] == forms[1]:
            return
        lost = dropped_fields(asked["spec"], stored["spec"])
        features = features_of(lost) - self._off
        if features:
            self._off |= features
            self._report.without(self._off)
            self._wanted = None
            self._changed.set()
        elif forms not in wanted.stored_as:
            wanted.stored_as.append(forms)
            self._report.differs(lost)

    async def _after(self, error: Exception) -> None:
        """Make the next try possible and wait for its time."""
        self._changed.set()
        stale = isinstance(error, ApiNotFoundError) and error.reason
        if stale or isinstance(error, ApiConflictError | ApiGoneError):
            log.info("reading the ResourceSlices again: %s", error)
            await asyncio.sleep(self._pause.next() / 4)
            await self._read_again()
            return
        self._report.failed(error)
        if not isinstance(error, DriverError):
            log.error("publishing failed unexpectedly", exc_info=error)
        if isinstance(error, PermanentError):
            await happens(self._news, self._long_pause.next())
        else:
            await asyncio.sleep(self._pause.next(error))

    async def _read_again(self) -> None:
        try:
            await self._mirror.refresh()
        except DriverError as error:
            self._report.failed(error)
            await asyncio.sleep(self._pause.next(error))
