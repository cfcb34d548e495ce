"""What goes on beside the kubelet's calls, with an engine that fails."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

from asyncinotify import Inotify

from driver.agent import upkeep
from driver.errors import MigError, StorageError

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from driver.claims.engine import ClaimEngine


class Engine:
    """Has nothing to do but CDI files, which can't be rebuilt at first."""

    def __init__(self, failures: int) -> None:
        self._failures = failures
        self.rebuilt = asyncio.Event()

    def cdi_is_missing(self) -> bool:
        return not self.rebuilt.is_set()

    async def refresh_cdi(self) -> None:
        if self._failures:
            self._failures -= 1
            raise StorageError("disk full")
        self.rebuilt.set()

    async def reconcile(self) -> int:
        return 0


async def test_C1_files_that_can_not_be_rebuilt_are_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(upkeep, "_SETTLE_AGAIN", 0.001)
    engine: Any = Engine(failures=3)
    beside = upkeep.Upkeep(
        cast("ClaimEngine", engine), cdi_dir=tmp_path, ready=asyncio.Event(), daemon_died=lambda *_: None
    )
    task = asyncio.create_task(beside.run())
    async with asyncio.timeout(10):
        await engine.rebuilt.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert caplog.text.count("refreshing the CDI files failed: disk full") == 3


async def test_daemons_are_taken_over_though_something_else_can_not_be_undone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upkeep, "_SETTLE_AGAIN", 0.001)

    class Broken(Engine):
        async def settle(self) -> int:
            raise MigError("the GPU is lost")

        async def resume(self) -> tuple[str, ...]:
            return ("daemon-1",)

    ready, died = asyncio.Event(), asyncio.Queue[str]()
    ready.set()
    beside = upkeep.Upkeep(
        cast("ClaimEngine", Broken(failures=0)),
        cdi_dir=tmp_path,
        ready=ready,
        daemon_died=lambda one, _: died.put_nowait(one),
    )
    task = asyncio.create_task(beside.run())
    async with asyncio.timeout(10):
        assert await died.get() == "daemon-1"
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_C1_files_and_directories_that_vanish_are_noticed_by_one_inotify_instance(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Closing an instance keeps the kernel busy for so long that an unprepare took several times as long."""
    monkeypatch.setattr(upkeep, "_SETTLED", 0.001)
    monkeypatch.setattr(upkeep, "_WATCH_AGAIN", 0.001)
    opened = []

    def inotify() -> Inotify:
        opened.append(Inotify())
        return opened[-1]

    monkeypatch.setattr(upkeep, "Inotify", inotify)
    cdi, looks = tmp_path / "cdi", asyncio.Queue[None]()

    class Looked(Engine):
        def cdi_is_missing(self) -> bool:
            looks.put_nowait(None)
            return False

    beside = upkeep.Upkeep(
        cast("ClaimEngine", Looked(failures=0)), cdi_dir=cdi, ready=asyncio.Event(), daemon_died=lambda *_: None
    )
    cdi.mkdir()
    task = asyncio.create_task(beside.run())
    async with asyncio.timeout(10):
        await looks.get()
        for _ in range(3):
            (cdi / "a").touch()
            (cdi / "a").unlink()
            await looks.get()
        assert looks.empty()
        assert len(opened) == 1
        cdi.rmdir()
        await looks.get()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
