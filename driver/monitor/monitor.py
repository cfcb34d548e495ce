"""Watches the inventory and makes Snapshots: the only place that does.

A GPU that stops to answer keeps its last known facts and is called lost, so that names don't shift (A10) and claims on
it can be told; one that never answered is left out and named (A11). What fails is asked once more before it counts. An
unchanged reading is the same Snapshot: nobody is woken.

Side by side: events are taken as they come; the GPUs are read and checked now and then, and soon after an event;
verdicts are given at most once a second, so a storm of events causes few Snapshots, and a call that hangs delays none.
"""

from __future__ import annotations

import asyncio
import logging
import math
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from driver.errors import InventoryError
from driver.inventory.base import Inventory, InventoryEvent, Xid
from driver.model.choice import NO_GPUS
from driver.model.snapshot import Problem, Snapshot
from driver.monitor.announcer import Announcer
from driver.monitor.charts import Charts
from driver.monitor.observation import advance, is_worse, unavailable
from driver.waiting import happens

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping

    from driver.model.choice import GpuChoice
    from driver.model.device import Gpu
    from driver.model.health import Health
    from driver.model.health_facts import Fact, HealthReport
    from driver.model.health_rules import Rules
    from driver.model.ownership import Ownership
    from driver.teller import Teller

    Owners = Callable[[tuple[Gpu, ...]], Awaitable[Mapping[str, Ownership]]]

log = logging.getLogger(__name__)

_SECOND_TRY = 0.2  # seconds until what failed is asked again
_LEAST_GAP = 1.0  # seconds between readings, and between verdicts, however many events come
_BURST = 0.25  # seconds until changes that we make ourselves are looked at: others may be about to come
_CHECK_PATIENCE = 0.3  # seconds that a reading waits for the check of the GPUs' health before it is passed on without
_TOGETHER = 0.3  # seconds that the verdict on an event waits for the check that it causes: one change, one Snapshot
_UNHEALTHY = 5.0  # seconds between checks while a GPU is unhealthy: it shall not wait for long to be seen well again
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 30.0  # seconds, while the inventory as a whole can't be read
_CHECK = "health checks"  # the object of a problem


class MonitorObserver(Protocol):
    """Who counts (metrics)."""

    def inventory_read(self, *, healthy: int, unhealthy: int, problems: int, whole: bool) -> None:
        """Note what a reading saw; `whole` is false if it failed altogether."""
        ...

    def xid(self, xid: int, gpu: str) -> None:
        """Note an XID error on a GPU, by name."""
        ...

    def health_judged(self, health: Mapping[tuple[str, str], Health]) -> None:
        """Note the verdicts on all GPUs, by name and UUID."""
        ...


