"""An agent is killed at every change that it makes for an MPS daemon; the next one ends up where it should."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

from tests.crash.dying_mps import DAEMON, SPEC, daemons
from tests.crash.runs import ROOT, runs
from tests.unit.sharing.conftest import Node, driver, keeping, node

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["driver", "node"]  # fixtures


def dying(node: Node, operation: str) -> Iterator[int]:
    return runs("dying_mps", node.root.parent, node.shm_root, operation, least=4)


async def test_a_start_killed_at_any_step_is_undone_by_stop(node: Node) -> None:
    for step in dying(node, "start"):
        await daemons(node.root.parent, node.shm_root).stop(DAEMON)
        assert node.leftovers() == [], step


async def test_a_start_killed_at_any_step_is_completed_by_start(node: Node) -> None:
    for step in dying(node, "start"):
        agent = daemons(node.root.parent, node.shm_root)
        await agent.start(DAEMON, SPEC)
        assert agent.running() == {DAEMON}, step
        assert len(node.processes()) == 1, step
        assert node.driver.commands()[-1] == "get_default_active_thread_percentage"
        await agent.stop(DAEMON)
        assert node.leftovers() == [], step


async def test_a_start_killed_at_any_step_is_swept_if_no_record_owns_it(node: Node) -> None:
    for step in dying(node, "start"):
        await daemons(node.root.parent, node.shm_root).sweep(keeping())
        assert node.leftovers() == [], step


async def test_a_stop_killed_at_any_step_is_completed_by_stop(node: Node) -> None:
    await daemons(node.root.parent, node.shm_root).start(DAEMON, SPEC)
    for step in dying(node, "stop"):
        agent = daemons(node.root.parent, node.shm_root)
        await agent.stop(DAEMON)
        assert node.leftovers() == [], step
        await agent.start(DAEMON, SPEC)
        await agent.aclose()
    await daemons(node.root.parent, node.shm_root).stop(DAEMON)


async def test_a_daemon_outlives_the_agent_that_started_it(node: Node) -> None:
    command = [sys.executable, "-m", "tests.crash.dying_mps", str(node.root.parent), str(node.shm_root), "start", "999"]
    subprocess.run(command, cwd=ROOT, check=True)
    (pid,) = node.processes()
    agent = daemons(node.root.parent, node.shm_root)
    assert await agent.adopt(DAEMON, SPEC)
    assert node.processes() == [pid]
    await agent.stop(DAEMON)
    assert node.leftovers() == []
