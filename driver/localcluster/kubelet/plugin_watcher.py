"""Watch a directory for registration sockets; one task per socket registers it and tries again until it is gone."""

from __future__ import annotations

import asyncio
import logging
import stat
from typing import TYPE_CHECKING, Protocol

from asyncinotify import Inotify, Mask

from driver.errors import DriverError

if TYPE_CHECKING:
    from pathlib import Path

    from driver.localcluster.kubelet.times import Times

_log = logging.getLogger(__name__)


class SocketHandler(Protocol):
    """Who registers plugins."""

    async def register(self, socket: Path) -> None:
        """Register the plugin behind a socket; called again after an error, from the beginning.

        :raises DriverError: it did not work this time.
        """

    async def deregister(self, socket: Path) -> None:
        """Forget the plugin behind a socket that is gone, if it was registered."""


class PluginWatcher:
    """Calls the handler for each socket of a directory; a socket made anew is registered anew."""

    def __init__(self, directory: Path, handler: SocketHandler, times: Times) -> None:
        self._directory = directory
        self._handler = handler
        self._times = times
        self._tasks: dict[Path, asyncio.Task[None]] = {}

    async def run(self, ready: asyncio.Event) -> None:
        """Watch until cancelled; `ready` is set when no new socket can be missed any more."""
        try:
            with Inotify() as inotify:
                inotify.add_watch(self._directory, Mask.CREATE | Mask.MOVED_TO | Mask.DELETE | Mask.MOVED_FROM)
                for path in sorted(self._directory.iterdir()):
                    await self._appeared(path)
                ready.set()
                async for event in inotify:
                    if event.path is None:
                        continue
                    if event.mask & (Mask.CREATE | Mask.MOVED_TO):
                        await self._appeared(event.path)
                    else:
                        await self._vanished(event.path)
        finally:
            for task in self._tasks.values():
                task.cancel()
            await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    async def _appeared(self, path: Path) -> None:
        if path.name.startswith(".") or not _is_socket(path):
            return
        await self._vanished(path)
        self._tasks[path] = asyncio.create_task(self._register(path))

    async def _vanished(self, path: Path) -> None:
        task = self._tasks.pop(path, None)
        if task is None:
            return
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await self._handler.deregister(path)

    async def _register(self, path: Path) -> None:
        pause = self._times.register_retry
        while True:
            try:
                await self._handler.register(path)
            except DriverError as exc:
                _log.warning("%s: %s; next try in %.1f s", path.name, exc, pause)
            else:
                return
            await asyncio.sleep(pause)
            pause = min(pause * 2, self._times.register_retry_max)


def _is_socket(path: Path) -> bool:
    try:
        return stat.S_ISSOCK(path.stat().st_mode)
    except OSError:
        return False
