from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pytest

from driver.errors import InventoryError
from driver.inventory.base import Changed, InventoryEvent, Reading, Xid
from driver.inventory.fake import FakeInventory
from driver.inventory.faults import Faults, GpuFaults, save_faults
from driver.model.choice import NO_GPUS, GpuChoice
from driver.model.device import Gpu, NvLink
from driver.model.health import LOST
from driver.model.mig import MigState
from driver.model.snapshot import DriverVersions, Problem, Snapshot
from driver.monitor import Monitor
from driver.observation import advance, unavailable

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from driver.model.health import Health
    from driver.model.health_facts import HealthReport

VERSIONS = DriverVersions(driver="580.105.08", cuda="13.0")
GPUS = tuple(Gpu(uuid=f"GPU-{n}", index=n, minor=n, product="H100") for n in range(4))


def reading(*gpus: Gpu, problems: tuple[Problem, ...] = ()) -> Reading:
    return Reading(versions=VERSIONS, gpus=gpus, problems=problems)


def without(index: int) -> Reading:
    """GPU `index` of four has gone, and NVML has renumbered those after it."""
    left = [gpu for gpu in GPUS if gpu.index != index]
    return reading(*(replace(gpu, index=position) for position, gpu in enumerate(left)))


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.005)


@dataclass
class ScriptedInventory:
    """Answers with what a test says: readings, errors, or a wait; the last one stays."""

    script: list[Any]
    fake: bool = True
    reads: int = 0
    queue: asyncio.Queue[InventoryEvent | Exception | None] = field(default_factory=asyncio.Queue)
    checks: list[Any] = field(default_factory=lambda: [{}])
    monitored: frozenset[str] | None = None
    checked: int = 0

    async def read(self) -> Reading:
        self.reads += 1
        answer = self.script.pop(0) if len(self.script) > 1 else self.script[0]
        if isinstance(answer, Exception):
            raise answer
        assert isinstance(answer, Reading)
        return answer

    async def health_facts(self) -> dict[str, HealthReport]:
        self.checked += 1
        answer = self.checks.pop(0) if len(self.checks) > 1 else self.checks[0]
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, asyncio.Event):
            await answer.wait()
            return {}
        assert isinstance(answer, dict)
        return answer

    async def events(self) -> AsyncIterator[InventoryEvent]:
        while (event := await self.queue.get()) is not None:
            if isinstance(event, Exception):
                raise event
            yield event

    async def aclose(self) -> None:
        self.queue.put_nowait(None)


@dataclass
class Ears:
    """What the monitor told."""

    told: list[tuple[str, str, bool]] = field(default_factory=list)
    counts: list[dict[str, Any]] = field(default_factory=list)
    xids: list[int] = field(default_factory=list)
    judged: list[dict[tuple[str, str], Health]] = field(default_factory=list)

    def emit(self, reason: str, message: str, *, warning: bool = False) -> None:
        self.told.append((reason, message, warning))

    def inventory_read(self, **counts: Any) -> None:
        self.counts.append(counts)

    def xid(self, xid: int, gpu: str) -> None:
        self.xids.append(xid)

    def health_judged(self, health: Any) -> None:
        self.judged.append(dict(health))

    def reasons(self) -> list[str]:
        return [reason for reason, _, _ in self.told]


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in (("_SECOND_TRY", 0.001), ("_LEAST_GAP", 0.001), ("_FIRST_PAUSE", 0.002), ("_TOGETHER", 0.001)):
        monkeypatch.setattr(f"driver.monitor.{name}", seconds)


@pytest.fixture
def ears() -> Ears:
    return Ears()


@contextlib.asynccontextmanager
async def watching(inventory: Any, ears: Ears, resync: float = 60.0) -> AsyncIterator[tuple[Monitor, list[Snapshot]]]:
    monitor = Monitor(inventory, tell=ears, observer=ears, resync=resync)
    seen: list[Snapshot] = []
    monitor.subscribe(seen.append)
    task = asyncio.create_task(monitor.run())
    try:
        yield monitor, seen
        assert not task.done(), task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


