from __future__ import annotations

import asyncio
import threading

import pytest

from driver.claims.worker import Worker


@pytest.fixture
def worker():
    one = Worker("tried")
    yield one
    one.stop()


async def test_functions_run_in_order_on_one_thread_of_that_name(worker: Worker) -> None:
    order: list[int] = []

    def note(number: int) -> str:
        order.append(number)
        return threading.current_thread().name

    names = await asyncio.gather(*(worker.run(lambda number=number: note(number)) for number in range(20)))
    assert order == list(range(20))
    assert set(names) == {"tried"}


async def test_what_a_function_raises_comes_back_and_the_next_one_runs(worker: Worker) -> None:
    with pytest.raises(ZeroDivisionError):
        await worker.run(lambda: 1 // 0)
    assert await worker.run(lambda: 7) == 7


async def test_a_waiter_that_was_cancelled_costs_nobody_else_anything(worker: Worker) -> None:
    gate, entered = threading.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def hang() -> None:
        loop.call_soon_threadsafe(entered.set)
        gate.wait(10)

    waiter = asyncio.create_task(worker.run(hang))
    await entered.wait()
    waiter.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiter
    gate.set()
    assert await worker.run(lambda: "next") == "next"


def test_a_loop_that_is_closed_by_the_time_of_the_answer_is_no_failure() -> None:
    worker, gate, began = Worker("tried"), threading.Event(), threading.Event()
    failures: list[object] = []
    former = threading.excepthook
    threading.excepthook = failures.append

    def hang() -> None:
        began.set()
        gate.wait(10)

    async def leave() -> None:
        worker.call(hang, lambda _: None, lambda _: None)

    try:
        asyncio.run(leave())
        assert began.wait(10)
        gate.set()

        async def again() -> int:
            return await worker.run(lambda: 3)

        assert asyncio.run(again()) == 3
    finally:
        threading.excepthook = former
        worker.stop()
    assert failures == []


async def test_stop_lets_what_was_given_end(worker: Worker) -> None:
    running = asyncio.gather(*(worker.run(lambda number=number: number) for number in range(5)))
    await asyncio.sleep(0)
    worker.stop()
    assert await running == list(range(5))
