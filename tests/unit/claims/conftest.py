"""An engine on a node, and one whose claims change GPUs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.unit.claims.bench import Bench
from tests.unit.claims.harness import Harness, instance
from tests.unit.claims.helpers import Claims, Node

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


@pytest.fixture
def claims() -> Claims:
    return Claims()


@pytest.fixture
async def harness(node: Node, claims: Claims) -> AsyncIterator[Harness]:
    async with instance(node, claims) as one:
        yield one


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)
