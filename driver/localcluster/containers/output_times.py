"""When a container wrote what is in its log: kept beside the log, which has its output as it is.

Containers write straight into their logs' files, so their output costs nothing and outlives us. A watch on these files
notes how long they were at which moment; that is precise to some milliseconds, and in a burst of output a few lines may
share a time.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import struct
from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING, Final

from asyncinotify import Inotify, Mask

if TYPE_CHECKING:
    from pathlib import Path

_log = logging.getLogger(__name__)

_ENTRY: Final = struct.Struct("<qq")  # nanoseconds since 1970, bytes that the log had
_PAUSE: Final = 0.002  # seconds: what a talkative container writes meanwhile is noted at once


def times_path(log: Path) -> Path:
    """Return where the times of a log are."""
    return log.with_name(f"{log.name}.times")


class TimeKeeper:
    """Notes the times of all logs that it is told of, until these are removed or it is closed."""

    def __init__(self) -> None:
        self._inotify: Inotify | None = None
        self._task: asyncio.Task[None] | None = None

    def follow(self, log: Path) -> None:
        """Note the times of a log, which exists."""
        try:
            if self._inotify is None:
                self._inotify = Inotify()
                self._task = asyncio.create_task(self._run(self._inotify))
            self._inotify.add_watch(log, Mask.MODIFY)
        except OSError as exc:  # too many watches on this machine
            _log.warning("the lines of %s get no times of their own: %s", log, exc)

    async def aclose(self) -> None:
        """Stop."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._inotify is not None:
            self._inotify.close()
        self._inotify = self._task = None

    async def _run(self, inotify: Inotify) -> None:
        before = None
        async for event in inotify:
            if event.path is None or not event.mask & Mask.MODIFY:
                continue
            if event.path == before:
                await asyncio.sleep(_PAUSE)
            before = event.path
            with contextlib.suppress(OSError):  # it is removed just now
                _note(before)


def _note(log: Path) -> None:
    now = log.stat()
    with times_path(log).open("ab") as file:
        file.write(_ENTRY.pack(now.st_mtime_ns, now.st_size))


class OutputTimes:
    """The times of one log, read as far as they are needed. All in nanoseconds since 1970, and in bytes."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._times: list[int] = []
        self._ends: list[int] = []
        self._read = 0

    def at(self, offset: int) -> int:
        """Return when the byte at an offset was written; what has not been noted yet was written last."""
        if not self._ends or self._ends[-1] <= offset:
            self._read_on()
        found = bisect_right(self._ends, offset)
        return self._times[found] if found < len(self._times) else self._log.stat().st_mtime_ns

    def since(self, moment: int) -> int:
        """Return the offset of the first byte that was written at a moment or later."""
        self._read_on()
        found = bisect_left(self._times, moment)
        if found < len(self._times):
            return self._ends[found - 1] if found else 0
        now, noted = self._log.stat(), self._ends[-1] if self._ends else 0
        return noted if now.st_mtime_ns >= moment else now.st_size

    def _read_on(self) -> None:
        try:
            with times_path(self._log).open("rb") as file:
                file.seek(self._read)
                data = file.read()
        except FileNotFoundError:
            return
        whole = len(data) - len(data) % _ENTRY.size
        self._read += whole
        for time, end in _ENTRY.iter_unpack(data[:whole]):
            self._times.append(time)
            self._ends.append(end)
