"""What goes on beside the kubelet's calls, with an engine that fails."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

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
