"""Run as a program: prepare or unprepare a partition in a process that dies before its N-th change to the node.

Changes are those of `tests.crash.dying`; the fake GPU is a file, so making its instances counts as well.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from driver.claims.effect_runner import EffectRunner
from driver.claims.engine import ClaimEngine
from driver.claims.gpu_locks import GpuLocks
from driver.claims.ledger import Ledger
from driver.inventory.fake import FakeInventory
from driver.model.snapshot import Snapshot
from tests.crash.dying import die_before, used
from tests.unit.claims.helpers import Claims, Node, claim, ref, result


class MigNode:
    """A node with one H100 that claims may cut, on disk."""

    def __init__(self, root: Path) -> None:
        self.node = Node(root)
        self.inventory = FakeInventory.from_spec("h100", node_name="node-a", mig_file=root / "mig.json", boot_id="b")
        self.ledger = Ledger(root / "partitions", self.node.boot_id)

    async def start(self) -> ClaimEngine:
        """Return an engine of a new life."""
        gpus = (await self.inventory.read()).gpus
        self.node.snapshot = Snapshot(gpus=gpus, dynamic_mig=frozenset(gpu.uuid for gpu in gpus))
        claims = Claims()
        claims.add(claim(1, result("gpu-0-mig-1g10gb-19-2")))
        return ClaimEngine(
            state=self.node.state(),
            claims=claims,
            used_claims=used,
            runner=EffectRunner(partitions=self.inventory, ledger=self.ledger),
            locks=GpuLocks(self.node.root / "gpus"),
        )


async def main(root: str, operation: str, step: int) -> None:
    """Do `operation` on claim 1."""
    engine = await MigNode(Path(root)).start()
    die_before(step, root)
    deadline = asyncio.get_running_loop().time() + 10
    await (engine.prepare if operation == "prepare" else engine.unprepare)([ref(1)], deadline=deadline)
    await engine.aclose()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
