from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from driver.claims.allocation import ClaimRef
from driver.claims.holding import Holding
from driver.claims.record import Record, RecordedDevice
from driver.errors import StorageError
from driver.model.ownership import Owner, Rule, Rules
from driver.offering.handover import Handover, Sources
from tests.unit.slices.helpers import gpus

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

GPUS = gpus("h100@mig=1g.10gb*2,h100:3")
DRA, PLUGIN = Owner.DRA, Owner.DEVICE_PLUGIN
FIRST = Rules(rules=(Rule(owner=PLUGIN, indices=(1,), source="rule"),))


def record(*indices: int, name: str = "c", admin: bool = False) -> Record:
    devices = tuple(
        RecordedDevice(
            request="r",
            pool="n",
            kind="gpu",
            holding=Holding(device=GPUS[index].name, gpu_uuid=GPUS[index].uuid, admin_access=admin),
        )
        for index in indices
    )
    return Record(claim=ClaimRef(namespace="ns", name=name, uid=f"uid-{name}"), boot_id="b", devices=devices)


class World:
    """What a handover sees and says."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.now = 100.0
        self.claims: list[Record] = []
        self.pods: dict[str, tuple[str, ...]] | None = {}
        self.broken = False
        self.events: list[tuple[str, str, bool]] = []
        self.counts: dict[str, int] = {}
        self.waiting = 0

    def handover(self, rules: Rules = Rules()) -> Handover:  # noqa: B008 (immutable)
        sources = Sources(records=self._records, pods=self._pods)
        return Handover(rules, sources, self.file, tell=self, observer=self, settle=5, clock=lambda: self.now)

    async def _records(self) -> Iterable[Record]:
        if self.broken:
            raise StorageError("cannot read")
        return self.claims

    async def _pods(self) -> Mapping[str, tuple[str, ...]] | None:
        return self.pods

    def emit(self, reason: str, message: str, *, warning: bool = False) -> None:
        self.events.append((reason, message, warning))

    def owners(self, counts: Mapping[str, int], waiting: int) -> None:
        self.counts, self.waiting = dict(counts), waiting


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "state/ownership.json")


async def owner(handover: Handover, index: int = 1) -> str:
    found = (await handover.owners(GPUS)).get(GPUS[index].uuid)
    if found is None:
        return "dra"
    return found.owner.value if found.offers(found.owner) else f"{found.owner.value}→{found.wanted.value}"


async def test_what_is_simply_dras_is_not_listed_and_no_event_tells_of_it(world: World) -> None:
    assert await world.handover().owners(GPUS) == {}
    assert world.events == []
    assert world.counts == {"dra": 4, "device-plugin": 0, "withheld": 0}


async def test_a_gpu_goes_over_when_its_claims_are_gone(world: World) -> None:
    handover = world.handover()
    world.claims = [record(1), record(2, name="other")]
    assert await owner(handover) == "dra"
    handover.set_rules(FIRST)
    assert await owner(handover) == "dra→device-plugin"
    assert world.waiting == 1
    assert world.events == [
        (
            "GPUOwnershipWaiting",
            f"gpu-1 ({GPUS[1].uuid}) is to go from dra to device-plugin, and waits for claim ns/c",
            False,
        )
    ]
    world.now += 60
    assert await owner(handover) == "dra→device-plugin"
    world.claims.pop(0)
    assert await owner(handover) == "withheld→device-plugin"
    assert await owner(handover) == "device-plugin"
    assert [reason for reason, _, _ in world.events] == ["GPUOwnershipWaiting", "GPUOwnerChanged"]
    assert world.waiting == 0


async def test_claims_that_are_on_their_way_are_waited_for(world: World) -> None:
    handover = world.handover()
    await handover.owners(GPUS)
    handover.set_rules(FIRST)
    for _ in range(2):
        assert await owner(handover) == "dra→device-plugin"
        world.now += 2
    world.now += 2
    assert await owner(handover) == "withheld→device-plugin"


async def test_a_change_of_mind_gives_the_gpu_back_at_once(world: World) -> None:
    handover = world.handover()
    world.claims = [record(1)]
    await handover.owners(GPUS)
    handover.set_rules(FIRST)
    await handover.owners(GPUS)
    handover.set_rules(Rules())
    assert await owner(handover) == "dra"


async def test_back_from_the_device_plugin_when_its_pods_are_gone(world: World) -> None:
    handover = world.handover(FIRST)
    assert await owner(handover) == "device-plugin"
    world.pods = {GPUS[1].uuid: ("ns/p",)}
    handover.set_rules(Rules())
    assert await owner(handover) == "device-plugin→dra"
    assert "pod ns/p" in world.events[-1][1]
    world.pods = {}
    world.now += 10
    assert await owner(handover) == "withheld→dra"
    assert await owner(handover) == "dra"


async def test_a_mig_device_holds_its_gpu(world: World) -> None:
    world.pods = {GPUS[0].mig.instances[1].uuid: ("ns/p",)} if GPUS[0].mig else {}
    assert await owner(world.handover(), 0) == "device-plugin→dra"


async def test_what_was_just_given_is_held_until_the_kubelet_lists_it(world: World) -> None:
    handover = world.handover(FIRST)
    await handover.owners(GPUS)
    handover.given([GPUS[1].uuid])
    handover.set_rules(Rules())
    assert await owner(handover) == "device-plugin→dra"
    world.now += 11
    assert await owner(handover) == "withheld→dra"


async def test_a_claim_that_was_prepared_during_the_last_look_keeps_the_gpu(world: World) -> None:
    handover = world.handover()
    await handover.owners(GPUS)
    handover.set_rules(FIRST)
    await handover.owners(GPUS)
    world.now += 10
    assert await owner(handover) == "withheld→device-plugin"
    world.claims = [record(1)]
    assert await owner(handover) == "dra→device-plugin"


async def test_K6_what_another_device_plugin_gave_away_is_withheld_with_a_warning(world: World) -> None:
    handover = world.handover()
    await handover.owners(GPUS)
    world.pods = {GPUS[2].uuid: ("ns/p",)}
    assert await owner(handover, 2) == "withheld→dra"
    ((reason, message, warning),) = world.events
    assert (reason, warning) == ("GPUOwnershipWaiting", True)
    assert "is offered to nobody" in message
    world.pods = {}
    assert await owner(handover, 2) == "dra"


async def test_admin_access_holds_nothing(world: World) -> None:
    world.claims = [record(1, admin=True)]
    assert await owner(world.handover(FIRST)) == "device-plugin"


async def test_a_restart_goes_on_from_where_it_was(world: World) -> None:
    world.claims = [record(1)]
    first = world.handover()
    await first.owners(GPUS)
    again = world.handover(FIRST)
    assert await owner(again) == "dra→device-plugin"
    world.claims, world.pods = [], None
    assert await owner(world.handover(FIRST)) == "dra→device-plugin"  # the kubelet can't tell: nothing moves
    world.pods = {}
    third = world.handover(FIRST)
    await third.owners(GPUS)
    world.now += 10
    assert await owner(third) == "withheld→device-plugin"
    assert await owner(world.handover(FIRST)) == "device-plugin"


@pytest.mark.parametrize("content", ["", "{", "[]", '{"gpus": [{}], "absent": []}'])
async def test_an_unreadable_file_leaves_the_holders(world: World, content: str) -> None:
    world.file.parent.mkdir()
    world.file.write_text(content)
    world.claims = [record(1)]
    assert await owner(world.handover(FIRST)) == "dra→device-plugin"
    assert json.loads(world.file.read_bytes())["gpus"][1]["owner"] == "dra"


async def test_the_file_tells_all_and_is_written_only_when_it_changes(world: World) -> None:
    handover = world.handover(FIRST)
    world.claims = [record(2)]
    await handover.owners(GPUS)
    status = json.loads(world.file.read_bytes())
    assert [(gpu["name"], gpu["owner"], gpu["heldBy"]) for gpu in status["gpus"]] == [
        ("gpu-0", "dra", []),
        ("gpu-1", "device-plugin", []),
        ("gpu-2", "dra", ["claim ns/c"]),
        ("gpu-3", "dra", []),
    ]
    before = world.file.stat().st_ino
    await handover.owners(GPUS)
    assert world.file.stat().st_ino == before


async def test_a_gpu_that_is_away_keeps_its_owner(world: World) -> None:
    handover = world.handover(FIRST)
    await handover.owners(GPUS)
    handover.set_rules(Rules(default=PLUGIN))
    await handover.owners(GPUS[:1])
    absent = {gpu["uuid"]: gpu["owner"] for gpu in json.loads(world.file.read_bytes())["absent"]}
    assert absent[GPUS[1].uuid] == "device-plugin"
    assert await owner(world.handover(Rules(default=PLUGIN))) == "device-plugin"


async def test_unreadable_records_stop_all_moves(world: World) -> None:
    handover = world.handover(FIRST)
    await handover.owners(GPUS)
    world.broken = True
    handover.set_rules(Rules())
    assert await owner(handover) == "device-plugin"
    world.file.unlink()
    assert await owner(world.handover()) == "withheld→dra"


async def test_problems_of_the_rules_are_told_once(world: World) -> None:
    handover = world.handover(Rules(rules=(Rule(owner=PLUGIN, indices=(9,), source="--ownership"),)))
    await handover.owners(GPUS)
    await handover.owners(GPUS)
    assert world.events == [
        ("OwnershipProblem", "--ownership names GPUs that this node does not have: index 9", True),
    ]
    assert json.loads(world.file.read_bytes())["problems"] == [world.events[0][1]]
