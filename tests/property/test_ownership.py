"""No GPU is ever given by both APIs, whatever happens at whatever moment."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from hypothesis import example, given, settings
from hypothesis import strategies as st

from driver.claims.allocation import ClaimRef
from driver.claims.holding import Holding
from driver.claims.record import Record, RecordedDevice
from driver.model.device import Gpu
from driver.model.ownership import ALL_DRA, Owner, Rule, Rules
from driver.offering.handover import Handover, Sources
from tests.examples import examples

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from driver.model.ownership import Ownership

GPUS = tuple(Gpu(uuid=f"GPU-{n}", index=n, minor=n) for n in range(3))
NUMBERS = st.integers(0, len(GPUS) - 1)
ACTIONS = st.one_of(
    st.tuples(st.sampled_from(["schedule", "prepare", "unprepare", "allocate", "list", "end"]), NUMBERS),
    st.tuples(st.just("rules"), st.lists(st.sampled_from(list(Owner)), min_size=3, max_size=3).map(tuple)),
    st.tuples(st.just("time"), st.sampled_from([1, 4, 6, 12])),
    st.tuples(st.just("restart"), st.none()),
    st.tuples(st.just("kubelet"), st.booleans()),
    st.tuples(st.just("look"), st.none()),
)


class Node:
    """Claims and pods on a node; what they may do depends on what the last Snapshot says, as in the agent."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.now = 0.0
        self.rules = Rules()
        self.snapshot: Mapping[str, Ownership] = {}
        self.scheduled: dict[int, float] = {}  # claims that are allocated but not prepared
        self.prepared: set[int] = set()
        self.given: dict[int, float] = {}  # pods that the kubelet does not list yet
        self.listed: set[int] = set()
        self.kubelet = True
        self.during: list[tuple[str, object]] = []  # what happens while holders are asked
        self.handover = self.make()

    def make(self) -> Handover:
        sources = Sources(records=self.records, pods=self.pods)
        return Handover(self.rules, sources, self.file, tell=self, observer=self, settle=5, clock=lambda: self.now)

    def emit(self, reason: str, message: str, *, warning: bool = False) -> None: ...
    def owners(self, counts: Mapping[str, int], waiting: int) -> None: ...

    async def records(self) -> Iterable[Record]:
        found = [_record(number) for number in self.prepared]
        self.happen()
        return found

    async def pods(self) -> Mapping[str, tuple[str, ...]] | None:
        found = {GPUS[number].uuid: ("ns/p",) for number in self.listed} if self.kubelet else None
        self.happen()
        return found

    def happen(self) -> None:
        if self.during:
            self.act(*self.during.pop())

    async def look(self) -> None:
        self.snapshot = await self.handover.owners(GPUS)

    def of(self, number: int) -> Ownership:
        return self.snapshot.get(GPUS[number].uuid, ALL_DRA)

    def act(self, action: str, argument: object) -> None:
        if action == "time":
            for _ in range(int(str(argument))):
                self.now += 1
                self.given = {number: at for number, at in self.given.items() if not self._list_if_due(number, at)}
        elif action == "rules":
            rules = tuple(Rule(owner=owner, indices=(n,)) for n, owner in enumerate(argument))  # type: ignore[arg-type,var-annotated]
            self.rules = Rules(rules=rules)
            self.handover.set_rules(self.rules)
        elif action == "restart":
            self.handover = self.make()
        elif action == "kubelet":
            self.kubelet = bool(argument)
        else:
            getattr(self, action)(argument)
        self.check()

    def _list_if_due(self, number: int, at: float) -> bool:
        if self.now - at >= 9:  # a kubelet lists what it has within that time
            self.listed.add(number)
        return number in self.listed

    def schedule(self, number: int) -> None:
        if self.of(number).offers(Owner.DRA) and number not in self.prepared:
            self.scheduled[number] = self.now

    def prepare(self, number: int) -> None:
        if self.scheduled.pop(number, None) is not None and self.of(number).owner is Owner.DRA:
            self.prepared.add(number)

    def unprepare(self, number: int) -> None:
        self.prepared.discard(number)

    def allocate(self, number: int) -> None:
        busy = number in self.given or number in self.listed
        if self.of(number).offers(Owner.DEVICE_PLUGIN) and not busy and self.kubelet:
            self.given[number] = self.now
            self.handover.given([GPUS[number].uuid])

    def list(self, number: int) -> None:
        if number in self.given:
            del self.given[number]
            self.listed.add(number)

    def end(self, number: int) -> None:
        self.listed.discard(number)

    def check(self) -> None:
        both = self.prepared & (self.given.keys() | self.listed)
        assert not both, f"GPU {both} is given by both"
        for number in range(len(GPUS)):
            assert sum(self.of(number).offers(owner) for owner in Owner) <= 1


def _record(number: int) -> Record:
    holding = Holding(device=GPUS[number].name, gpu_uuid=GPUS[number].uuid)
    device = RecordedDevice(request="r", pool="n", kind="gpu", holding=holding)
    return Record(claim=ClaimRef(namespace="ns", name="c", uid=f"u{number}"), boot_id="b", devices=(device,))


MEANWHILE = ACTIONS.filter(lambda one: one[0] not in ("look", "restart"))
STEPS = st.lists(st.tuples(ACTIONS, st.lists(MEANWHILE, max_size=2)), max_size=40)


ALL_PLUGIN, ALL_OF_DRA = (Owner.DEVICE_PLUGIN,) * 3, (Owner.DRA,) * 3
PREPARED_WHILE_LOOKING = [
    (("schedule", 0), []),
    (("rules", ALL_PLUGIN), []),
    (("look", None), []),
    (("time", 12), []),
    (("look", None), [("prepare", 0), ("end", 1)]),  # the first comes to pass after the records were read
    (("allocate", 0), []),
]
GIVEN_WHILE_LOOKING = [
    (("rules", ALL_PLUGIN), []),
    *[(("look", None), []), (("time", 6), [])] * 3,
    (("rules", ALL_OF_DRA), []),
    (("time", 12), []),
    (("look", None), [("allocate", 0)]),
    (("look", None), []),
    (("schedule", 0), []),
    (("prepare", 0), []),
]


@given(STEPS)
@example(PREPARED_WHILE_LOOKING)
@example(GIVEN_WHILE_LOOKING)
def test_K6_no_gpu_is_ever_given_by_both(steps: list[tuple[tuple[str, object], list[tuple[str, object]]]]) -> None:
    async def run(file: Path) -> None:
        node = Node(file)
        await node.look()
        for (action, argument), during in steps:
            if action == "restart" and node.given:
                continue  # a container that was just given a GPU is listed before an agent comes back
            if action == "look":
                node.during = list(during)
                await node.look()
                node.during = []
            else:
                node.act(action, argument)
            if action == "restart":
                await node.look()
            node.check()

    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(run(Path(directory) / "ownership.json"))


@settings(max_examples=examples(30))
@given(st.lists(st.lists(st.sampled_from(list(Owner)), min_size=3, max_size=3), min_size=1, max_size=6))
def test_with_nobody_in_the_way_every_gpu_comes_to_its_owner(wishes: list[list[Owner]]) -> None:
    async def run(file: Path) -> None:
        node = Node(file)
        await node.look()
        for wish in wishes:
            node.act("rules", tuple(wish))
            for _ in range(4):
                await node.look()
                node.now += 6
            assert [node.of(number).owner for number in range(3)] == wish
            assert all(not node.of(number).waiting_for for number in range(3))

    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(run(Path(directory) / "ownership.json"))