class Monitor:
    """Keeps the current Snapshot. `resync` is how often, in seconds, it reads and checks without being told to.

    `owners` tells for each Snapshot who has which GPU, by UUID, leaving out what is simply DRA's; without it, all are.
    `dynamic_mig` says which GPUs are partitioned for claims.
    """

    def __init__(
        self,
        inventory: Inventory,
        *,
        tell: Teller,
        observer: MonitorObserver,
        resync: float = 60.0,
        owners: Owners | None = None,
        dynamic_mig: GpuChoice = NO_GPUS,
        charts: Charts | None = None,
    ) -> None:
        self._inventory = inventory
        self._announcer = Announcer(tell, dynamic_mig)
        self._observer = observer
        self._resync = resync
        self._owners = owners
        self._dynamic_mig = dynamic_mig
        self._charts = charts or Charts()
        self._owning = asyncio.Lock()
        self._seen: Snapshot | None = None  # as read; its health is who does not answer
        self._check_problem: tuple[Problem, ...] = ()
        self._snapshot: Snapshot | None = None  # as judged
        self._subscribers: list[Callable[[Snapshot], None]] = []
        self._wanted = asyncio.Event()
        self._bursting = False
        self._unjudged = asyncio.Event()
        self._judged_at = -math.inf
        self._looked = asyncio.Event()  # since the last event
        self._looked.set()
        self.ready = asyncio.Event()

    @property
    def snapshot(self) -> Snapshot:
        """The current Snapshot; an empty one before the first reading."""
        return self._snapshot or Snapshot()

    def missing(self) -> str:
        """Return why the inventory can't be relied on, or nothing."""
        if self._snapshot is None:
            return "the GPUs have not been read yet"
        return self._snapshot.unavailable

    def subscribe(self, callback: Callable[[Snapshot], None]) -> None:
        """Call `callback` with the current Snapshot, if there is one, and with each new one. It must not block."""
        self._subscribers.append(callback)
        if self._snapshot is not None:
            _call(callback, self._snapshot)

    def refresh(self) -> None:
        """Ask for a reading soon."""
        self._wanted.set()

    def refresh_later(self) -> None:
        """Ask for a reading once a burst of changes is over, so that it does not take time from them."""
        if not self._bursting:
            self._bursting = True
            asyncio.get_running_loop().call_later(_BURST, self._burst_ended)

    def also(self, facts: Callable[[], Mapping[str, Iterable[Fact]]]) -> None:
        """Ask another part, at each verdict, what it knows: about whole GPUs by UUID, about MIG devices by name."""
        self._charts.also(facts)

    def reconsider(self) -> None:
        """Give a verdict soon, as another part knows more."""
        self._unjudged.set()

    def set_rules(self, rules: Rules) -> None:
        """Judge by other rules from now on, what is known already too."""
        self._charts.rules = rules
        self._unjudged.set()

    async def run(self) -> None:
        """Watch until cancelled."""
        self._charts.recall(_now())
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._listen())
            tasks.create_task(self._keep_reading())
            tasks.create_task(self._keep_judging())

    # --- reading -----------------------------------------------------------------------------------------------------

    async def _keep_reading(self) -> None:
        pause = _FIRST_PAUSE
        while True:
            self._wanted.clear()
            failed = bool((await self._look()).unavailable)
            wait = pause if failed else self._until_next()
            pause = min(pause * 2, _LONGEST_PAUSE) if failed else _FIRST_PAUSE
            await asyncio.gather(happens(self._wanted, wait), asyncio.sleep(_LEAST_GAP))

    async def _look(self) -> Snapshot:
        """Read the GPUs and check their health. A check that takes long does not hold up what was read."""
        began = _now()
        found = await self._read()
        async with self._owning:
            found = replace(found, ownership=await self._ownership(found))
            self._seen = found
        self._charts.observe(found, began)
        if not found.unavailable:
            check = asyncio.ensure_future(self._check())
            try:
                await asyncio.wait((check,), timeout=_CHECK_PATIENCE)
                self._unjudged.set()
                await check
            finally:
                check.cancel()
        self._unjudged.set()
        if not self._wanted.is_set():
            self._looked.set()
        self._count(found)
        return found

    def _until_next(self) -> float:
        """Return the seconds until the GPUs are to be looked at again, if nothing happens."""
        well = all(health.healthy for health in self._charts.judged(self._seen or Snapshot()).health.values())
        wait = self._resync if well else min(self._resync, _UNHEALTHY)
        due = self._charts.due()
        return wait if due is None else min(wait, max(0.0, due - _now()))

    async def _read(self) -> Snapshot:
        found = await self._read_once()
        if is_worse(self._seen or Snapshot(), found):
            await asyncio.sleep(_SECOND_TRY)
            found = await self._read_once()
        return found

    async def _read_once(self) -> Snapshot:
        try:
            reading = await self._inventory.read()
        except InventoryError as exc:
            return unavailable(self._seen, str(exc))
        except Exception as exc:
            log.exception("internal error while reading the GPUs")
            return unavailable(self._seen, f"internal error: {exc!r}")
        return advance(self._seen, reading, self._dynamic_mig)

    async def _check(self) -> None:
        began, reports = await self._check_once()
        failing = self._charts.failing()
        if any(set(report.failed) - {*failing.get(uuid, ())} for uuid, report in reports.items()):
            await asyncio.sleep(_SECOND_TRY)
            began, reports = await self._check_once()
        self._charts.check(reports, began)

    async def _check_once(self) -> tuple[float, Mapping[str, HealthReport]]:
        began = _now()
        try:
            reports = await self._inventory.health_facts()
        except InventoryError as exc:
            self._check_problem = (Problem(object=_CHECK, message=str(exc)),)
            return began, {}
        except Exception as exc:
            log.exception("internal error while checking the GPUs' health")
            self._check_problem = (Problem(object=_CHECK, message=f"internal error: {exc!r}"),)
            return began, {}
        self._check_problem = ()
        return began, reports

    def _count(self, found: Snapshot) -> None:
        judged = self._judge(found)
        unhealthy = sum(not health.healthy for health in judged.health.values())
        self._observer.inventory_read(
            healthy=len(judged.gpus) - unhealthy,
            unhealthy=unhealthy,
            problems=len(judged.problems),
            whole=not judged.unavailable,
        )

    # --- verdicts ----------------------------------------------------------------------------------------------------

    async def _keep_judging(self) -> None:
        while True:
            await self._unjudged.wait()
            await happens(self._looked, _TOGETHER)
            await asyncio.sleep(max(0.0, self._judged_at + _LEAST_GAP - _now()))
            self._settle()

    def _settle(self) -> None:
        """Publish the verdicts of now, if they are news."""
        self._unjudged.clear()
        if self._seen is None:
            return
        found, before = self._judge(self._seen), self._snapshot
        self._charts.remember()
        if found == before:
            return
        self._judged_at = _now()
        self._snapshot = found
        self._announcer.changed(before or Snapshot(), found)
        self._observer.health_judged({(gpu.name, gpu.uuid): found.health_of(gpu.uuid) for gpu in found.gpus})
        self.ready.set()
        for callback in self._subscribers:
            _call(callback, found)

    def _judge(self, found: Snapshot) -> Snapshot:
        self._charts.monitored = self._inventory.monitored
        judged = self._charts.judged(found)
        return replace(judged, problems=(*judged.problems, *self._check_problem))

    async def reown(self) -> None:
        """Ask who has the GPUs, and publish the answer."""
        async with self._owning:
            ownership = await self._ownership(self._seen or Snapshot())
            if self._seen is not None:
                self._seen = replace(self._seen, ownership=ownership)
                self._settle()

    async def _ownership(self, found: Snapshot) -> Mapping[str, Ownership]:
        return await self._owners(found.gpus) if self._owners is not None and found.gpus else found.ownership

    # --- events ------------------------------------------------------------------------------------------------------

    def _burst_ended(self) -> None:
        self._bursting = False
        self.refresh()

    async def _listen(self) -> None:
        pause = _FIRST_PAUSE
        while True:
            try:
                async for event in self._inventory.events():
                    pause = _FIRST_PAUSE
                    self._take(event)
            except Exception:
                log.exception("the inventory's events failed")
            else:
                log.warning("the inventory's events ended")
            await asyncio.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE)
            self._wanted.set()  # what happened in between was not heard

    def _take(self, event: InventoryEvent) -> None:
        self._looked.clear()
        if isinstance(event, Xid):
            now, name = _now(), self._name(event.gpu_uuid)
            self._observer.xid(event.xid, name)
            self._announcer.xid(event, name or "an unknown GPU", now)
            if self._charts.take(event, now):
                self._unjudged.set()
        else:
            log.info("reading the GPUs again: %s", event.why)
        self._wanted.set()

    def _name(self, gpu_uuid: str) -> str:
        return next((gpu.name for gpu in self.snapshot.gpus if gpu.uuid == gpu_uuid), "")


def _call(callback: Callable[[Snapshot], None], snapshot: Snapshot) -> None:
    try:
        callback(snapshot)
    except Exception:
        log.exception("internal error: %r refused a snapshot", callback)


def _now() -> float:
    """Return the moment in seconds, by a clock that never jumps."""
    return asyncio.get_running_loop().time()
