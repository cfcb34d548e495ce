"""The monitor's loop: what makes it look again, and who is told of what."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from driver.errors import InventoryError
from driver.inventory.base import Changed, Reading, Xid
from driver.inventory.fake import FakeInventory
from driver.inventory.faults import Faults, GpuFaults, save_faults
from driver.model.choice import GpuChoice
from driver.model.mig import MigState
from driver.model.snapshot import DriverVersions, Problem, Snapshot
from driver.monitor.monitor import Monitor
from tests.unit.monitor.monitors import GPUS, Ears, ScriptedInventory, reading, watching, without
from tests.waiting import until

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in (("_SECOND_TRY", 0.001), ("_LEAST_GAP", 0.001), ("_FIRST_PAUSE", 0.002), ("_TOGETHER", 0.001)):
        monkeypatch.setattr(f"driver.monitor.monitor.{name}", seconds)


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


async def test_a_gpu_that_can_not_be_partitioned_without_privileges_is_told(ears: Ears) -> None:
    """NVML says to a privileged process alone where partitions may lie."""
    mig = MigState(enabled=False, pending=False, switches_at_once=True, memory_slices=0)
    inventory = ScriptedInventory([reading(replace(GPUS[0], mig=mig), *GPUS[1:])])
    monitor = Monitor(inventory, tell=ears, observer=ears, dynamic_mig=GpuChoice.parse("all"))
    task = asyncio.create_task(monitor.run())
    await until(lambda: bool(ears.told))
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    ((reason, message, warning),) = ears.told
    assert (reason, warning) == ("InventoryProblem", True)
    assert message.startswith("gpu-0: no partitions: ")
    assert "CAP_SYS_ADMIN" in message


async def test_a_gpu_that_takes_a_reset_to_be_partitioned_is_told(ears: Ears, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    off = MigState(enabled=False, pending=False, switches_at_once=False, memory_slices=8)
    found = [replace(GPUS[0], mig=off), replace(GPUS[1], mig=replace(off, enabled=True, pending=True)), *GPUS[2:]]
    monitor = Monitor(
        ScriptedInventory([reading(*found)]), tell=ears, observer=ears, dynamic_mig=GpuChoice.parse("0,1")
    )
    task = asyncio.create_task(monitor.run())
    await until(lambda: "partitioned for claims: gpu-1" in caplog.messages)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    ((reason, message, warning),) = ears.told
    assert (reason, warning) == ("InventoryProblem", True)
    assert message.startswith("gpu-0: no partitions: its MIG mode is off, and turning it on takes a reset")


async def test_a_gpu_in_mig_mode_without_mig_devices_is_told_when_it_comes_to_that(ears: Ears) -> None:
    off = MigState(enabled=False, pending=False, switches_at_once=True, memory_slices=8)
    before, after = (replace(GPUS[0], mig=mig) for mig in (off, replace(off, enabled=True, pending=True)))
    others = [replace(GPUS[1], mig=off), *GPUS[2:]]
    inventory = ScriptedInventory([reading(before, *others), reading(after, *others)])
    monitor = Monitor(inventory, tell=ears, observer=ears, resync=0.001)
    task = asyncio.create_task(monitor.run())
    await until(lambda: bool(ears.told) and inventory.reads > 5)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    ((reason, message, warning),) = ears.told
    assert (reason, warning) == ("InventoryProblem", True)
    assert message.startswith("gpu-0: not offered: its MIG mode is on, and there is no MIG device on it")


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
    monkeypatch.setattr("driver.monitor.monitor._LEAST_GAP", 3600)
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
