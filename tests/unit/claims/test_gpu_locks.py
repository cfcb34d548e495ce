"""One at a time changes a GPU, of all instances of the driver on the node."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import threading
from typing import TYPE_CHECKING

import pytest

from driver.claims.gpu_locks import GpuLocks
from driver.errors import StateBusyError, StorageError

if TYPE_CHECKING:
    from pathlib import Path


class Visitor:
    """Holds some GPUs until told to go."""

    def __init__(self, locks: GpuLocks, *gpus: str) -> None:
        self.inside, self.go = asyncio.Event(), asyncio.Event()
        self.task = asyncio.create_task(self._visit(locks, gpus))

    async def _visit(self, locks: GpuLocks, gpus: tuple[str, ...]) -> None:
        async with locks.hold(gpus):
            self.inside.set()
            await self.go.wait()

    async def leave(self) -> None:
        self.go.set()
        await self.task


async def turns() -> None:
    """Give everybody who could go on the time to do so."""
    await asyncio.sleep(0.05)


@pytest.fixture(params=["one instance", "two instances"])
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[GpuLocks, GpuLocks]:
    first = GpuLocks(tmp_path)
    return first, first if request.param == "one instance" else GpuLocks(tmp_path)


async def test_a_gpu_has_one_holder_and_others_don_t_wait_for_it(pair: tuple[GpuLocks, GpuLocks]) -> None:
    mine, theirs = pair
    first = Visitor(mine, "GPU-1", "GPU-0")
    await first.inside.wait()
    second, other = Visitor(theirs, "GPU-1"), Visitor(theirs, "GPU-2")
    await other.inside.wait()
    await turns()
    assert not second.inside.is_set()
    await first.leave()
    await second.inside.wait()
    await second.leave()
    await other.leave()


async def test_who_gives_up_waiting_leaves_nothing_locked(pair: tuple[GpuLocks, GpuLocks]) -> None:
    mine, theirs = pair
    first = Visitor(mine, "GPU-1")
    await first.inside.wait()
    second = Visitor(theirs, "GPU-0", "GPU-1")
    await turns()
    second.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await second.task
    await first.leave()
    third = Visitor(mine, "GPU-0", "GPU-1")
    await third.inside.wait()
    await third.leave()


async def test_waiting_for_a_hung_instance_costs_no_thread_and_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("driver.claims.gpu_locks._PATIENCE", 0.1)
    gpus = [f"GPU-{number}" for number in range(8)]
    hung = Visitor(GpuLocks(tmp_path), *gpus)
    await hung.inside.wait()
    locks, before = GpuLocks(tmp_path), threading.active_count()
    waiting = [Visitor(locks, gpu) for gpu in gpus]
    await turns()
    assert threading.active_count() == before
    for gpu, visitor in zip(gpus, waiting, strict=True):
        with pytest.raises(StateBusyError, match=rf"{gpu}\.lock: is an instance of the driver hung\?"):
            await visitor.task
    await hung.leave()
    again = Visitor(locks, *gpus)
    await again.inside.wait()
    await again.leave()


async def test_a_lock_that_can_t_be_opened_is_an_error_and_frees_the_others(tmp_path: Path) -> None:
    (tmp_path / "GPU-1.lock").mkdir()
    locks = GpuLocks(tmp_path)
    with pytest.raises(StorageError, match=r"GPU-1\.lock"):
        async with locks.hold(("GPU-0", "GPU-1")):
            pass
    visitor = Visitor(GpuLocks(tmp_path), "GPU-0")
    await visitor.inside.wait()
    await visitor.leave()


async def test_a_file_system_without_locks_is_a_storage_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(*_: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(StorageError, match=r"cannot lock .*/GPU-1.lock: No locks available"):
        async with GpuLocks(tmp_path).hold(["GPU-1"]):
            raise AssertionError
