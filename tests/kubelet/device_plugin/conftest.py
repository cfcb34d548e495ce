from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.kubelet.device_plugin.support import Kubelet, Plugins

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


@pytest.fixture
async def kubelet(short_tmp: Path) -> AsyncIterator[Kubelet]:
    made = Kubelet(short_tmp)
    await made.start()
    yield made
    await made.stop()


@pytest.fixture
async def plugins(kubelet: Kubelet, short_tmp: Path) -> AsyncIterator[Plugins]:
    made = Plugins(short_tmp)
    async with made.running():
        yield made
