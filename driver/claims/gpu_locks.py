"""One lock per GPU, for what changes it: within this process and between the node's instances (rolling update).

Effects take time (a MIG device, a daemon's start), so they are done outside of the critical section; the locks keep two
claims from changing one GPU at once, while others go on.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import threading
from typing import TYPE_CHECKING

from driver.errors import StorageError
from driver.model import names

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable
    from pathlib import Path


class GpuLocks:
    """Locks by GPU UUID; their files are `<directory>/<uuid>.lock`. The kernel frees those of a process that dies."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._locks: dict[str, asyncio.Lock] = {}

    @contextlib.asynccontextmanager
    async def hold(self, gpus: Iterable[str]) -> AsyncIterator[None]:
        """Hold the locks of some GPUs; always taken in one order, so that nobody waits in a circle.

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
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            await _wait(handle)
        except OSError as exc:
            raise StorageError.of("lock", path, exc) from exc
        yield
    finally:
        os.close(handle)


async def _wait(handle: int) -> None:
    """Wait on a thread, as another process holds it. If the waiter gives up, its duplicate frees what it got.

    The thread is of its own, and nobody waits for it to end: a process that hangs in a driver call keeps its locks even
    when it was killed, and must cost neither the threads that look up names nor the end of this process.
    """
    loop = asyncio.get_running_loop()
    got: asyncio.Future[None] = loop.create_future()
    duplicate = os.dup(handle)

    def lock() -> None:
        failure = None
        try:
            fcntl.flock(duplicate, fcntl.LOCK_EX)
        except OSError as exc:
            failure = StorageError(f"cannot lock a GPU: {exc.strerror or exc}")
        os.close(duplicate)
        with contextlib.suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(_tell, got, failure)

    threading.Thread(target=lock, name="waits for a GPU", daemon=True).start()
    await got


def _tell(got: asyncio.Future[None], failure: StorageError | None) -> None:
    if got.done():
        return
    if failure is None:
        got.set_result(None)
    else:
        got.set_exception(failure)


def _open(path: Path) -> int:
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as exc:
        raise StorageError.of("open", path, exc) from exc
