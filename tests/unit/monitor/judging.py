"""Reports of health, a GPU with MIG devices, and a monitor that judges what it is told of them."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from driver.inventory.fake_gpus import build_gpus
from driver.inventory.fake_spec import parse_node
from driver.inventory.profiles import load_products
from driver.model.health_facts import HealthReport, Recovery
from driver.monitor.charts import Charts
from driver.monitor.monitor import Monitor
from tests.unit.monitor.monitors import GPUS, Ears

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from driver.model.snapshot import Snapshot

WELL = HealthReport(recovery=Recovery.NONE)
NEEDED = HealthReport(recovery=Recovery.RESET)
MIG = replace(build_gpus(parse_node("h100@mig=1g.10gb*2", load_products()), "n")[0], index=4, minor=4)
ALL_WELL = dict.fromkeys([gpu.uuid for gpu in GPUS], WELL)


@contextlib.asynccontextmanager
async def watching(inventory: Any, ears: Ears, **settings: Any) -> AsyncIterator[tuple[Monitor, list[Snapshot]]]:
    charts = Charts(**settings)
    monitor = Monitor(inventory, tell=ears, observer=ears, charts=charts)
    seen: list[Snapshot] = []
    monitor.subscribe(seen.append)
    task = asyncio.create_task(monitor.run())
    try:
        async with asyncio.timeout(30):
            await monitor.ready.wait()
        yield monitor, seen
        assert not task.done(), task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def taints(monitor: Monitor, uuid: str) -> list[str]:
    return [f"{one.key.partition('/')[2]}={one.value}" for one in monitor.snapshot.health_of(uuid).taints]
