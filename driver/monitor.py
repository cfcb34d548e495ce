"""Watches the inventory and makes Snapshots: the only place that does.

A GPU that stops to answer keeps its last known facts and is called lost, so that names don't shift (A10) and claims on
it can be told; one that never answered is left out and named (A11). What fails is asked once more before it counts. An
unchanged reading is the same Snapshot: nobody is woken.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol

from driver.errors import InventoryError
from driver.inventory.base import Inventory, InventoryEvent, Xid
from driver.model.choice import NO_GPUS
from driver.model.health import LOST
from driver.model.snapshot import WHOLE_INVENTORY, Problem, Snapshot

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping

    from driver.inventory.base import Reading
    from driver.model.choice import GpuChoice
    from driver.model.device import Gpu
    from driver.model.health import Health
    from driver.model.ownership import Ownership

    Owners = Callable[[tuple[Gpu, ...]], Awaitable[Mapping[str, Ownership]]]

log = logging.getLogger(__name__)

_SECOND_TRY = 0.2  # seconds until what failed is asked again
_LEAST_GAP = 1.0  # seconds between readings, however many events come
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 30.0  # seconds, while the inventory as a whole can't be read


class Teller(Protocol):
    """Who tells people (kube.events)."""

    def emit(self, reason: str, message: str, *, warning: bool = False) -> None:
        """Tell that something happened to the node's GPUs."""
        ...


class MonitorObserver(Protocol):
    """Who counts (metrics)."""

    def inventory_read(self, *, healthy: int, unhealthy: int, problems: int, whole: bool) -> None:
        """Note what a reading saw; `whole` is false if it failed altogether."""
        ...

    def xid(self, xid: int) -> None:
        """Note an XID error."""
        ...


