from __future__ import annotations

import pytest

from tests.unit.monitor.monitors import Ears


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_SECOND_TRY", "_LEAST_GAP", "_FIRST_PAUSE", "_UNHEALTHY", "_TOGETHER"):
        monkeypatch.setattr(f"driver.monitor.monitor.{name}", 0.001)


@pytest.fixture
def ears() -> Ears:
    return Ears()
