"""Random claims on fake GPUs: whole, partitions, shares, admin access, settings; crashes and restarts in between.

No slice is given twice, nothing is shared that may not be, and in the end all is as it was. 1,000 operations; 10,000
with NIGHTLY=1.
"""

from __future__ import annotations

import asyncio
import os
import random
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from driver.claims.effect_runner import EffectRunner
from driver.claims.engine import ClaimEngine
from driver.claims.gpu_locks import GpuLocks
from driver.claims.ledger import Ledger
from driver.errors import DriverError
from driver.inventory.fake import FakeInventory
from driver.model.device import MigPartition
from driver.model.snapshot import Snapshot
from driver.sharing.fake import FakeComputeModes, FakeMps, FakeState, FakeTimeSlices
from tests.unit.claims.bench import MPS, SLICING_LONG, SLICING_SHORT, config
from tests.unit.claims.helpers import Claims, Node, claim, ref, result, uid

if TYPE_CHECKING:
    from pathlib import Path

OPERATIONS = 10_000 if os.environ.get("NIGHTLY") else 1_000
SHARES = [f"b98a178b-5be9-4ea2-99fc-1977135f03c{number}" for number in range(4)]
SETTINGS: list[dict[str, Any] | None] = [None, None, SLICING_LONG, SLICING_SHORT, MPS]
CLAIMS = range(1, 9)


class CrashError(BaseException):
    """The process dies here."""


class Dying:
    """Passes calls on, until one that changes something is the last: then it dies before it or after it."""

    def __init__(self, part: Any, fuse: Fuse) -> None:
        self._part = part
        self._fuse = fuse

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._part, name)
        if name not in {"set", "start", "stop", "set_mig_mode", "create_mig", "destroy_mig"}:
            return method

        async def call(*arguments: Any) -> Any:
            self._fuse.burn()
            answer = await method(*arguments)
            self._fuse.burn()
            return answer

        return call


class Fuse:
    """Counts down to a crash; 0 is never."""

    def __init__(self) -> None:
        self.left = 0

    def burn(self) -> None:
        if self.left:
            self.left -= 1
            if not self.left:
                raise CrashError


