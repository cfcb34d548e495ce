"""Two instances of the driver work on one node at once (rolling update): random claims, side by side.

Both have the disk and the fake GPUs in common and nothing else: each its own view of the GPUs, which lags behind what
the other does, and each its own locks, which only the kernel ties together. Calls for one claim may meet, too, as the
kubelet comes back to the new instance while the old one still works; and an instance may start anew meanwhile.
"""

from __future__ import annotations

import asyncio
import os
import random
from itertools import combinations
from typing import TYPE_CHECKING, Any

import pytest

from driver.claims.effect import ComputeMode, MigMode, MpsDaemon, Partition, TimeSlice, gpus_of
from driver.claims.effect_runner import EffectRunner
from driver.claims.engine import ClaimEngine
from driver.claims.gpu_locks import GpuLocks
from driver.claims.ledger import Ledger
from driver.errors import DriverError, PermanentError
from driver.inventory.fake import FakeInventory
from driver.model.device import MigPartition
from driver.model.snapshot import Snapshot
from driver.sharing.fake import FakeComputeModes, FakeMps, FakeState, FakeTimeSlices
from tests.unit.claims.bench import MPS, SLICING_LONG, SLICING_SHORT, config
from tests.unit.claims.helpers import Claims, Node, claim, ref, result, uid

if TYPE_CHECKING:
    from pathlib import Path

    from driver.claims.record import Record

ROUNDS = 400 if os.environ.get("NIGHTLY") else 40
AT_ONCE = 8
CLAIMS = range(1, 11)
SHARES = [f"b98a178b-5be9-4ea2-99fc-1977135f03c{number}" for number in range(4)]
SETTINGS: list[dict[str, Any] | None] = [None, SLICING_LONG, SLICING_SHORT, MPS, MPS]
CHANGES = {"set", "start", "stop", "set_mig_mode", "create_mig", "destroy_mig"}


class Slow:
    """Passes calls on, after and before moments in which others have their turn."""

    def __init__(self, part: Any, dice: random.Random) -> None:
        self._part = part
        self._random = dice

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._part, name)
        if name not in CHANGES | {"get", "mig_state"}:
            return method

        async def call(*arguments: Any) -> Any:
            await asyncio.sleep(self._random.choice((0, 0, 0.001, 0.003)))
            answer = await method(*arguments)
            await asyncio.sleep(self._random.choice((0, 0, 0.001, 0.003)))
            return answer

        return call


class Instance:
    """One driver: all but the disk, the GPUs and the API server is its own."""

    def __init__(self, root: Path, claims: Claims, dice: random.Random) -> None:
        self.node = Node(root)
        self.inventory = FakeInventory.from_spec("h100:3", node_name="node-a", mig_file=root / "mig.json", boot_id="b")
        self.state = FakeState(root / "sharing.json")
        runner = EffectRunner(
            partitions=Slow(self.inventory, dice),
            slices=Slow(FakeTimeSlices(self.state), dice),
            modes=Slow(FakeComputeModes(self.state), dice),
            daemons=Slow(FakeMps(root / "mps", self.state), dice),
            ledger=Ledger(root / "partitions", self.node.boot_id),
        )

        async def used() -> frozenset[tuple[str, str]]:
            return frozenset()

        self._claims, self._used, self._runner = claims, used, runner

    async def start(self) -> None:
        """Begin to serve, and clean up as an agent does then, while the other one works."""
        await self.look()
        self.engine = ClaimEngine(
            state=self.node.state(),
            claims=self._claims,
            used_claims=self._used,
            runner=self._runner,
            locks=GpuLocks(self.node.root / "gpus"),
        )
        await self.engine.settle()
        assert await self.engine.resume() == ()

    async def look(self) -> None:
        reading = await self.inventory.read()
        self.node.snapshot = Snapshot(gpus=reading.gpus, dynamic_mig=frozenset({reading.gpus[0].uuid}))

    async def prepare(self, number: int) -> None:
        deadline = asyncio.get_running_loop().time() + 60
        answer = (await self.engine.prepare([ref(number)], deadline=deadline))[uid(number)]
        if isinstance(answer, DriverError):
            assert isinstance(answer, PermanentError), answer
            assert "internal" not in str(answer)

    async def unprepare(self, number: int) -> None:
        deadline = asyncio.get_running_loop().time() + 60
        assert await self.engine.unprepare([ref(number)], deadline=deadline) == {uid(number): None}


