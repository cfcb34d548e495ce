"""Run as a program: one prepare or unprepare on a node's disk, in a process that dies before its N-th change to it.

Changes are what Python's audit events tell of: files opened for writing, renames, removals. Dying before step N+1 is
dying after step N, so all N together cover every state a `kill -9` can leave.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

from driver.claims.effect_runner import EffectRunner
from driver.claims.engine import ClaimEngine
from driver.claims.gpu_locks import GpuLocks
from tests.unit.claims.helpers import Claims, Node, claim, ref, result

CHANGES = {"os.rename", "os.remove", "os.mkdir"}


def die_before(step: int, root: str) -> None:
    """Kill this process without warning before its `step`-th change below `root`."""
    count = 0

    def hook(event: str, args: tuple[object, ...]) -> None:
        nonlocal count
        writes = event == "open" and isinstance(args[2], int) and args[2] & (os.O_WRONLY | os.O_RDWR)
        if (event in CHANGES or writes) and str(args[0]).startswith(root) and not str(args[0]).endswith("/lock"):
            count += 1
            if count == step:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)


async def used() -> frozenset[tuple[str, str]]:
    """No pod uses a claim."""
    return frozenset()


def make_engine(node: Node, claims: Claims) -> ClaimEngine:
    """Return an engine on a node's disk."""
    locks = GpuLocks(node.root / "gpus")
    return ClaimEngine(state=node.state(), claims=claims, used_claims=used, runner=EffectRunner(), locks=locks)


async def main(root: str, operation: str, step: int) -> None:
    """Do `operation` on claim 1, which has two GPUs."""
    claims = Claims()
    claims.add(claim(1, result("gpu-0"), result("gpu-1")))
    engine = make_engine(Node(Path(root)), claims)
    die_before(step, root)
    deadline = asyncio.get_running_loop().time() + 10
    await (engine.prepare if operation == "prepare" else engine.unprepare)([ref(1)], deadline=deadline)
    await engine.aclose()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
