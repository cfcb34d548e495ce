"""The engine dies at every change it makes to the disk; the next start converges."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from driver.claims.engine import ClaimEngine
from tests.crash.dying import make_engine
from tests.unit.claims.helpers import Claims, Node, claim, ref, result, uid

if TYPE_CHECKING:
    from collections.abc import Iterator

    from driver.claims.engine import ClaimEngine

ROOT = Path(__file__).parents[2]


def runs(root: Path, operation: str) -> Iterator[int]:
    """Run the operation on copies of one state, dying one step later each time, until it survives; yield the steps."""
    for step in range(1, 50):
        process = subprocess.run(
            [sys.executable, "-m", "tests.crash.dying", str(root), operation, str(step)], cwd=ROOT, check=False
        )
        if process.returncode == 0:
            assert step > 2, "the operation was never interrupted"
            return
        assert process.returncode == -signal.SIGKILL
        yield step
    raise AssertionError("the operation never ends")


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
    for _ in runs(tmp_path, "prepare"):
        await settle(Node(tmp_path))


async def test_a_prepare_killed_at_any_step_is_undone_by_an_unprepare(tmp_path: Path) -> None:
    for _ in runs(tmp_path, "prepare"):
        node = Node(tmp_path)
        await unwind(node, await start(node))


async def test_an_unprepare_killed_at_any_step_converges_on_retry(tmp_path: Path) -> None:
    node = Node(tmp_path)

    async def prepare() -> None:
        engine = await start(node)
        assert isinstance((await engine.prepare([ref(1)], deadline=deadline()))[uid(1)], tuple)
        await engine.aclose()

    await prepare()
    for _ in runs(tmp_path, "unprepare"):
        await unwind(Node(tmp_path), await start(Node(tmp_path)))
        await prepare()
