from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import pytest

from driver.agent.pod_events import PodEvents
from driver.claims.allocation import ClaimRef
from driver.claims.holding import Holding
from driver.claims.record import Record, RecordedDevice
from driver.errors import ApiNotFoundError, ApiUnavailableError, StorageError
from driver.model.device import Gpu, MigDevice
from driver.model.health_facts import Fact, Kind
from driver.model.health_rules import judge
from driver.model.snapshot import Snapshot
from tests.unit.slices.helpers import snapshot
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from driver.model.device import Device

GPUS = tuple(Gpu(uuid=f"GPU-{n}", index=n, minor=n) for n in range(3))
WELL = Snapshot(gpus=GPUS)
XID = judge([Fact(Kind.XID, 79)])
NOTICE = judge([Fact(Kind.XID, 31)])


def sick(*indexes: int, health: Any = XID) -> Snapshot:
    return replace(WELL, health=MappingProxyType({f"GPU-{n}": health for n in indexes}))


def record(name: str, *gpus: int, ready: bool = True) -> Record:
    devices = tuple(
        RecordedDevice(request="r", pool="n", kind="gpu", holding=Holding(device=f"gpu-{n}", gpu_uuid=f"GPU-{n}"))
        for n in gpus
    )
    ref = ClaimRef(namespace="ns", name=name, uid=f"uid-{name}")
    return Record(claim=ref, boot_id="b", devices=devices, ready=ready)


def claim(name: str, *pods: str, uid: str = "") -> dict[str, Any]:
    users = [{"resource": "pods", "name": pod, "uid": f"uid-{pod}"} for pod in pods]
    return {"metadata": {"name": name, "uid": uid or f"uid-{name}"}, "status": {"reservedFor": users}}


@dataclass
class World:
    """Records and claims, and what was told."""

    records: list[Record] = field(default_factory=list)
    claims: dict[str, Any] = field(default_factory=dict)
    told: list[tuple[str, str, bool]] = field(default_factory=list)
    messages: list[str] = field(default_factory=list)
    reads: int = 0
    asked: int = 0
    broken: bool = False
    plugged: dict[str, tuple[str, ...]] | None = None

    async def device_holders(self) -> dict[str, tuple[str, ...]] | None:
        return self.plugged

    async def all_records(self) -> list[Record]:
        self.reads += 1
        if self.broken:
            raise StorageError("disk")
        return list(self.records)

    async def claim(self, namespace: str, name: str) -> dict[str, Any]:
        self.asked += 1
        answer = self.claims.get(name)
        if answer is None:
            raise ApiNotFoundError("no such claim", status=404)
        if isinstance(answer, Exception):
            raise answer
        assert isinstance(answer, dict)
        return answer

    def emit(
        self, reason: str, message: str, *, warning: bool = False, involved: Mapping[str, str] | None = None
    ) -> None:
        assert involved is not None
        assert involved["kind"] == "Pod"
        assert involved["namespace"] == "ns"
        assert involved.get("uid") in (f"uid-{involved['name']}", None)
        self.told.append((reason, involved["name"], warning))
        self.messages.append(message)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("driver.agent.pod_events._FIRST_PAUSE", 0.002)


@contextlib.asynccontextmanager
async def telling(world: World) -> AsyncIterator[PodEvents]:
    events = PodEvents(world.all_records, world, world, world)
    task = asyncio.create_task(events.run())
    try:
        yield events
        assert not task.done(), task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def idle(events: PodEvents, world: World) -> None:
    """Wait until all that was published has been looked at."""
    await until(lambda: not events._changed.is_set())
    for _ in range(20):
        await asyncio.sleep(0)


async def test_the_pods_of_a_claim_are_told_once_and_again_when_it_recovers() -> None:
    world = World(records=[record("a", 0, 1), record("b", 2)], claims={"a": claim("a", "p1", "p2")})
    async with telling(world) as events:
        for snapshot in (WELL, sick(1), sick(1)):
            events.publish(snapshot)
            await idle(events, world)
        assert world.told == [("GPUUnhealthy", "p1", True), ("GPUUnhealthy", "p2", True)]
        assert world.messages[0] == ("device gpu-1 of claim a is unhealthy: XID 79: the GPU has fallen off the bus")
        events.publish(WELL)
        await until(lambda: len(world.told) == 4)
        assert world.told[2:] == [("GPURecovered", "p1", False), ("GPURecovered", "p2", False)]
        await idle(events, world)
        assert events._told == {}


async def test_a_new_reason_is_news() -> None:
    world = World(records=[record("a", 0)], claims={"a": claim("a", "p1")})
    async with telling(world) as events:
        events.publish(sick(0))
        await until(lambda: len(world.told) == 1)
        events.publish(sick(0, health=judge([Fact(Kind.XID, 79), Fact(Kind.XID, 48)])))
        await until(lambda: len(world.told) == 2)


