"""Watching the driver root for a library that appears, goes or is replaced.

inotify tells at once; it doesn't see mounts, so there is a slow look beside it.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from asyncinotify import Inotify, Mask

from driver.file_watch import until_quiet

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from driver.inventory.driver_root import DriverRoot

log = logging.getLogger(__name__)

_MASK = (
    Mask.CREATE | Mask.DELETE | Mask.MOVED_FROM | Mask.MOVED_TO | Mask.CLOSE_WRITE | Mask.ATTRIB
    | Mask.DELETE_SELF | Mask.MOVE_SELF | Mask.UNMOUNT | Mask.ONLYDIR
)  # fmt: skip
_ABOUT_ITSELF = Mask.DELETE_SELF | Mask.MOVE_SELF | Mask.UNMOUNT | Mask.Q_OVERFLOW | Mask.IGNORED
_QUIET = 0.1  # seconds without a further event: an installation writes many files


class LibraryWatch:
    """Calls back whenever the library may have changed, at the start, and every `interval` seconds."""

    def __init__(self, root: DriverRoot, interval: float) -> None:
        self._root = root
        self._interval = interval

    async def run(self, look: Callable[[], Awaitable[None]]) -> None:
        """Watch until cancelled. `look` is called with the watches already set, so that nothing falls between."""
        while True:
            try:
                with Inotify() as inotify:
                    self._round_begins(inotify)
                    await look()
                    await self._something(inotify)
            except OSError as exc:
                log.warning(
                    "The driver root %s can't be watched (%s); looking every %g s", self._root.path, exc, self._interval
                )
                await look()
                await asyncio.sleep(self._interval)

    def _round_begins(self, inotify: Inotify) -> None:
        self._names: set[str] = set()
        for directory, names in self._root.watched().items():
            inotify.add_watch(directory, _MASK)
            self._names |= names

    async def _something(self, inotify: Inotify) -> None:
        try:
            async with asyncio.timeout(self._interval):
                await self._relevant(inotify)
                await until_quiet(inotify, _QUIET)
        except TimeoutError:
            return

    async def _relevant(self, inotify: Inotify) -> None:
        async for event in inotify:
            name = str(event.name or "")
            if event.mask & _ABOUT_ITSELF or any(name.startswith(prefix) for prefix in self._names):
                return
