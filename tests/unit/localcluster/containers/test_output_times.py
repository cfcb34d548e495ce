from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

import pytest

from driver.localcluster.containers.output_times import OutputTimes, TimeKeeper, times_path

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

SECOND = 1_000_000_000


@pytest.fixture
async def keeper() -> AsyncIterator[TimeKeeper]:
    keeper = TimeKeeper()
    yield keeper
    await keeper.aclose()


async def write(log: Path, text: str, *, noted: bool = True) -> None:
    with log.open("a", encoding="utf-8") as file:
        file.write(text)
    size = times_path(log).stat().st_size if times_path(log).exists() else 0
    async with asyncio.timeout(10):
        while noted and (not times_path(log).exists() or times_path(log).stat().st_size == size):
            await asyncio.sleep(0.001)


async def test_each_write_has_its_time(keeper: TimeKeeper, tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.touch()
    keeper.follow(log)
    await write(log, "one\n")
    first = log.stat().st_mtime_ns
    times = OutputTimes(log)
    assert times.at(0) == first
    while log.stat().st_mtime_ns == first:  # the file system's clock is not as fine as its unit
        await write(log, "two\n")
    second = log.stat().st_mtime_ns
    assert (times.at(3), times.at(log.stat().st_size - 1)) == (first, second)
    assert times.since(0) == 0
    assert times.since(second) == log.stat().st_size - 4
    assert times.since(second + 1) == log.stat().st_size


async def test_what_is_not_noted_was_written_last(tmp_path: Path) -> None:
    log = tmp_path / "log"
    await write(log, "one\n", noted=False)
    os.utime(log, ns=(5 * SECOND, 5 * SECOND))
    times = OutputTimes(log)
    assert times.at(0) == 5 * SECOND
    assert (times.since(5 * SECOND), times.since(6 * SECOND)) == (0, 4)


async def test_a_half_written_entry_waits(tmp_path: Path) -> None:
    log = tmp_path / "log"
    await write(log, "one\n", noted=False)
    times_path(log).write_bytes(b"123")
    assert OutputTimes(log).at(0) == log.stat().st_mtime_ns


async def test_a_log_that_is_removed_ends_nothing(keeper: TimeKeeper, tmp_path: Path) -> None:
    gone, log = tmp_path / "gone", tmp_path / "log"
    for path in (gone, log):
        path.touch()
        keeper.follow(path)
    gone.write_text("x", encoding="utf-8")
    gone.unlink()
    await write(log, "one\n")
    assert OutputTimes(log).at(0) == log.stat().st_mtime_ns
