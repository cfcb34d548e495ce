"""Four GPUs, an inventory that answers as a script says, and ears for what a monitor tells."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from driver.inventory.base import InventoryEvent, Reading
from driver.model.device import Gpu
from driver.model.snapshot import DriverVersions, Problem
from driver.monitor.monitor import Monitor

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from driver.model.health import Health
    from driver.model.health_facts import HealthReport
    from driver.model.snapshot import Snapshot

VERSIONS = DriverVersions(driver="580.105.08", cuda="13.0")
GPUS = tuple(Gpu(uuid=f"GPU-{n}", index=n, minor=n, product="H100") for n in range(4))


def reading(*gpus: Gpu, problems: tuple[Problem, ...] = ()) -> Reading:
    return Reading(versions=VERSIONS, gpus=gpus, problems=problems)


def without(index: int) -> Reading:
    """GPU `index` of four has gone, and NVML has renumbered those after it."""
    left = [gpu for gpu in GPUS if gpu.index != index]
    return reading(*(replace(gpu, index=position) for position, gpu in enumerate(left)))


@contextlib.asynccontextmanager
async def watching(inventory: Any, ears: Ears, **settings: Any) -> AsyncIterator[tuple[Monitor, list[Snapshot]]]:
    """A monitor that runs, and the Snapshots that it has published."""
    monitor = Monitor(inventory, tell=ears, observer=ears, **settings)
    seen: list[Snapshot] = []
    monitor.subscribe(seen.append)
    task = asyncio.create_task(monitor.run())
    try:
        yield monitor, seen
        assert not task.done(), task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@dataclass
class ScriptedInventory:
    """Answers with what a test says: readings, errors, or a wait; the last one stays."""

    script: list[Any]
    fake: bool = True
    reads: int = 0
    queue: asyncio.Queue[InventoryEvent | Exception | None] = field(default_factory=asyncio.Queue)
    checks: list[Any] = field(default_factory=lambda: [{}])
    monitored: frozenset[str] | None = None
    checked: int = 0

    async def read(self) -> Reading:
        self.reads += 1
        answer = self.script.pop(0) if len(self.script) > 1 else self.script[0]
        if isinstance(answer, Exception):
            raise answer
        assert isinstance(answer, Reading)
        return answer

    async def health_facts(self) -> dict[str, HealthReport]:
        self.checked += 1
        answer = self.checks.pop(0) if len(self.checks) > 1 else self.checks[0]
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, asyncio.Event):
            await answer.wait()
            return {}
        assert isinstance(answer, dict)
        return answer

    async def events(self) -> AsyncIterator[InventoryEvent]:
        while (event := await self.queue.get()) is not None:
            if isinstance(event, Exception):
                raise event
            yield event

    async def aclose(self) -> None:
        self.queue.put_nowait(None)


@dataclass
class Ears:
    """What the monitor told."""

    told: list[tuple[str, str, bool]] = field(default_factory=list)
    counts: list[dict[str, Any]] = field(default_factory=list)
    xids: list[int] = field(default_factory=list)
    judged: list[dict[tuple[str, str], Health]] = field(default_factory=list)

    def emit(self, reason: str, message: str, *, warning: bool = False) -> None:
        self.told.append((reason, message, warning))

    def inventory_read(self, **counts: Any) -> None:
        self.counts.append(counts)

    def xid(self, xid: int, gpu: str) -> None:
        self.xids.append(xid)

    def health_judged(self, health: Any) -> None:
        self.judged.append(dict(health))

    def reasons(self) -> list[str]:
        return [reason for reason, _, _ in self.told]
