"""A queue of inventory events, filled from any thread, emptied on the event loop; equal events wait once."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from driver.inventory.base import InventoryEvent


class EventBox:
    """Bounded by what is distinct: one XID reported a thousand times is one event until it is read."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._events: dict[InventoryEvent, None] = {}
        self._filled = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False

    def put(self, event: InventoryEvent) -> None:
        """Add an event, on any thread."""
        with self._lock:
            self._events[event] = None
        self._wake()

    async def get(self) -> InventoryEvent | None:
        """Return the oldest event; wait for one; None once the box is closed. For one reader."""
        self._loop = asyncio.get_running_loop()
        while True:
            self._filled.clear()
            with self._lock:
                if self._closed:
                    return None
                if self._events:
                    event = next(iter(self._events))
                    del self._events[event]
                    return event
            await self._filled.wait()

    def close(self) -> None:
        """End the reader; what is left is dropped."""
        with self._lock:
            self._closed = True
        self._wake()

    def _wake(self) -> None:
        loop = self._loop
        if loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(self._filled.set)
