"""What goes on beside the kubelet's calls, with an engine that fails."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

from driver.agent import upkeep
from driver.errors import StorageError

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