class World:
    """A node with a GPU to partition and one to share, and a driver that dies now and then."""

    def __init__(self, root: Path, seed: int) -> None:
        self.random = random.Random(seed)
        self.node = Node(root)
        self.claims = Claims()
        self.fuse = Fuse()
        self.ledger = Ledger(root / "partitions", self.node.boot_id)
        self.prepared: dict[int, list[dict[str, Any]]] = {}
        self.wishes: dict[int, dict[str, Any] | None] = {}
        self.crashes = 0

    async def start(self) -> None:
        """Begin a life of the driver: everything but the disk and the GPUs is new."""
        root = self.node.root
        self.inventory = FakeInventory.from_spec("h100:2", node_name="node-a", mig_file=root / "mig.json", boot_id="b")
        self.state = FakeState(root / "sharing.json")
        await self.look()
        runner = EffectRunner(
            partitions=Dying(self.inventory, self.fuse),
            slices=Dying(FakeTimeSlices(self.state), self.fuse),
            modes=Dying(FakeComputeModes(self.state), self.fuse),
            daemons=Dying(FakeMps(root / "mps", self.state), self.fuse),
            ledger=self.ledger,
        )

        async def used() -> frozenset[tuple[str, str]]:
            return frozenset()

        self.engine = ClaimEngine(
            state=self.node.state(),
            claims=self.claims,
            used_claims=used,
            runner=runner,
            locks=GpuLocks(root / "gpus"),
        )
        await self.engine.settle()
        assert await self.engine.resume() == ()

    async def look(self) -> None:
        reading = await self.inventory.read()
        self.node.snapshot = Snapshot(gpus=reading.gpus, dynamic_mig=frozenset({reading.gpus[0].uuid}))

    async def step(self) -> None:
        number = self.random.choice(CLAIMS)
        self.fuse.left = self.random.choice([0] * 8 + [1, 2, 3, 5, 8])
        try:
            if number in self.prepared and self.random.random() < 0.7:
                await self.unprepare(number)
            elif self.random.random() < 0.05:
                await self.restart()
            else:
                await self.prepare(number)
        except CrashError:
            self.crashes += 1
            await self.restart()
        self.fuse.left = 0
        await self.look()

    async def restart(self) -> None:
        self.fuse.left = 0
        await self.engine.aclose()
        await self.start()
        await self.learn()

    async def learn(self) -> None:
        """What a crash interrupted may be done or not; the records say which."""
        recorded = {record.claim.uid for record in await self.engine.records()}
        for number in CLAIMS:
            if uid(number) not in recorded:
                self.prepared.pop(number, None)

    async def prepare(self, number: int) -> None:
        results, setting = self.allocation()
        if number in self.prepared:
            results, setting = self.prepared[number], self.wishes[number]
        kind = "MigDeviceConfig" if "mig" in results[0]["device"] else "GpuConfig"
        parameters = config(setting, kind) if setting is not None else None
        if kind == "MigDeviceConfig" and setting is not MPS:
            parameters = None
        self.claims.add(claim(number, *results, config=parameters))
        before = dict(self.prepared)
        self.prepared[number], self.wishes[number] = results, setting  # it counts if it dies after the last step
        answer = (await self.engine.prepare([ref(number)], deadline=asyncio.get_running_loop().time() + 30))[
            uid(number)
        ]
        if isinstance(answer, DriverError):
            self.prepared = before
        else:
            assert [one.device for one in answer] == [one["device"] for one in results]

    async def unprepare(self, number: int) -> None:
        deadline = asyncio.get_running_loop().time() + 30
        assert await self.engine.unprepare([ref(number)], deadline=deadline) == {uid(number): None}
        self.prepared.pop(number, None)

    def allocation(self) -> tuple[list[dict[str, Any]], dict[str, Any] | None]:
        setting = self.random.choice(SETTINGS)
        match self.random.randrange(5):
            case 0:
                return [result("gpu-0")], setting
            case 1:
                return [result("gpu-1")], setting
            case 2:
                return [result("gpu-1", shareID=self.random.choice(SHARES))], setting
            case 3:
                return [result(self.random.choice(["gpu-0", "gpu-1"]), adminAccess=True)], None
            case _:
                partitions = [one for one in self.node.snapshot.devices() if isinstance(one, MigPartition)]
                share = {"shareID": self.random.choice(SHARES)} if self.random.random() < 0.4 else {}
                return [result(self.random.choice(partitions).name, **share)], setting

    # --- what must hold ----------------------------------------------------------------------------------------------

    async def check(self) -> None:
        held = [one for results in self.prepared.values() for one in results if not one.get("adminAccess")]
        parts = [(one["device"], one.get("shareID")) for one in held if "mig" in one["device"]]
        assert len(parts) == len(set(parts))
        wanted = {name for one in held if "mig" in (name := one["device"])}
        gpu = (await self.inventory.read()).gpus[0]
        assert gpu.mig is not None
        assert gpu.mig.bare == ()
        made = {MigPartition(gpu=gpu, profile=one.profile, placement=one.placement).name for one in gpu.mig.instances}
        assert made == wanted
        noted = {(one.placement, one.uuid) for one in self.ledger.entries()}
        assert noted == {(one.placement, one.uuid) for one in gpu.mig.instances}
        assert gpu.mig.enabled == bool(wanted)
        slices = [index for one in gpu.mig.instances for index in one.placement.slices]
        assert len(slices) == len(set(slices))
        whole = [one for one in held if one["device"] == "gpu-0"]
        assert len(whole) + bool(wanted) <= 1
        shares = [one.get("shareID") for one in held if one["device"] == "gpu-1"]
        assert len(shares) == len(set(shares))
        assert len(shares) <= 1 or None not in shares
        self.check_settings()

    def check_settings(self) -> None:
        for minor, gpu in enumerate(self.node.snapshot.gpus):
            users = [
                number
                for number, results in self.prepared.items()
                if any(one["device"] == f"gpu-{minor}" and not one.get("adminAccess") for one in results)
            ]
            wishes = [self.wishes[number] for number in users]
            assert all(wish == wishes[0] for wish in wishes)
            wish = wishes[0] if wishes else None
            level = {None: 0, "Long": 3, "Short": 1}[_interval(wish)]
            assert (self.state.get("timeSlice", gpu.uuid) or 0) == level
            mode = "EXCLUSIVE_PROCESS" if wish is MPS else "DEFAULT"
            assert (self.state.get("computeMode", gpu.uuid) or "DEFAULT") == mode


def _interval(wish: dict[str, Any] | None) -> str | None:
    return str(wish["timeSlicingConfig"]["interval"]) if wish and "timeSlicingConfig" in wish else None


@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(4))
async def test_nothing_is_given_twice_and_all_is_undone(tmp_path: Path, seed: int) -> None:
    world = World(tmp_path, seed)
    await world.start()
    initial = world.node.snapshot
    for _ in range(OPERATIONS // 4):
        await world.step()
        await world.check()
    assert world.crashes > OPERATIONS // 200
    for number in CLAIMS:
        await world.unprepare(number)
    await world.look()
    await world.check()
    assert world.node.leftovers() == []
    assert replace(world.node.snapshot) == initial
    assert world.state.names("mps") == frozenset()
    await world.engine.aclose()
