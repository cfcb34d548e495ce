"""MPS control daemons that a new agent finds: taken over, replaced, or swept; with a fake control program."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.unit.sharing.conftest import GPU, OTHER, keeping
from tests.unit.sharing.daemons import SPEC, UID
from tests.waiting import until

if TYPE_CHECKING:
    from tests.unit.sharing.conftest import Node


# --- a new agent -----------------------------------------------------------------------------------------------------


async def test_a_new_agent_finds_and_watches_it(node: Node) -> None:
    first = node.agent()
    await first.start(UID, SPEC)
    await first.aclose()
    second = node.agent()
    assert second.running() == frozenset()
    assert await second.adopt(UID, SPEC)
    assert await second.adopt(UID, SPEC)
    assert second.running() == {UID}
    assert len(node.driver.daemons()) == 1
    os.kill(node.driver.daemons()[0]["pid"], signal.SIGKILL)
    await until(lambda: node.deaths)
    assert node.deaths[0][1].startswith(f"MPS control daemon {UID} ended: ")
    await second.stop(UID)


async def test_a_new_agents_start_takes_over_what_runs(node: Node) -> None:
    first = node.agent()
    await first.start(UID, SPEC)
    await first.aclose()
    second = node.agent()
    await second.start(UID, SPEC)
    assert len(node.driver.daemons()) == 1
    await second.stop(UID)
    assert node.leftovers() == []


async def test_what_has_other_limits_is_not_adopted_but_replaced(node: Node) -> None:
    first = node.agent()
    await first.start(UID, SPEC)
    await first.aclose()
    second = node.agent()
    other = replace(SPEC, devices=(GPU,))
    assert not await second.adopt(UID, other)
    assert len(node.processes()) == 1
    await second.start(UID, other)
    assert [call["env"]["CUDA_VISIBLE_DEVICES"] for call in node.driver.daemons()] == [f"{GPU},{OTHER}", GPU]
    await second.stop(UID)
    assert node.leftovers() == []


async def test_one_that_answers_no_more_is_not_adopted(node: Node) -> None:
    first = node.agent()
    await first.start(UID, SPEC)
    await first.aclose()
    (node.root / UID / "p" / "control").unlink()
    second = node.agent()
    assert not await second.adopt(UID, SPEC)
    await second.stop(UID)
    assert node.leftovers() == []


async def test_nothing_is_adopted_where_nothing_runs(node: Node) -> None:
    daemons = node.agent()
    assert not await daemons.adopt(UID, SPEC)
    assert node.leftovers() == []


@pytest.mark.parametrize("change", ["pid", "started", "boot", "garbage", "empty", "missing"])
async def test_a_stale_identity_harms_nobody(node: Node, change: str) -> None:
    bystander = await asyncio.create_subprocess_exec("sleep", "600")
    try:
        await _forge(node, change, bystander.pid)
        daemons = node.agent()
        assert not await daemons.adopt(UID, SPEC)
        await daemons.stop(UID)
        assert node.leftovers() == []
        assert bystander.returncode is None
        os.kill(bystander.pid, 0)
    finally:
        bystander.kill()
        await bystander.wait()


async def _forge(node: Node, change: str, foreign_pid: int) -> None:
    """Leave directories as of a dead daemon, whose pid is another's by now."""
    agent = node.agent()
    await agent.start(UID, SPEC)
    await agent.aclose()
    identity = node.root / UID / "identity"
    value = json.loads(identity.read_text())
    os.kill(value["pid"], signal.SIGKILL)
    await until(lambda: not node.processes())
    started = int(Path(f"/proc/{foreign_pid}/stat").read_text().rpartition(")")[2].split()[19])
    value |= {"pid": foreign_pid} | {"pid": {}, "started": {"started": started}, "boot": {"boot": "another"}}.get(
        change, {}
    )
    contents = {"garbage": "{", "empty": ""}
    identity.write_text(contents.get(change, json.dumps(value)))
    if change == "missing":
        identity.unlink()


async def test_a_daemon_without_identity_is_found_by_its_environment(node: Node) -> None:
    first = node.agent()
    await first.start(UID, SPEC)
    await first.aclose()
    (node.root / UID / "identity").unlink()
    second = node.agent()
    assert not await second.adopt(UID, SPEC)
    await second.stop(UID)
    assert node.leftovers() == []


# --- orphans ---------------------------------------------------------------------------------------------------------


async def test_orphans_are_swept_and_others_stay(node: Node) -> None:
    first = node.agent()
    for name in ("kept", "orphan"):
        await first.start(name, SPEC)
    await first.aclose()
    (node.root / "empty").mkdir()
    (node.shm_root / "half").mkdir()
    second = node.agent()
    assert await second.sweep(keeping("kept")) == {"orphan", "empty", "half"}
    assert await second.adopt("kept", SPEC)
    assert [path.name for path in node.root.iterdir()] == ["kept"]
    await second.stop("kept")


async def test_sweeping_goes_on_after_an_error(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    node.root.mkdir()
    (node.root / ".hidden").mkdir()
    (node.root / "orphan").mkdir()
    assert await node.agent().sweep(keeping()) == {"orphan"}
    assert ".hidden" in caplog.text


async def test_sweeping_an_empty_node_is_fine(node: Node) -> None:
    assert await node.agent().sweep(keeping("a")) == frozenset()
