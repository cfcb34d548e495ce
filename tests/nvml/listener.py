"""Waits for an inventory's events in tests."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from driver.inventory.base import InventoryEvent


class Listener:
    """Collects events; `until` returns the first new one that fits."""

    def __init__(self, events: AsyncIterator[InventoryEvent]) -> None:
        self._events = events
        self._task = asyncio.create_task(self._collect())
        self._seen: asyncio.Queue[InventoryEvent] = asyncio.Queue()

    async def until(self, fits: Callable[[InventoryEvent], bool]) -> InventoryEvent:
        async with asyncio.timeout(20):
            while not fits(event := await self._seen.get()):
                pass
            return event

    async def ended(self) -> None:
        async with asyncio.timeout(20):
            await self._task

    async def _collect(self) -> None:
        async for event in self._events:
            self._seen.put_nowait(event)
