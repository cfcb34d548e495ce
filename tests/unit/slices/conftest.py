"""An API server with all of the features that slices use."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.unit.slices.publishing import Node, make_node

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    async with make_node(tmp_path) as node:
        yield node
