"""When the library is looked for: at the start, when something about it changes, and now and then."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from driver.inventory.driver_root import DriverRoot
from driver.inventory.library_watch import LibraryWatch

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

NEVER = 3600.0


class Looks:
    """Counts the looks."""

    def __init__(self) -> None:
        self.count = 0
        self._changed = asyncio.Condition()

    async def look(self) -> None:
        async with self._changed:
            self.count += 1
            self._changed.notify_all()

    async def more_than(self, count: int) -> None:
        async with asyncio.timeout(20), self._changed:
            await self._changed.wait_for(lambda: self.count > count)


@pytest.fixture
async def watching(tmp_path: Path) -> AsyncIterator[Callable[..., Looks]]:
    tasks: list[asyncio.Task[None]] = []

    def start(interval: float = NEVER) -> Looks:
        looks = Looks()
        watch = LibraryWatch(DriverRoot(tmp_path / "driver"), interval)
        tasks.append(asyncio.create_task(watch.run(looks.look)))
        return looks

    yield start
    for task in tasks:
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_it_looks_at_the_start_and_follows_as_directories_appear(
    tmp_path: Path, watching: Callable[..., Looks]
) -> None:
    looks = watching()
    await looks.more_than(0)
    for path in ("driver", "driver/usr", "driver/usr/lib64"):
        seen = looks.count
        (tmp_path / path).mkdir()
        await looks.more_than(seen)
    library = tmp_path / "driver/usr/lib64/libnvidia-ml.so.1"
    for act in (library.touch, lambda: library.write_text("x"), lambda: library.chmod(0o600), library.unlink):
        seen = looks.count
        act()
        await looks.more_than(seen)


async def test_other_files_are_no_reason(tmp_path: Path, watching: Callable[..., Looks]) -> None:
    (tmp_path / "driver/usr/lib64").mkdir(parents=True)
    looks = watching()
    await looks.more_than(0)
    for number in range(50):
        (tmp_path / "driver/usr/lib64" / f"libother.so.{number}").touch()
    (tmp_path / "driver/usr/lib64/libnvidia-ml.so.1").touch()
    await looks.more_than(1)
    assert looks.count == 2


async def test_a_directory_that_goes_is_a_reason(tmp_path: Path, watching: Callable[..., Looks]) -> None:
    (tmp_path / "driver/lib64").mkdir(parents=True)
    looks = watching()
    await looks.more_than(0)
    (tmp_path / "driver/lib64").rmdir()
    await looks.more_than(1)


async def test_it_looks_now_and_then(watching: Callable[..., Looks]) -> None:
    await watching(interval=0.01).more_than(3)


async def test_it_looks_now_and_then_where_inotify_fails(
    watching: Callable[..., Looks], monkeypatch: pytest.MonkeyPatch
) -> None:
    def blind(*_: object) -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr("driver.inventory.library_watch.Inotify", blind)
    await watching(interval=0.01).more_than(3)
