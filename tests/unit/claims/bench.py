"""A node whose GPUs claims change, and settings for them."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from driver.claims.effect_runner import EffectRunner
from driver.claims.engine import ClaimEngine
from driver.claims.gpu_locks import GpuLocks
from driver.claims.ledger import Ledger
from driver.model.snapshot import Snapshot
from tests.unit.claims.hardware import Daemons, Hardware, Modes, Slices, dynamic_gpu
from tests.unit.claims.harness import SHARE
from tests.unit.claims.helpers import Claims, Node, gpus, ref, result, uid

if TYPE_CHECKING:
    from pathlib import Path

API = "resource.nvidia.com/v1beta1"
SLICING_LONG = {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Long"}}
SLICING_SHORT = {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Short"}}
MPS = {"strategy": "MPS", "mpsConfig": {"defaultActiveThreadPercentage": 50}}


def part(start: int, minor: int = 0) -> str:
    return f"gpu-{minor}-mig-1g10gb-19-{start}"


def config(sharing: dict[str, Any], kind: str = "GpuConfig", requests: tuple[str, ...] = ()) -> list[dict[str, Any]]:
    parameters = {"apiVersion": API, "kind": kind, "sharing": sharing}
    opaque = {"driver": "gpu.nvidia.com", "parameters": parameters}
    return [{"source": "FromClaim", "requests": list(requests), "opaque": opaque}]


class Bench:
    """A node with partitionable GPUs, and a driver that can be restarted on it."""

    def __init__(self, root: Path) -> None:
        self.node = Node(root)
        self.node.snapshot = Snapshot(gpus=(dynamic_gpu(0), *gpus(3)[1:]), dynamic_mig=frozenset({"GPU-0"}))
        self.hardware = Hardware()
        self.claims = Claims()
        self.ledger = Ledger(root / "partitions", self.node.boot_id)
        self.used: frozenset[tuple[str, str]] | None = frozenset()  # the claims of pods on the node
        self.engine = self.start()

    def start(self) -> ClaimEngine:
        runner = EffectRunner(
            partitions=self.hardware,
            slices=Slices(self.hardware),
            modes=Modes(self.hardware),
            daemons=Daemons(self.hardware),
            ledger=self.ledger,
        )

        async def used() -> frozenset[tuple[str, str]] | None:
            return self.used

        locks = GpuLocks(self.node.root / "gpus")
        return ClaimEngine(state=self.node.state(), claims=self.claims, used_claims=used, runner=runner, locks=locks)

    async def restart(self) -> None:
        self.engine = self.start()

    async def prepare(self, *numbers: int, within: float = 0.5) -> Any:
        deadline = asyncio.get_running_loop().time() + within
        answers = await self.engine.prepare([ref(number) for number in numbers], deadline=deadline)
        return answers[uid(numbers[0])] if len(numbers) == 1 else [answers[uid(number)] for number in numbers]

    async def unprepare(self, *numbers: int, within: float = 0.5) -> Any:
        deadline = asyncio.get_running_loop().time() + within
        answers = await self.engine.unprepare([ref(number) for number in numbers], deadline=deadline)
        return answers[uid(numbers[0])] if len(numbers) == 1 else [answers[uid(number)] for number in numbers]

    def observe(self) -> None:
        """See the partitions that there are, as the monitor does."""
        first, *others = self.node.snapshot.gpus
        assert first.mig is not None
        mig = replace(first.mig, enabled=True, instances=tuple(self.hardware.instances["GPU-0"].values()))
        self.node.snapshot = replace(self.node.snapshot, gpus=(replace(first, mig=mig), *others))

    def cdi(self, number: int) -> str:
        return self.node.cdi.path(uid(number)).read_text()


EMPTY: object = ({}, {}, [], {}, {}, [])


def share(number: int) -> dict[str, Any]:
    return result("gpu-1", shareID=f"{SHARE}{number}", consumedCapacity={"memory": "20Gi"})
