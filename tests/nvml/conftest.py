"""The fake NVML library and an inventory on top of it. Skipped where there is no C compiler."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from driver.inventory.nvml import NvmlInventory
from tests.nvml.fake_nvml import COMPILER, FakeNvml, threads_ended
from tests.nvml.listener import Listener

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path


@pytest.fixture(autouse=True)
def _compiler() -> None:
    if COMPILER is None:
        pytest.skip("no C compiler (cc) for the fake NVML library")


@pytest.fixture
def nvml(tmp_path: Path) -> FakeNvml:
    """A driver root that has no library yet."""
    return FakeNvml(tmp_path)


@pytest.fixture
async def open_inventory(nvml: FakeNvml) -> AsyncIterator[Callable[..., NvmlInventory]]:
    """Makes inventories of the fake driver root, and closes them, the faults switched off."""
    opened: list[NvmlInventory] = []

    def make(**settings: float) -> NvmlInventory:
        opened.append(NvmlInventory(nvml.root, sys_root=nvml.sys, **settings))
        return opened[-1]

    yield make
    if nvml.library.parent.exists():
        nvml.control()
    for inventory in opened:
        async with asyncio.timeout(10):
            await inventory.aclose()
    await threads_ended()


@pytest.fixture
def inventory(open_inventory: Callable[..., NvmlInventory]) -> NvmlInventory:
    """An inventory with time limits that only a hanging machine exceeds."""
    return open_inventory()


@pytest.fixture
async def listen() -> AsyncIterator[Callable[[NvmlInventory], Listener]]:
    """Starts listening to an inventory, which the test closes, or this fixture."""
    inventories: list[tuple[NvmlInventory, Listener]] = []

    def start(inventory: NvmlInventory) -> Listener:
        inventories.append((inventory, Listener(inventory.events())))
        return inventories[-1][1]

    yield start
    for inventory, listener in inventories:
        async with asyncio.timeout(10):
            await inventory.aclose()
        await listener.ended()
