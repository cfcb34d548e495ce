"""Events from any thread to one reader."""

from __future__ import annotations

import asyncio
import threading

from driver.inventory.base import Changed, Xid
from driver.inventory.event_box import EventBox


async def test_in_order_and_each_distinct_event_once() -> None:
    box = EventBox()
    for _ in range(1000):
        box.put(Xid(gpu_uuid="GPU-a", xid=79))
        box.put(Changed(why="x"))
    assert await box.get() == Xid(gpu_uuid="GPU-a", xid=79)
    box.put(Xid(gpu_uuid="GPU-a", xid=79))
    assert await box.get() == Changed(why="x")
    assert await box.get() == Xid(gpu_uuid="GPU-a", xid=79)


async def test_a_reader_is_woken_from_another_thread() -> None:
    box = EventBox()
    reader = asyncio.create_task(box.get())
    await asyncio.sleep(0)
    threading.Thread(target=box.put, args=(Changed(why="x"),)).start()
    async with asyncio.timeout(20):
        assert await reader == Changed(why="x")


async def test_closing_ends_the_reader_for_good() -> None:
    box = EventBox()
    reader = asyncio.create_task(box.get())
    await asyncio.sleep(0)
    box.close()
    box.put(Changed(why="late"))
    async with asyncio.timeout(20):
        assert await reader is None
        assert await box.get() is None


def test_an_event_after_the_loop_has_gone_harms_nobody() -> None:
    box = EventBox()

    async def read() -> None:
        box.put(Changed(why="x"))
        await box.get()

    asyncio.run(read())
    box.put(Changed(why="late"))
