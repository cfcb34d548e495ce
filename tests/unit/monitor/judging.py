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
from tests.unit.monitor.monitors import GPUS, Ears, watching

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from driver.model.snapshot import Snapshot
    from driver.monitor.monitor import Monitor

WELL = HealthReport(recovery=Recovery.NONE)
NEEDED = HealthReport(recovery=Recovery.RESET)
MIG = replace(build_gpus(parse_node("h100@mig=1g.10gb*2", load_products()), "n")[0], index=4, minor=4)
ALL_WELL = dict.fromkeys([gpu.uuid for gpu in GPUS], WELL)


@contextlib.asynccontextmanager
async def judging(inventory: Any, ears: Ears, **settings: Any) -> AsyncIterator[tuple[Monitor, list[Snapshot]]]:
    """A monitor with such charts that has given its first verdict."""
    async with watching(inventory, ears, charts=Charts(**settings)) as (monitor, seen):
        async with asyncio.timeout(30):
            await monitor.ready.wait()
        yield monitor, seen


def taints(monitor: Monitor, uuid: str) -> list[str]:
    return [f"{one.key.partition('/')[2]}={one.value}" for one in monitor.snapshot.health_of(uuid).taints]
