"""Waiting for something to happen, but not for ever."""

from __future__ import annotations

import asyncio


async def happens(event: asyncio.Event, seconds: float | None) -> bool:
    """Wait until an event is set, for so many seconds at most (None: for as long as it takes); say whether it is."""
    try:
        async with asyncio.timeout(seconds):
            return await event.wait()
    except TimeoutError:
        return False