# --- what is known after a reading ------------------------------------------------------------------------------------


def test_A10_names_do_not_shift_when_a_gpu_is_lost() -> None:
    first = advance(None, reading(*GPUS))
    second = advance(first, without(1))
    assert [gpu.name for gpu in second.gpus] == ["gpu-0", "gpu-1", "gpu-2", "gpu-3"]
    assert [gpu.uuid for gpu in second.gpus] == [gpu.uuid for gpu in GPUS]
    assert dict(second.health) == {"GPU-1": LOST}
    third = advance(second, reading(*GPUS))
    assert dict(third.health) == {}
    assert third == first


def test_gpus_are_in_order_of_identity_whatever_nvml_says() -> None:
    old = replace(GPUS[0], uuid="GPU-wsl", minor=None)
    snapshot = advance(None, reading(old, *reversed(GPUS)))
    assert [gpu.uuid for gpu in snapshot.gpus] == ["GPU-0", "GPU-1", "GPU-2", "GPU-3", "GPU-wsl"]


@pytest.mark.parametrize("named", ["GPU-1", "gpu-1"])
def test_a_lost_gpu_says_why(named: str) -> None:
    problem = Problem(object=named, message="GPU is lost (NVML error 15)")
    snapshot = advance(advance(None, reading(*GPUS)), replace(without(1), problems=(problem,)))
    assert snapshot.health_of("GPU-1").reason == "GPU is lost (NVML error 15)"
    assert snapshot.health_of("GPU-1").taints == LOST.taints
    assert snapshot.problems == (problem,)


def test_A11_a_gpu_that_never_answered_is_left_out_and_named() -> None:
    problem = Problem(object="GPU 3", message="GPU 3 can't be read: memory: unknown error")
    snapshot = advance(None, reading(*GPUS[:3], problems=(problem,)))
    assert [gpu.name for gpu in snapshot.gpus] == ["gpu-0", "gpu-1", "gpu-2"]
    assert dict(snapshot.health) == {}
    assert snapshot.problems == (problem,)


def test_a_replaced_gpu_gives_its_name_to_the_new_one() -> None:
    new = replace(GPUS[1], uuid="GPU-new")
    snapshot = advance(advance(None, reading(*GPUS)), reading(GPUS[0], new, *GPUS[2:]))
    assert [gpu.uuid for gpu in snapshot.gpus] == ["GPU-0", "GPU-new", "GPU-2", "GPU-3"]
    assert dict(snapshot.health) == {}


def test_H6_nothing_is_offered_where_nothing_could_be_read() -> None:
    snapshot = unavailable(None, "libnvidia-ml.so.1 not found")
    assert snapshot == Snapshot(problems=(Problem(object="nvml", message="libnvidia-ml.so.1 not found"),))


def test_H6_all_known_gpus_are_lost_when_nvml_fails_later() -> None:
    before = advance(None, reading(*GPUS))
    snapshot = unavailable(before, "second init failed")
    assert snapshot.gpus == before.gpus
    assert snapshot.versions == VERSIONS
    assert {health.reason for health in snapshot.health.values()} == {"second init failed"}
    assert snapshot.health.keys() == {gpu.uuid for gpu in GPUS}
    assert not any(health.healthy for health in snapshot.health.values())
    assert advance(snapshot, reading(*GPUS)) == before


# --- which GPUs are partitioned for claims ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "chosen"),
    [("off", []), ("all", [0, 1, 2, 3]), ("1,3", [1, 3]), ("h100", [0, 1, 2, 3]), ("*L4*", [])],
)
def test_the_setting_says_which_gpus_are_partitioned(text: str, chosen: list[int]) -> None:
    snapshot = advance(None, reading(*GPUS), GpuChoice.parse(text))
    assert snapshot.dynamic_mig == {GPUS[index].uuid for index in chosen}