class Monitor:
    """Keeps the current Snapshot. `resync` is how often, in seconds, it reads without being told to.

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
    ) -> None:
        self._inventory = inventory
        self._tell = tell
        self._observer = observer
        self._resync = resync
        self._owners = owners
        self._dynamic_mig = dynamic_mig
        self._owning = asyncio.Lock()
        self._snapshot: Snapshot | None = None
        self._subscribers: list[Callable[[Snapshot], None]] = []
        self._wanted = asyncio.Event()
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

    async def run(self) -> None:
        """Watch until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._listen())
            tasks.create_task(self._keep_reading())

    # --- reading -----------------------------------------------------------------------------------------------------

    async def _keep_reading(self) -> None:
        pause = _FIRST_PAUSE
        while True:
            self._wanted.clear()
            found = await self._read()
            async with self._owning:
                self._adopt(replace(found, ownership=await self._ownership(found)))
            failed = bool(self.missing())
            pause = min(pause * 2, _LONGEST_PAUSE) if failed else _FIRST_PAUSE
            await asyncio.gather(self._wait(pause if failed else self._resync), asyncio.sleep(_LEAST_GAP))

    async def reown(self) -> None:
        """Ask who has the GPUs, and publish the answer."""
        async with self._owning:
            ownership = await self._ownership(self.snapshot)
            if self._snapshot is not None:
                self._publish(replace(self._snapshot, ownership=ownership))

    async def _ownership(self, found: Snapshot) -> Mapping[str, Ownership]:
        return await self._owners(found.gpus) if self._owners is not None and found.gpus else found.ownership

    async def _wait(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._wanted.wait()
        except TimeoutError:
            pass

    async def _read(self) -> Snapshot:
        found = await self._read_once()
        if _is_worse(self.snapshot, found):
            await asyncio.sleep(_SECOND_TRY)
            found = await self._read_once()
        return found

    async def _read_once(self) -> Snapshot:
        try:
            reading = await self._inventory.read()
        except InventoryError as exc:
            return unavailable(self._snapshot, str(exc))
        except Exception as exc:
            log.exception("internal error while reading the GPUs")
            return unavailable(self._snapshot, f"internal error: {exc!r}")
        return advance(self._snapshot, reading, self._dynamic_mig)

    def _adopt(self, found: Snapshot) -> None:
        unhealthy = len(found.health)
        self._observer.inventory_read(
            healthy=len(found.gpus) - unhealthy,
            unhealthy=unhealthy,
            problems=len(found.problems),
            whole=not found.unavailable,
        )
        self._publish(found)

    def _publish(self, found: Snapshot) -> None:
        before = self._snapshot
        if found == before:
            return
        self._snapshot = found
        self._announce(before or Snapshot(), found)
        self.ready.set()
        for callback in self._subscribers:
            _call(callback, found)

    # --- telling -----------------------------------------------------------------------------------------------------

    def _announce(self, before: Snapshot, found: Snapshot) -> None:
        if not before.gpus:
            log.info("found %d GPUs: %s", len(found.gpus), _products(found.gpus) or "none")
            self._announce_choice(found)
        for problem in _without(found.problems, before.problems):
            self._warn("InventoryProblem", f"{problem.object}: {problem.message}")
        for problem in _without(before.problems, found.problems):
            if all(problem.object != other.object for other in found.problems):
                log.info("%s answers again", problem.object)
        self._announce_gpus(before, found)

    def _announce_choice(self, found: Snapshot) -> None:
        chosen = [gpu for gpu in found.gpus if gpu.uuid in found.dynamic_mig]
        able = [gpu.name for gpu in chosen if gpu.mig is not None]
        if able:
            log.info("partitioned for claims: %s", ", ".join(able))
        if len(able) < len(chosen):
            log.info("without MIG: %s", ", ".join(gpu.name for gpu in chosen if gpu.mig is None))
        for word in self._dynamic_mig.unmatched(found.gpus) if found.gpus else ():
            log.warning("dynamic_mig: %r means no GPU of this node", word)

    def _announce_gpus(self, before: Snapshot, found: Snapshot) -> None:
        known = {gpu.uuid for gpu in before.gpus}
        now = {gpu.uuid for gpu in found.gpus}
        for gpu in before.gpus:
            if gpu.uuid not in now:
                self._warn("GPUReplaced", f"{gpu.name} ({gpu.uuid}) is gone, another GPU has its name")
        for gpu in found.gpus:
            was, now_is = before.health_of(gpu.uuid), found.health_of(gpu.uuid)
            if known and gpu.uuid not in known:
                self._say("GPUAppeared", f"{gpu.name} ({gpu.uuid}, {gpu.product}) appeared")
            if was.healthy and not now_is.healthy:
                self._warn("GPUUnhealthy", f"{gpu.name} ({gpu.uuid}): {now_is.reason}")
            elif not was.healthy and now_is.healthy:
                self._say("GPURecovered", f"{gpu.name} ({gpu.uuid}) is healthy again")

    def _warn(self, reason: str, message: str) -> None:
        log.warning("%s: %s", reason, message)
        self._tell.emit(reason, message, warning=True)

    def _say(self, reason: str, message: str) -> None:
        log.info("%s: %s", reason, message)
        self._tell.emit(reason, message)

    # --- events ------------------------------------------------------------------------------------------------------

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
        if isinstance(event, Xid):
            self._observer.xid(event.xid)
            self._warn("XidError", f"{self._name(event.gpu_uuid)} reports XID {event.xid}{_instances(event)}")
        else:
            log.info("reading the GPUs again: %s", event.why)
        self._wanted.set()

    def _name(self, gpu_uuid: str) -> str:
        name = next((gpu.name for gpu in self.snapshot.gpus if gpu.uuid == gpu_uuid), "an unknown GPU")
        return f"{name} ({gpu_uuid})"


def advance(before: Snapshot | None, reading: Reading, dynamic_mig: GpuChoice = NO_GPUS) -> Snapshot:
    """Return what is known after a reading. Pure.

    A known GPU that is missing is lost; it is given up only when another GPU has taken its name.
    """
    taken = {gpu.uuid for gpu in reading.gpus} | {gpu.name for gpu in reading.gpus}
    known = before.gpus if before is not None else ()
    lost = [gpu for gpu in known if gpu.uuid not in taken and gpu.name not in taken]
    gpus = tuple(sorted((*reading.gpus, *lost), key=_identity))
    return Snapshot(
        versions=reading.versions,
        gpus=gpus,
        health=MappingProxyType({gpu.uuid: _lost(gpu, reading.problems) for gpu in sorted(lost, key=_identity)}),
        problems=reading.problems,
        dynamic_mig=partitioned(before, gpus, dynamic_mig),
    )


def partitioned(before: Snapshot | None, gpus: Iterable[Gpu], choice: GpuChoice) -> frozenset[str]:
    """Return the UUIDs of the GPUs that are partitioned for claims. Pure.

    A GPU is chosen when it is first seen: if another is lost, NVML renumbers the rest, and an index means a neighbour.
    """
    known = {gpu.uuid for gpu in before.gpus} if before is not None else set()
    kept = before.dynamic_mig if before is not None else frozenset()
    return frozenset(gpu.uuid for gpu in gpus if gpu.uuid in kept or (gpu.uuid not in known and choice.names(gpu)))


def unavailable(before: Snapshot | None, why: str) -> Snapshot:
    """Return what is known when the inventory as a whole can't be read. Pure.

    What was known is lost; where nothing was known, nothing is offered (H6).
    """
    known = before or Snapshot()
    health = {gpu.uuid: replace(LOST, reason=why) for gpu in known.gpus}
    return replace(known, health=MappingProxyType(health), problems=(Problem(object=WHOLE_INVENTORY, message=why),))


def _identity(gpu: Gpu) -> tuple[bool, int, str]:
    return (gpu.minor is None, gpu.minor or 0, gpu.uuid)


def _lost(gpu: Gpu, problems: Iterable[Problem]) -> Health:
    why = next((problem.message for problem in problems if problem.object in (gpu.uuid, gpu.name)), LOST.reason)
    return replace(LOST, reason=why)


def _is_worse(before: Snapshot, found: Snapshot) -> bool:
    """Say whether something fails that did not fail before."""
    failing = {problem.object for problem in before.problems}
    return any(problem.object not in failing for problem in found.problems) or bool(
        found.health.keys() - before.health.keys()
    )


def _without(problems: Iterable[Problem], others: tuple[Problem, ...]) -> list[Problem]:
    return [problem for problem in problems if problem not in others]


def _instances(event: Xid) -> str:
    gi, ci = event.gpu_instance_id, event.compute_instance_id
    return f" in GPU instance {gi}, compute instance {ci}" if gi is not None else ""


def _products(gpus: tuple[Gpu, ...]) -> str:
    products = dict.fromkeys(gpu.product for gpu in gpus)
    return ", ".join(f"{sum(gpu.product == product for gpu in gpus)} {product}" for product in products)


def _call(callback: Callable[[Snapshot], None], snapshot: Snapshot) -> None:
    try:
        callback(snapshot)
    except Exception:
        log.exception("internal error: %r refused a snapshot", callback)
