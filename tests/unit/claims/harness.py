"""An engine on a node, and the calls that the kubelet makes of it."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from driver.claims.effect_runner import EffectRunner
from driver.claims.engine import ClaimEngine
from driver.claims.gpu_locks import GpuLocks
from tests.unit.claims.helpers import Claims, Node, ref, uid

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

SHARE = "b98a178b-5be9-4ea2-99fc-1977135f03c"


class Harness:
    """One instance of the driver on a node."""

    def __init__(self, node: Node, claims: Claims) -> None:
        self.node = node
        self.claims = claims
        self.used: frozenset[tuple[str, str]] | None = frozenset()
        self.engine = ClaimEngine(
            state=node.state(),
            claims=claims,
            used_claims=self._used,
            runner=EffectRunner(),
            locks=GpuLocks(node.root / "gpus"),
        )

    async def _used(self) -> frozenset[tuple[str, str]] | None:
        return self.used

    async def prepare(self, *numbers: int, within: float = 0.5) -> Any:
        answers = await self.engine.prepare([ref(number) for number in numbers], deadline=deadline(within))
        return answers[uid(numbers[0])] if len(numbers) == 1 else [answers[uid(number)] for number in numbers]

    async def unprepare(self, *numbers: int, within: float = 0.5) -> Any:
        answers = await self.engine.unprepare([ref(number) for number in numbers], deadline=deadline(within))
        return answers[uid(numbers[0])] if len(numbers) == 1 else [answers[uid(number)] for number in numbers]


def deadline(within: float) -> float:
    return asyncio.get_running_loop().time() + within


@asynccontextmanager
async def instance(node: Node, claims: Claims) -> AsyncIterator[Harness]:
    one = Harness(node, claims)
    yield one
    await one.engine.aclose()


def devices(answer: Any) -> list[str]:
    assert isinstance(answer, tuple), answer
    return [device.device for device in answer]