async def test_nobody_is_asked_while_all_is_well() -> None:
    world = World(records=[record("a", 0)], claims={"a": claim("a", "p1")})
    async with telling(world) as events:
        events.publish(WELL)
        await idle(events, world)
        events.publish(sick(0, health=NOTICE))
        await idle(events, world)
    assert (world.reads, world.asked, world.told) == (0, 0, [])


async def test_what_concerns_one_mig_device_only_is_told_to_its_pods() -> None:
    gpus = snapshot("h100@mig=1g.10gb*2")
    first, second = gpus.devices()
    held = [_mig_record("a", first), _mig_record("b", second)]
    world = World(records=held, claims={name: claim(name, f"pod-{name}") for name in "ab"})
    dead = judge([Fact(Kind.MPS, detail="its MPS daemon died")])
    async with telling(world) as events:
        events.publish(replace(gpus, device_health=MappingProxyType({first.name: dead})))
        await until(lambda: world.told == [("GPUUnhealthy", "pod-a", True)])
        events.publish(gpus)
        await until(lambda: world.told[1:] == [("GPURecovered", "pod-a", False)])


async def test_pods_of_the_device_plugin_are_told_too() -> None:
    node = snapshot("h100,h100@mig=1g.10gb*2")
    whole, first, _ = node.devices()
    assert isinstance(first, MigDevice)
    uuids = whole.gpu.uuid, first.instance.uuid
    world = World(plugged={uuids[0]: ("ns/p1",), uuids[1]: ("ns/p2",), "GPU-of-nobody": ("ns/p3",)})
    async with telling(world) as events:
        events.publish(replace(node, health=MappingProxyType({first.gpu.uuid: XID})))
        await until(lambda: world.told == [("GPUUnhealthy", "p2", True)])
        assert world.messages[0].startswith(f"device {first.name} ({uuids[1]}) is unhealthy: XID 79")
        events.publish(replace(node, health=MappingProxyType({one.gpu.uuid: XID for one in (whole, first)})))
        await until(lambda: world.told[1:] == [("GPUUnhealthy", "p1", True)])
        world.plugged, reads = None, world.reads  # the kubelet does not answer this time
        events.publish(replace(node, health=MappingProxyType({one.gpu.uuid: XID for one in (whole, first)})))
        await until(lambda: world.reads > reads)
        await idle(events, world)
        world.plugged = {uuids[0]: ("ns/p1",)}  # the other has ended
        events.publish(node)
        await until(lambda: world.told[2:] == [("GPURecovered", "p1", False)])
        await idle(events, world)
        assert events._told == {}


def _mig_record(name: str, device: Device) -> Record:
    holding = Holding(device=device.name, gpu_uuid=device.gpu.uuid)
    held = RecordedDevice(request="r", pool="n", kind="mig", holding=holding)
    return replace(record(name), devices=(held,))


@pytest.mark.parametrize(
    ("held", "answer"),
    [
        (record("a", 1), claim("a", "p1")),  # another GPU
        (record("a", 0, ready=False), claim("a", "p1")),
        (record("a", 0), None),
        (record("a", 0), claim("a", "p1", uid="another")),
        (record("a", 0), claim("a")),
        (record("a", 0), {"metadata": {"uid": "uid-a"}}),
        (
            record("a", 0),
            {"metadata": {"uid": "uid-a"}, "status": {"reservedFor": [{"resource": "jobs", "name": "x"}]}},
        ),
    ],
)
async def test_nobody_is_told_whom_it_does_not_concern(held: Record, answer: Any) -> None:
    world = World(records=[held], claims={"a": answer} if answer else {})
    async with telling(world) as events:
        events.publish(sick(0))
        await until(lambda: world.reads)
        await idle(events, world)
        assert world.told == []


async def test_what_can_not_be_asked_now_is_asked_again() -> None:
    world = World(
        records=[record("a", 0), record("b", 1)],
        claims={"a": ApiUnavailableError("away", status=503), "b": claim("b", "p2")},
    )
    async with telling(world) as events:
        events.publish(sick(0, 1))
        await until(lambda: world.told == [("GPUUnhealthy", "p2", True)])  # one claim costs itself only
        await until(lambda: world.asked > 3)
        world.claims["a"] = claim("a", "p1")
        await until(lambda: len(world.told) == 2)
        assert world.told[1] == ("GPUUnhealthy", "p1", True)


async def test_records_that_can_not_be_read_are_read_again() -> None:
    world = World(records=[record("a", 0)], claims={"a": claim("a", "p1")}, broken=True)
    async with telling(world) as events:
        events.publish(sick(0))
        await until(lambda: world.reads > 2)
        world.broken = False
        await until(lambda: len(world.told) == 1)


async def test_a_claim_that_is_gone_is_forgotten() -> None:
    world = World(records=[record("a", 0)], claims={"a": claim("a", "p1")})
    async with telling(world) as events:
        events.publish(sick(0))
        await until(lambda: len(world.told) == 1)
        world.records = []
        events.publish(sick(0, 1))
        await until(lambda: events._told == {})
