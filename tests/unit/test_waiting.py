from __future__ import annotations

import asyncio

import pytest

from driver.waiting import happens


async def test_what_has_happened_is_not_waited_for() -> None:
    event = asyncio.Event()
    event.set()
    assert await happens(event, 0)


async def test_what_does_not_happen_in_time() -> None:
    assert not await happens(asyncio.Event(), 0.001)


@pytest.mark.parametrize("seconds", [None, 30.0])
async def test_what_happens_meanwhile(seconds: float | None) -> None:
    event = asyncio.Event()
    asyncio.get_running_loop().call_soon(event.set)
    assert await happens(event, seconds)


async def test_the_end_of_the_callers_own_time_is_passed_on() -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.001):
            await happens(asyncio.Event(), 30.0)


async def test_a_cancellation_is_passed_on() -> None:
    waiting = asyncio.create_task(happens(asyncio.Event(), None))
    asyncio.get_running_loop().call_soon(waiting.cancel)
    with pytest.raises(asyncio.CancelledError):
        await waiting
