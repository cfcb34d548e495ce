"""Read a container's output, from the file that it writes to."""

from __future__ import annotations

import asyncio
import io
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from asyncinotify import Inotify, Mask

from driver.localcluster.containers.output_times import OutputTimes

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path
    from typing import BinaryIO

    from driver.localcluster.containers.process import Container

_CHUNK = 1 << 16
_SECOND = 1_000_000_000  # nanoseconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Which part of a log, and how: the last `tail` lines, what was written `since`, `limit` bytes of that."""

    tail: int | None = None
    since: datetime | None = None
    limit: int | None = None
    timestamps: bool = False


async def read_log(path: Path, part: Part, *, container: Container | None) -> AsyncIterator[bytes]:
    """Yield what is in the log; with a `container` follow it until that ends."""
    left = part.limit
    times = OutputTimes(path)
    with path.open("rb") as file:
        file.seek(_start(file, times, part))
        stamp = _Stamp(times, file.tell()) if part.timestamps else None
        async for data in _written(file, path, container):
            shown = stamp.lines(data) if stamp else data
            yield shown[:left]
            if left is not None:
                left -= len(shown[:left])
                if not left:
                    return


async def _written(file: BinaryIO, path: Path, container: Container | None) -> AsyncIterator[bytes]:
    """Yield what is in the file from its present place on."""
    with Inotify() as inotify:
        if container is not None:
            inotify.add_watch(path, Mask.MODIFY)
        while True:
            ended = container is None or not container.running
            while data := file.read(_CHUNK):
                yield data
            if ended or container is None:
                return
            await _change(inotify, container)


async def _change(inotify: Inotify, container: Container) -> None:
    """Wait until something was written or the container has ended."""
    written, ended = asyncio.ensure_future(inotify.get()), asyncio.ensure_future(container.wait())
    try:
        await asyncio.wait({written, ended}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (written, ended):
            task.cancel()
        await asyncio.gather(written, ended, return_exceptions=True)


def _start(file: BinaryIO, times: OutputTimes, part: Part) -> int:
    """Return where the wanted part begins: at the begin of a line."""
    if part.tail is None and part.since is None:
        return 0
    data = file.read()
    start = 0 if part.tail is None else _tail_offset(data, part.tail)
    if part.since is not None:
        start = max(start, _line_from(data, times.since(_nanoseconds(part.since))))
    return start


def _nanoseconds(moment: datetime) -> int:
    return int(moment.timestamp()) * _SECOND + moment.microsecond * 1000


def _line_from(data: bytes, offset: int) -> int:
    """Return where the first line begins that begins at an offset or after it."""
    return data.find(b"\n", offset - 1) + 1 or len(data) if offset else 0


def _tail_offset(data: bytes, lines: int) -> int:
    """Return where the last `lines` lines begin."""
    end = len(data) - 1 if data.endswith(b"\n") else len(data)
    for _ in range(lines):
        end = data.rfind(b"\n", 0, end)
        if end < 0:
            return 0
    return end + 1 if lines else len(data)


class _Stamp:
    """Puts the time before each line of what comes piece by piece."""

    def __init__(self, times: OutputTimes, offset: int) -> None:
        self._times = times
        self._offset = offset
        self._within_line = False

    def lines(self, data: bytes) -> bytes:
        """Return the next piece, with the times of the lines that begin in it."""
        shown = []
        for line in io.BytesIO(data):
            if not self._within_line:
                shown.append(_written_at(self._times.at(self._offset)))
            shown.append(line)
            self._offset += len(line)
            self._within_line = not line.endswith(b"\n")
        return b"".join(shown)


def _written_at(nanoseconds: int) -> bytes:
    seconds, rest = divmod(nanoseconds, _SECOND)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{rest:09d}Z ".encode()
