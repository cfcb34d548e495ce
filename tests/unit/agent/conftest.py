from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.agent_process import Node, node_below

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


@pytest.fixture
async def node(short_tmp: Path) -> AsyncIterator[Node]:
    async with node_below(short_tmp) as made:
        yield made
