"""Notice of changes to a file or directory that people edit: in place, by renaming, or as a mounted ConfigMap.

Its directory is watched, as the file itself may not exist, or be replaced. Where nothing can be watched, it is looked
at now and then.
"""

from __future__ import annotations

import asyncio
import logging
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path

    from asyncinotify import Inotify

log = logging.getLogger(__name__)

_QUIET = 0.05  # seconds without a further event: an editor writes, renames and touches
_POLL = 10.0  # seconds


async def changes(path: Path) -> AsyncGenerator[None, None]:
    """Yield once at the start, and after each change to `path` or what is in it, until closed."""
    from asyncinotify import Inotify

    while True:
        try:
            with Inotify() as inotify:
                _watch(inotify, path)
                yield
                async for _ in inotify:
                    await until_quiet(inotify, _QUIET)
                    break  # watch afresh: directories may be others now
        except OSError as exc:
            log.warning("cannot watch %s (%s): looking every %g s", path, exc, _POLL)
            yield
            await asyncio.sleep(_POLL)


def stamp(file: Path | str) -> tuple[int, ...] | None:
    """Tell one state of a file from another; None if there is none that can be looked at."""
    try:
        status = os.stat(file)  # noqa: PTH116 (on the way of each prepare and Allocate)
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size


async def until_quiet(inotify: Inotify, seconds: float) -> None:
    """Wait until there was no event for so long: the end of a burst."""
    while True:
        try:
            async with asyncio.timeout(seconds):
                await inotify.get()
        except TimeoutError:
            return


def _watch(inotify: Inotify, path: Path) -> None:
    from asyncinotify import Mask

    mask = Mask.CREATE | Mask.DELETE | Mask.MOVE | Mask.CLOSE_WRITE | Mask.DELETE_SELF | Mask.MOVE_SELF | Mask.ONLYDIR
    nearest = next(directory for directory in path.parents if directory.is_dir())
    inotify.add_watch(nearest, mask)
    if path.is_dir():
        inotify.add_watch(path, mask)
