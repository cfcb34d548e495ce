"""The engine dies at every change of a claim with a partition; the next start leaves no MIG device that nobody owns."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tests.crash.dying_mig import MigNode
from tests.crash.runs import runs
from tests.unit.claims.helpers import ref, uid

if TYPE_CHECKING:
    from pathlib import Path

    from driver.model.mig import MigState


async def mig(node: MigNode) -> MigState:
    (gpu,) = (await node.inventory.read()).gpus
    assert gpu.mig is not None
    return gpu.mig


async def unprepare(root: Path) -> None:
    """Whatever was left: a start and an unprepare bring everything back."""
    node = MigNode(root)
    engine = await node.start()
    await engine.settle()
    deadline = asyncio.get_running_loop().time() + 10
    assert await engine.unprepare([ref(1)], deadline=deadline) == {uid(1): None}
    await engine.aclose()
    found = await mig(node)
    assert (found.enabled, found.instances, found.bare) == (False, (), ())
    assert node.ledger.entries() == ()
    assert node.node.leftovers() == []


async def prepare(root: Path) -> None:
    engine = await MigNode(root).start()
    deadline = asyncio.get_running_loop().time() + 10
    answer = (await engine.prepare([ref(1)], deadline=deadline))[uid(1)]
    assert isinstance(answer, tuple), answer
    await engine.aclose()


async def settle_without_records(root: Path, step: int) -> None:
    """Lose all records, too: what is left of the partition is known as ours, and removed."""
    for path in MigNode(root).node.claims_dir.glob("*.json"):
        path.unlink()
    node = MigNode(root)
    engine = await node.start()
    await engine.settle()
    await engine.aclose()
    found = await mig(node)
    assert (found.instances, found.bare) == ((), ()), step
    assert node.ledger.entries() == (), step
    assert node.node.leftovers() == [], step


async def test_a_prepare_killed_at_any_step_is_undone(tmp_path: Path) -> None:
    for _ in runs("dying_mig", tmp_path, "prepare", least=10):
        await unprepare(tmp_path)


async def test_a_prepare_killed_at_any_step_is_completed_by_the_next_try(tmp_path: Path) -> None:
    for _ in runs("dying_mig", tmp_path, "prepare", least=10):
        await prepare(tmp_path)
        assert len((await mig(MigNode(tmp_path))).instances) == 1
        await unprepare(tmp_path)


async def test_a_prepare_killed_at_any_step_leaves_no_device_even_if_its_record_is_lost(tmp_path: Path) -> None:
    for step in runs("dying_mig", tmp_path, "prepare", least=10):
        await settle_without_records(tmp_path, step)


async def test_an_unprepare_killed_at_any_step_is_completed(tmp_path: Path) -> None:
    await prepare(tmp_path)
    for _ in runs("dying_mig", tmp_path, "unprepare", least=10):
        await unprepare(tmp_path)
        await prepare(tmp_path)


async def test_an_unprepare_killed_at_any_step_leaves_no_device_even_if_its_record_is_lost(tmp_path: Path) -> None:
    await prepare(tmp_path)
    for step in runs("dying_mig", tmp_path, "unprepare", least=10):
        await settle_without_records(tmp_path, step)
        await prepare(tmp_path)
