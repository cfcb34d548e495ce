"""One thread for all calls, with a time limit for those who wait."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

import pytest

from driver.errors import InventoryError
from driver.inventory.nvml_thread import NvmlThread

if TYPE_CHECKING:
    from collections.abc import Iterator

LONG = 20.0
SHORT = 0.05


class Returns:
    """Notes that a stuck call came back."""

    def __init__(self) -> None:
        self.returned = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def __call__(self) -> None:
        self._loop.call_soon_threadsafe(self.returned.set)


@pytest.fixture
async def returns() -> Returns:
    return Returns()


@pytest.fixture
def thread(returns: Returns) -> Iterator[NvmlThread]:
    thread = NvmlThread(on_return=returns)
    yield thread
    thread.close()


async def test_all_jobs_run_on_one_thread_in_order(thread: NvmlThread) -> None:
    order: list[int] = []

    def job(number: int) -> int:
        order.append(number)
        return threading.get_ident()

    idents = await asyncio.gather(
        *(thread.call(lambda n=number: job(n), limit=LONG, what="a job") for number in range(20))  # type: ignore[misc]
    )
    assert len(set(idents)) == 1
    assert threading.get_ident() not in idents
    assert order == list(range(20))


async def test_an_error_of_the_job_is_the_callers(thread: NvmlThread) -> None:
    with pytest.raises(ZeroDivisionError):
        await thread.call(lambda: 1 // 0, limit=LONG, what="dividing")
    assert await thread.call(lambda: 1, limit=LONG, what="counting") == 1


async def test_H8_a_stuck_call_is_given_up_and_the_next_fails_at_once(thread: NvmlThread, returns: Returns) -> None:
    gate = threading.Event()
    with pytest.raises(InventoryError, match=r"within 0.05 s: the first"):
        await thread.call(gate.wait, limit=SHORT, what="the first")
    assert thread.stuck
    with pytest.raises(InventoryError, match="the first has not come back; the second was not tried"):
        await thread.call(lambda: 1, limit=LONG, what="the second")
    gate.set()
    async with asyncio.timeout(LONG):
        await returns.returned.wait()
    assert not thread.stuck
    assert await thread.call(lambda: 3, limit=LONG, what="the third") == 3


async def test_a_queue_that_moves_is_waited_for(thread: NvmlThread, returns: Returns) -> None:
    """Eight GPUs that change MIG mode, one after another, must not look like a driver that hangs."""
    gate = threading.Event()
    first = asyncio.create_task(thread.call(gate.wait, limit=LONG, what="the first"))
    await asyncio.sleep(0)
    second = asyncio.create_task(thread.call(lambda: "ran", limit=SHORT, what="the second"))
    await asyncio.sleep(3 * SHORT)  # the second's limit, if it began at once
    gate.set()
    assert await first
    assert await second == "ran"
    assert not returns.returned.is_set()


async def test_what_waits_behind_a_stuck_call_is_given_up_with_it_and_never_run(
    thread: NvmlThread, returns: Returns
) -> None:
    gate = threading.Event()
    ran: list[str] = []
    first = asyncio.create_task(thread.call(gate.wait, limit=SHORT, what="the first"))
    await asyncio.sleep(0)
    with pytest.raises(InventoryError, match="the first has not come back; the second was not tried"):
        await thread.call(lambda: ran.append("second"), limit=LONG, what="the second")
    with pytest.raises(InventoryError, match=r"within 0.05 s: the first"):
        await first
    gate.set()
    async with asyncio.timeout(LONG):
        await returns.returned.wait()
    await thread.call(lambda: None, limit=LONG, what="the third")
    assert ran == []


async def test_a_stuck_call_is_found_though_its_caller_has_gone(thread: NvmlThread, returns: Returns) -> None:
    gate = threading.Event()
    began = threading.Event()

    def first() -> None:
        began.set()
        gate.wait()

    caller = asyncio.create_task(thread.call(first, limit=SHORT, what="the first"))
    await asyncio.to_thread(began.wait, LONG)
    caller.cancel()
    with pytest.raises(InventoryError, match="the first has not come back; the second was not tried"):
        await thread.call(lambda: None, limit=LONG, what="the second")
    gate.set()
    async with asyncio.timeout(LONG):
        await returns.returned.wait()


async def test_a_limit_begins_with_the_turn(thread: NvmlThread, returns: Returns) -> None:
    first_gate, second_gate = threading.Event(), threading.Event()
    first = asyncio.create_task(thread.call(first_gate.wait, limit=LONG, what="the first"))
    await asyncio.sleep(0)
    second = asyncio.create_task(thread.call(second_gate.wait, limit=SHORT, what="the second"))
    await asyncio.sleep(0)
    first_gate.set()
    assert await first
    with pytest.raises(InventoryError, match=r"within 0.05 s: the second"):
        await second
    second_gate.set()
    async with asyncio.timeout(LONG):
        await returns.returned.wait()


async def test_a_cancelled_caller_leaves_the_thread_usable(thread: NvmlThread) -> None:
    gate = threading.Event()
    caller = asyncio.create_task(thread.call(gate.wait, limit=LONG, what="the first"))
    await asyncio.sleep(0)
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    gate.set()
    assert await thread.call(lambda: 1, limit=LONG, what="the next") == 1


async def test_a_stuck_call_that_fails_late_is_forgotten(thread: NvmlThread, returns: Returns) -> None:
    gate = threading.Event()

    def late() -> None:
        gate.wait()
        raise ValueError("nobody waits for this")

    with pytest.raises(InventoryError):
        await thread.call(late, limit=SHORT, what="the first")
    gate.set()
    async with asyncio.timeout(LONG):
        await returns.returned.wait()
    assert await thread.call(lambda: 1, limit=LONG, what="the next") == 1


async def test_a_closed_thread_takes_no_more(thread: NvmlThread) -> None:
    assert await thread.call(lambda: 1, limit=LONG, what="the first") == 1
    thread.close()
    with pytest.raises(InventoryError, match="closed"):
        await thread.call(lambda: 1, limit=LONG, what="the second")


async def test_no_thread_before_the_first_job(returns: Returns) -> None:
    before = threading.active_count()
    NvmlThread(on_return=returns).close()
    assert threading.active_count() == before
