"""Waiting for a new MPS control daemon: by asking it, until it answers, ends, or takes too long."""

from __future__ import annotations

import asyncio
import logging
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING

from asyncinotify import Inotify, Mask

from driver.errors import GpuToolError

if TYPE_CHECKING:
    from pathlib import Path

    from driver.sharing.base import MpsSpec
    from driver.sharing.daemon_files import DaemonFiles
    from driver.sharing.mps_client import MpsClient
    from driver.sharing.process import Mortal

log = logging.getLogger(__name__)

_PAUSE = 0.1  # seconds between questions if nothing happens in the pipe directory
_LEAST = 1.0  # seconds that a question is given, however late it is


async def configure_when_ready(
    client: MpsClient, files: DaemonFiles, process: Mortal, spec: MpsSpec, within: float
) -> None:
    """Give a daemon that was just started its limits, as soon as it listens, in `within` seconds or little more.

    :raises DeviceNotReadyError: the control program went away.
    :raises GpuToolError: the daemon ended, or does not answer in time.
    :raises SettingNotSupportedError: it refuses a limit.
    """
    until = _now() + within
    with _Changes(files.pipe) as changes:
        while True:
            await process.unless_ended(changes.next())  # first, too: a daemon that just started has no socket yet
            error: GpuToolError | None = None
            try:
                await process.unless_ended(client.configure(spec, limit=max(_LEAST, until - _now())))
            except GpuToolError as exc:
                error = exc
            if not process.alive:
                raise GpuToolError(f"{client.name} {process.ending()} at its start: {files.last_words()}")
            if error is None:
                return
            if _now() > until:
                raise GpuToolError(f"{client.name} does not answer {within:g} s after its start: {error}") from error


class _Changes:
    """Tells when a file comes in a directory, so that there is no need to ask until then; or after a pause."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._inotify: Inotify | None = None
        self._stack = ExitStack()

    def __enter__(self) -> _Changes:
        try:
            self._inotify = self._stack.enter_context(Inotify())
            self._inotify.add_watch(self._directory, Mask.CREATE | Mask.MOVED_TO)
        except OSError as exc:  # the node is out of inotify instances: the pause has to do
            log.debug("no inotify for %s: %s", self._directory, exc)
            self._inotify = None
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    async def next(self) -> None:
        """Wait until a file comes, for `_PAUSE` seconds at most."""
        if self._inotify is None:
            await asyncio.sleep(_PAUSE)
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(_PAUSE):
                await self._inotify.get()


def _now() -> float:
    return asyncio.get_running_loop().time()
