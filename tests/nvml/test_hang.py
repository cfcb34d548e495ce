"""Calls into the driver that don't return (H8)."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

import pytest

from driver.errors import InventoryError
from tests.nvml.inventories import LIMIT, NEVER, assert_same, read_again, says, until_monitored

if TYPE_CHECKING:
    from tests.nvml.fake_nvml import FakeNvml
    from tests.nvml.inventories import Listen, Open


def nvml_threads() -> int:
    return sum(thread.name == "nvml" for thread in threading.enumerate())


@pytest.mark.parametrize("function", ["nvmlDeviceGetCount_v2", "nvmlDeviceGetMigMode"])
async def test_H8_a_call_that_hangs_costs_its_limit_then_nothing_and_recovers(
    nvml: FakeNvml, open_inventory: Open, listen: Listen, function: str
) -> None:
    nvml.install("h100:2")
    inventory = open_inventory(time_limit=LIMIT, recheck=NEVER)
    listener = listen(inventory)
    await until_monitored(inventory, {gpu.uuid for gpu in nvml.gpus})
    before = nvml_threads()
    nvml.control(f"hang {function} *")
    with pytest.raises(InventoryError, match="did not answer within"):
        await inventory.read()
    for _ in range(20):
        with pytest.raises(InventoryError, match=r"stuck.*was not tried"):
            await inventory.read()
    assert nvml_threads() == before
    nvml.control()
    await listener.until(says("answers again"))
    assert_same((await read_again(inventory)).gpus, nvml.gpus)


async def test_H8_an_initialisation_that_hangs(nvml: FakeNvml, open_inventory: Open, listen: Listen) -> None:
    nvml.install("h100").control("hang nvmlInitWithFlags *")
    inventory = open_inventory(time_limit=LIMIT, start_limit=LIMIT, recheck=NEVER)
    listener = listen(inventory)
    with pytest.raises(InventoryError):
        await inventory.read()
    nvml.control()
    await listener.until(says("NVML"))
    assert_same((await read_again(inventory)).gpus, nvml.gpus)


async def test_the_event_loop_goes_on_while_nvml_hangs(nvml: FakeNvml, open_inventory: Open) -> None:
    nvml.install("h100")
    inventory = open_inventory(start_limit=20.0)
    nvml.control("hang nvmlDeviceGetName *")
    reading = asyncio.create_task(inventory.read())
    while nvml_threads() == 0:
        await asyncio.sleep(0)
    assert not reading.done()
    nvml.control()
    assert_same((await reading).gpus, nvml.gpus)


async def test_closing_does_not_wait_for_a_stuck_thread(nvml: FakeNvml, open_inventory: Open) -> None:
    nvml.install("h100")
    inventory = open_inventory(time_limit=LIMIT)
    await inventory.read()
    nvml.control("hang nvmlDeviceGetName *")
    with pytest.raises(InventoryError):
        await inventory.read()
    async with asyncio.timeout(10):
        await inventory.aclose()
    nvml.control()


async def test_an_event_wait_that_never_ends_keeps_the_library_open_beside_the_next(
    nvml: FakeNvml, open_inventory: Open, listen: Listen
) -> None:
    nvml.install("h100")
    inventory = open_inventory(recheck=NEVER)
    listener = listen(inventory)
    await listener.until(says("can be used now"))
    nvml.control("hang nvmlEventSetWait_v2 *")
    nvml.install("l4")
    await listener.until(says("replaced"))
    assert_same((await inventory.read()).gpus, nvml.gpus)
