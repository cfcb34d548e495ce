"""The engine dies at every change it makes to the disk; the next start converges."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from driver.claims.engine import ClaimEngine
from tests.crash.dying import make_engine
from tests.crash.runs import runs
from tests.unit.claims.helpers import Claims, Node, claim, ref, result, uid

if TYPE_CHECKING:
    from pathlib import Path

    from driver.claims.engine import ClaimEngine


async def start(node: Node) -> ClaimEngine:
    claims = Claims()
    claims.add(claim(1, result("gpu-0"), result("gpu-1")))
    claims.add(claim(2, result("gpu-1")))
    return make_engine(node, claims)


def deadline() -> float:
    return asyncio.get_running_loop().time() + 10


async def settle(node: Node) -> None:
    """Whatever was left: the retry works, and after an unprepare nothing remains and the GPU is free."""
    engine = await start(node)
    answer = (await engine.prepare([ref(1)], deadline=deadline()))[uid(1)]
    assert isinstance(answer, tuple), answer
    assert [one.device for one in answer] == ["gpu-0", "gpu-1"]
    assert sorted(node.cdi.devices(uid(1))) == ["gpu-0", "gpu-1"]
    await unwind(node, engine)


async def unwind(node: Node, engine: ClaimEngine) -> None:
    assert await engine.unprepare([ref(1)], deadline=deadline()) == {uid(1): None}
    assert node.leftovers() == []
    other = (await engine.prepare([ref(2)], deadline=deadline()))[uid(2)]
    assert isinstance(other, tuple), other
    assert await engine.unprepare([ref(2)], deadline=deadline()) == {uid(2): None}
    await engine.aclose()
    assert node.quarantined == []


async def test_a_prepare_killed_at_any_step_converges_on_retry(tmp_path: Path) -> None:
    for _ in runs("dying", tmp_path, "prepare", least=2):
        await settle(Node(tmp_path))


async def test_a_prepare_killed_at_any_step_is_undone_by_an_unprepare(tmp_path: Path) -> None:
    for _ in runs("dying", tmp_path, "prepare", least=2):
        node = Node(tmp_path)
        await unwind(node, await start(node))


async def test_an_unprepare_killed_at_any_step_converges_on_retry(tmp_path: Path) -> None:
    node = Node(tmp_path)

    async def prepare() -> None:
        engine = await start(node)
        assert isinstance((await engine.prepare([ref(1)], deadline=deadline()))[uid(1)], tuple)
        await engine.aclose()

    await prepare()
    for _ in runs("dying", tmp_path, "unprepare", least=2):
        await unwind(Node(tmp_path), await start(Node(tmp_path)))
        await prepare()
