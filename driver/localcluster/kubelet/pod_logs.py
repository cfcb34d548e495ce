"""Read a container's output, from the file that it writes to.

The file has the output as it is, without times: `--timestamps` and `--since` have no effect, and the
API server says so.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from asyncinotify import Inotify, Mask

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from driver.localcluster.containers.process import Container

_CHUNK = 1 << 16


async def read_log(
    path: Path, *, container: Container | None, tail: int | None = None, limit: int | None = None
) -> AsyncIterator[bytes]:
    """Yield what is in the log; with a `container` follow it until that ends. `tail` is in lines, `limit` in bytes."""
    left = limit
    with path.open("rb") as file:
        if tail is not None:
            file.seek(_tail_offset(file.read(), tail))
        with Inotify() as inotify:
            if container is not None:
                inotify.add_watch(path, Mask.MODIFY)
            while True:
                ended = container is None or not container.running
                while data := file.read(_CHUNK if left is None else min(_CHUNK, left)):
                    left = None if left is None else left - len(data)
                    yield data
                if ended or left == 0 or container is None:
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


def _tail_offset(data: bytes, lines: int) -> int:
    """Return where the last `lines` lines begin."""
    end = len(data) - 1 if data.endswith(b"\n") else len(data)
    for _ in range(lines):
        end = data.rfind(b"\n", 0, end)
        if end < 0:
            return 0
    return end + 1 if lines else len(data)
