"""One lock per GPU, for what changes it: within this process and between the node's instances (rolling update).

Effects take time (a MIG device, a daemon's start), so they are done outside of the critical section; the locks keep two
claims from changing one GPU at once, while others go on.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
from typing import TYPE_CHECKING, Final

from driver.errors import StateBusyError, StorageError
from driver.model import names

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable
    from pathlib import Path

_LOOK_AGAIN: Final = 0.02  # seconds; little beside an effect, and no load
_PATIENCE: Final = 10.0  # seconds; longer than another process has any business with a GPU


class GpuLocks:
    """Locks by GPU UUID; their files are `<directory>/<uuid>.lock`. The kernel frees those of a process that dies.

    What another process holds is looked at again and again: a thread that waits for it can't be called back, and a
    process that hangs in a driver call keeps its locks even when it was killed.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._locks: dict[str, asyncio.Lock] = {}

    @contextlib.asynccontextmanager
    async def hold(self, gpus: Iterable[str]) -> AsyncIterator[None]:
        """Hold the locks of some GPUs; always taken in one order, so that nobody waits in a circle.

        :raises StateBusyError: another process keeps one for long; try again.
        :raises StorageError: a lock file can't be opened or locked.
        """
        async with contextlib.AsyncExitStack() as stack:
            for gpu in sorted(set(gpus)):
                await stack.enter_async_context(self._locks.setdefault(gpu, asyncio.Lock()))
                await stack.enter_async_context(_file_lock(self._directory / f"{names.check_uid(gpu)}.lock"))
            yield


@contextlib.asynccontextmanager
async def _file_lock(path: Path) -> AsyncIterator[None]:
    handle = _open(path)
    try:
        await _lock(handle, path)
        yield
    finally:
        os.close(handle)


async def _lock(handle: int, path: Path) -> None:
    try:
        async with asyncio.timeout(_PATIENCE):
            while not _take(handle, path):  # noqa: ASYNC110 (no event tells of another process)
                await asyncio.sleep(_LOOK_AGAIN)
    except TimeoutError:
        raise StateBusyError(f"another process holds {path}: is an instance of the driver hung?") from None


def _take(handle: int, path: Path) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as exc:
        raise StorageError.of("lock", path, exc) from exc
    return True


def _open(path: Path) -> int:
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as exc:
        raise StorageError.of("open", path, exc) from exc