def test_A10_an_index_does_not_move_to_a_neighbour_when_a_gpu_drops() -> None:
    choice = GpuChoice.parse("1,2")
    first = advance(None, reading(*GPUS), choice)
    dropped = advance(first, without(1), choice)
    assert first.dynamic_mig == dropped.dynamic_mig == {"GPU-1", "GPU-2"}
    assert advance(dropped, reading(*GPUS), choice) == first
    assert unavailable(first, "down").dynamic_mig == first.dynamic_mig


def test_a_gpu_that_appears_is_chosen_then() -> None:
    choice = GpuChoice.parse("3")
    first = advance(None, reading(*GPUS[:3]), choice)
    assert not first.dynamic_mig
    assert advance(first, reading(*GPUS), choice).dynamic_mig == {"GPU-3"}


def test_what_a_gpu_tells_of_itself_does_not_change_with_mig_mode() -> None:
    """NVML reports neither NVLink nor the usual addressing mode while the mode is on."""
    off = MigState(enabled=False, pending=False, switches_at_once=True, memory_slices=8)
    idle = replace(GPUS[0], mig=off, memory=80 << 30, addressing_mode="HMM", nvlink=NvLink(active_links=18))
    cut = replace(GPUS[0], mig=replace(off, enabled=True), memory=79 << 30, addressing_mode="None")
    for choice, shown in ((GpuChoice.parse("all"), idle), (NO_GPUS, cut)):
        first = advance(None, reading(idle), choice)
        second = advance(first, reading(cut), choice)
        assert second.gpus == (replace(shown, mig=cut.mig),)
        assert advance(second, reading(idle), choice) == first
    assert advance(None, reading(cut), GpuChoice.parse("all")).gpus == (cut,)