class World:
    """A node with a GPU to cut, two to share or have, and two drivers."""

    def __init__(self, root: Path, seed: int) -> None:
        self.random = random.Random(seed)
        self.root = root
        self.claims = Claims()
        self.instances: list[Instance] = []
        self.leaving: list[Instance] = []
        self.most = 0

    async def start(self) -> None:
        for _ in range(2):
            await self.add()

    async def add(self) -> None:
        instance = Instance(self.root, self.claims, self.random)
        await instance.start()
        self.instances.append(instance)

    async def replace(self, old: Instance) -> None:
        """Start a third instance; one of the others finishes what it has and goes."""
        await self.add()
        self.instances.remove(old)
        self.leaving.append(old)

    async def round(self) -> None:
        """Do some calls at once; then look at what came of them."""
        for instance in self.instances:
            if self.random.random() < 0.7:
                await instance.look()
        held = {one.claim.uid for one in await self.records()}
        for number in CLAIMS:
            if uid(number) not in held or self.random.random() < 0.05:  # allocated anew under our feet
                self.claims.add(self.allocated(number))
        work = [self.call() for _ in range(AT_ONCE)]
        if self.random.random() < 0.2:
            work.append(self.replace(self.random.choice(self.instances)))
        await asyncio.gather(*work)
        while self.leaving:
            await self.leaving.pop().engine.aclose()

    def call(self) -> Any:
        number, instance = self.random.choice(CLAIMS), self.random.choice(self.instances)
        return instance.unprepare(number) if self.random.random() < 0.3 else instance.prepare(number)

    def allocated(self, number: int) -> dict[str, Any]:
        setting = self.random.choice(SETTINGS)
        parts = [one for one in self.instances[0].node.snapshot.devices() if isinstance(one, MigPartition)]
        parts = [one for one in parts if one.placement.start + one.placement.size <= 4]  # few, so that they meet
        share = {"shareID": self.random.choice(SHARES)} if self.random.random() < 0.5 else {}
        match self.random.randrange(5):
            case 0:
                results, kind = [result("gpu-0")], "GpuConfig"
            case 1:
                results, kind = [result("gpu-1"), result("gpu-2")], "GpuConfig"
            case 2:
                results, kind = [result(self.random.choice(("gpu-1", "gpu-2")), **share)], "GpuConfig"
            case _:
                results, kind = [result(self.random.choice(parts).name, **share)], "MigDeviceConfig"
        if setting is None or (kind == "MigDeviceConfig" and setting is not MPS):
            return claim(number, *results)
        return claim(number, *results, config=config(setting, kind))

    async def records(self) -> tuple[Record, ...]:
        return await self.instances[0].engine.records()

    async def check(self) -> None:
        """The GPUs are as the records say, and no two records exclude each other."""
        records = await self.records()
        for one, other in combinations(records, 2):
            assert not any(mine.excludes(theirs) for mine in one.holdings for theirs in other.holdings)
        effects = [effect for record in records for effect in record.effects]
        instance = self.instances[-1]
        for gpu in (await instance.inventory.read()).gpus:
            mine = [effect for effect in effects if gpu.uuid in gpus_of((effect,))]
            assert gpu.mig is not None
            assert gpu.mig.bare == ()
            made = {(one.placement, one.profile.id, one.uuid) for one in gpu.mig.instances}
            assert made == {(one.placement, one.profile_id, one.uuid) for one in mine if isinstance(one, Partition)}
            assert gpu.mig.enabled == any(isinstance(one, MigMode) and one.enabled for one in mine)
            self.check_settings(instance.state, gpu.uuid, effects)
        assert instance.state.names("mps") == {one.id for one in effects if isinstance(one, MpsDaemon)}
        noted = {(one.gpu, one.placement, one.uuid) for one in Ledger(self.root / "partitions", "boot-1").entries()}
        assert noted == {(one.gpu, one.placement, one.uuid) for one in effects if isinstance(one, Partition)}
        self.most = max(self.most, len(records))

    def check_settings(self, state: FakeState, gpu: str, effects: list[Any]) -> None:
        levels = {one.level for one in effects if isinstance(one, TimeSlice) and one.gpu == gpu}
        modes = {one.mode for one in effects if isinstance(one, ComputeMode) and one.gpu == gpu}
        assert {state.get("timeSlice", gpu) or 0} == (levels or {0})
        assert {state.get("computeMode", gpu) or "DEFAULT"} == (modes or {"DEFAULT"})


@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(3))
async def test_two_instances_at_once_keep_to_the_records_and_undo_all(tmp_path: Path, seed: int) -> None:
    world = World(tmp_path, seed)
    await world.start()
    await world.instances[0].look()
    found = world.instances[0].node.snapshot
    for _ in range(ROUNDS):
        await world.round()
        await world.check()
    assert world.most > 2
    await asyncio.gather(*(world.random.choice(world.instances).unprepare(number) for number in CLAIMS))
    await world.check()
    await world.instances[0].look()
    assert world.instances[0].node.snapshot == found
    assert world.instances[0].node.leftovers() == []
    for instance in world.instances:
        await instance.engine.aclose()
