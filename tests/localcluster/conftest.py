from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.localcluster.world import World

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


@pytest.fixture
async def world(short_tmp: Path) -> AsyncIterator[World]:
    """A cluster with a class for all of the driver's devices."""
    made = World(short_tmp)
    async with made.cluster:
        selector = {"cel": {"expression": "device.driver == 'gpu.nvidia.com'"}}
        device_class = {"metadata": {"name": "gpu.nvidia.com"}, "spec": {"selectors": [selector]}}
        made.store.create("deviceclasses", device_class)
        yield made