async def test_the_choice_is_told_once(ears: Ears, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    mig = MigState(enabled=False, pending=False, switches_at_once=True, memory_slices=8)
    found = [replace(GPUS[0], mig=mig), *GPUS[1:]]
    inventory = ScriptedInventory([reading(*found), reading(*found[:3])])
    monitor = Monitor(inventory, tell=ears, observer=ears, dynamic_mig=GpuChoice.parse("0,1,9"), resync=0.01)
    task = asyncio.create_task(monitor.run())
    await until(lambda: inventory.reads > 3)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert monitor.snapshot.dynamic_mig == {"GPU-0", "GPU-1"}
    assert [
        message for message in caplog.messages if message.startswith(("partitioned", "without MIG", "dynamic_mig"))
    ] == [
        "partitioned for claims: gpu-0",
        "without MIG: gpu-1",
        "dynamic_mig: '9' means no GPU of this node",
    ]


# --- the loop ---------------------------------------------------------------------------------------------------------


async def test_an_unchanged_reading_wakes_nobody(ears: Ears) -> None:
    inventory = ScriptedInventory([reading(*GPUS)])
    async with watching(inventory, ears, resync=0.001) as (monitor, seen):
        await until(lambda: inventory.reads > 5)
        assert len(seen) == 1
        assert monitor.snapshot is seen[0]
        assert monitor.missing() == ""
        assert ears.told == []


async def test_a_late_subscriber_gets_the_current_snapshot(ears: Ears) -> None:
    async with watching(ScriptedInventory([reading(*GPUS)]), ears) as (monitor, seen):
        await monitor.ready.wait()
        late: list[Snapshot] = []
        monitor.subscribe(late.append)
        assert late == seen


async def test_a_subscriber_that_fails_costs_itself(ears: Ears, caplog: pytest.LogCaptureFixture) -> None:
    inventory = ScriptedInventory([reading(*GPUS), without(1)])
    async with watching(inventory, ears) as (monitor, seen):
        await monitor.ready.wait()

        def fail(_: Snapshot) -> None:
            raise ZeroDivisionError

        monitor.subscribe(fail)
        after: list[Snapshot] = []
        monitor.subscribe(after.append)
        monitor.refresh()
        await until(lambda: len(after) == 2)
        assert len(seen) == 2
        assert "ZeroDivisionError" in caplog.text


async def test_H5_one_lost_gpu_is_told_once_and_recovers(ears: Ears) -> None:
    problem = Problem(object="GPU-1", message="GPU is lost")
    bad = replace(without(1), problems=(problem,))
    inventory = ScriptedInventory([reading(*GPUS), bad, bad, bad, bad, reading(*GPUS)])
    async with watching(inventory, ears, resync=0.001) as (_, seen):
        await until(lambda: len(seen) == 3)
    assert [set(snapshot.health) for snapshot in seen] == [set(), {"GPU-1"}, set()]
    assert ears.told == [
        ("InventoryProblem", "GPU-1: GPU is lost", True),
        ("GPUUnhealthy", "gpu-1 (GPU-1): GPU is lost", True),
        ("GPURecovered", "gpu-1 (GPU-1) is healthy again", False),
    ]
    assert ears.counts[0] == {"healthy": 4, "unhealthy": 0, "problems": 0, "whole": True}
    assert {"healthy": 3, "unhealthy": 1, "problems": 1, "whole": True} in ears.counts


@pytest.mark.parametrize("once", [without(2), InventoryError("timed out")])
async def test_a_failure_is_asked_again_before_it_counts(ears: Ears, once: Reading | InventoryError) -> None:
    inventory = ScriptedInventory([reading(*GPUS), once, reading(*GPUS)])
    async with watching(inventory, ears) as (monitor, seen):
        await monitor.ready.wait()
        monitor.refresh()
        await until(lambda: inventory.reads == 3)
        await until(lambda: len(ears.counts) == 2)
        assert len(seen) == 1
        assert ears.told == []


async def test_H6_without_a_library_it_is_empty_and_says_so_until_one_appears(ears: Ears) -> None:
    absent = InventoryError("libnvidia-ml.so.1 not found below /run/nvidia/driver")
    inventory = ScriptedInventory([absent, absent, absent, reading(*GPUS)])
    async with watching(inventory, ears) as (monitor, seen):
        await until(lambda: len(seen) == 1)
        assert seen[0].gpus == ()
        assert "libnvidia-ml.so.1 not found" in monitor.missing()
        assert ears.told == [("InventoryProblem", f"nvml: {absent}", True)]
        await until(lambda: len(seen) == 2)
        assert len(seen[1].gpus) == 4
        assert monitor.missing() == ""
        assert ears.counts[0]["whole"] is False


async def test_P7_a_change_of_the_driver_is_taken_up(ears: Ears) -> None:
    newer = replace(reading(*GPUS), versions=DriverVersions(driver="590.44.01", cuda="13.1"))
    inventory = ScriptedInventory([reading(*GPUS), newer])
    async with watching(inventory, ears) as (monitor, seen):
        await monitor.ready.wait()
        inventory.queue.put_nowait(Changed(why="libnvidia-ml.so.1 was replaced"))
        await until(lambda: len(seen) == 2)
        assert seen[1].versions.driver == "590.44.01"


async def test_a_gpu_that_appears_later_is_told(ears: Ears) -> None:
    inventory = ScriptedInventory([reading(*GPUS[:3]), reading(*GPUS)])
    async with watching(inventory, ears) as (monitor, seen):
        await monitor.ready.wait()
        inventory.queue.put_nowait(Changed(why="hot-plug"))
        await until(lambda: len(seen) == 2)
    assert ears.told == [("GPUAppeared", "gpu-3 (GPU-3, H100) appeared", False)]


async def test_a_replaced_gpu_is_told(ears: Ears) -> None:
    new = replace(GPUS[1], uuid="GPU-new")
    inventory = ScriptedInventory([reading(*GPUS), reading(GPUS[0], new, *GPUS[2:])])
    async with watching(inventory, ears) as (monitor, seen):
        await monitor.ready.wait()
        monitor.refresh()
        await until(lambda: len(seen) == 2)
    assert ears.reasons() == ["GPUReplaced", "GPUAppeared"]


async def test_xids_are_told_and_make_it_look(ears: Ears) -> None:
    inventory = ScriptedInventory([reading(*GPUS)])
    async with watching(inventory, ears) as (monitor, _):
        await monitor.ready.wait()
        before = inventory.reads
        inventory.queue.put_nowait(Xid(gpu_uuid="GPU-2", xid=79))
        inventory.queue.put_nowait(Xid(gpu_uuid="GPU-?", xid=13, gpu_instance_id=1, compute_instance_id=0))
        await until(lambda: ears.xids == [79, 13])
        await until(lambda: inventory.reads > before)
    assert [one for one in ears.told if one[0] == "XidError"] == [
        ("XidError", "gpu-2 (GPU-2) reports XID 79", True),
        ("XidError", "an unknown GPU (GPU-?) reports XID 13 in GPU instance 1, compute instance 0", True),
    ]


async def test_a_storm_of_events_causes_few_readings(ears: Ears, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("driver.monitor._LEAST_GAP", 3600)
    inventory = ScriptedInventory([reading(*GPUS)])
    async with watching(inventory, ears) as (monitor, _):
        await monitor.ready.wait()
        for n in range(1000):
            inventory.queue.put_nowait(Xid(gpu_uuid="GPU-2", xid=n))
        await until(lambda: len(ears.xids) == 1000)
        assert inventory.reads == 1


@pytest.mark.parametrize("end", [None, RuntimeError("the event set died")])
async def test_events_that_end_are_listened_to_again(
    ears: Ears, end: Exception | None, caplog: pytest.LogCaptureFixture
) -> None:
    inventory = ScriptedInventory([reading(*GPUS)])
    async with watching(inventory, ears) as (monitor, _):
        await monitor.ready.wait()
        before = inventory.reads
        inventory.queue.put_nowait(end)
        inventory.queue.put_nowait(Xid(gpu_uuid="GPU-0", xid=31))
        await until(lambda: ears.xids == [31])
        await until(lambda: inventory.reads > before)
    assert "events" in caplog.text


async def test_a_bug_in_the_inventory_does_not_end_the_process(ears: Ears) -> None:
    inventory = ScriptedInventory([ZeroDivisionError("a bug"), ZeroDivisionError("a bug"), reading(*GPUS)])
    async with watching(inventory, ears) as (_, seen):
        await until(lambda: len(seen) == 2)
    assert "internal error: ZeroDivisionError('a bug')" in seen[0].problems[0].message
    assert len(seen[1].gpus) == 4


async def test_with_real_faults_of_fake_gpus(tmp_path: Path, ears: Ears) -> None:
    faults = tmp_path / "faults.yaml"
    inventory = FakeInventory.from_spec("h100:4", node_name="n", faults_file=faults)
    async with watching(inventory, ears) as (monitor, seen):
        await monitor.ready.wait()
        uuid = monitor.snapshot.gpus[1].uuid
        save_faults(faults, Faults(gpus={uuid: GpuFaults(lost=True)}))
        await until(lambda: uuid in monitor.snapshot.health)
        assert [gpu.name for gpu in monitor.snapshot.gpus] == ["gpu-0", "gpu-1", "gpu-2", "gpu-3"]
        save_faults(faults, Faults(nvml_down=True))
        await until(lambda: len(monitor.snapshot.health) == 4)
        faults.unlink()
        await until(lambda: not monitor.snapshot.health)
        assert monitor.snapshot == seen[0]
    await inventory.aclose()
