"""What tests ask of inventories on top of the fake NVML library."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

from driver.errors import InventoryError
from driver.inventory.base import Changed

if TYPE_CHECKING:
    from collections.abc import Callable, Set

    from driver.inventory.base import InventoryEvent, Reading
    from driver.inventory.nvml import NvmlInventory
    from driver.model.device import Gpu
    from tests.nvml.listener import Listener

    Open = Callable[..., NvmlInventory]
    Listen = Callable[[NvmlInventory], Listener]

NEVER = 3600.0
LIMIT = 0.5
"""Seconds; short for a call that hangs."""


def ordered(gpu: Gpu) -> Gpu:
    """Put MIG profiles and instances into one order."""
    if gpu.mig is None:
        return gpu
    profiles = tuple(sorted(gpu.mig.profiles, key=lambda one: one.index))
    instances = tuple(sorted(gpu.mig.instances, key=lambda one: one.uuid))
    return replace(gpu, mig=replace(gpu.mig, profiles=profiles, instances=instances))


def assert_same(found: tuple[Gpu, ...], expected: tuple[Gpu, ...]) -> None:
    assert [ordered(gpu) for gpu in found] == [ordered(gpu) for gpu in expected]


def says(text: str) -> Callable[[InventoryEvent], bool]:
    return lambda event: isinstance(event, Changed) and text in event.why


async def read_again(inventory: NvmlInventory) -> Reading:
    """Read until it works: on a busy machine a sound call may exceed the short limit, too."""
    async with asyncio.timeout(20):
        while True:
            try:
                return await inventory.read()
            except InventoryError:
                await asyncio.sleep(0)


async def until_monitored(inventory: NvmlInventory, uuids: Set[str]) -> None:
    async with asyncio.timeout(20):
        while inventory.monitored != uuids:
            await inventory.read()
