"""What the monitor makes of events and checks: verdicts, in time, and no more often than they may be given."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING

import pytest

from driver.config.plugin_health import HealthFlags, plugin_rules
from driver.inventory.base import Changed, Xid
from driver.inventory.fake import FakeInventory
from driver.inventory.faults import Faults, GpuFaults, save_faults
from driver.inventory.health_faults import HealthFaults
from driver.model.device import MigDevice, MigPartition
from driver.model.health import HEALTHY, Effect, Taint
from driver.model.health_facts import HealthReport, Recovery
from driver.model.health_rules import Rules
from driver.monitor.health_memory import HealthMemory
from tests.unit.monitor.judging import ALL_WELL, MIG, NEEDED, judging, taints
from tests.unit.monitor.monitors import GPUS, Ears, ScriptedInventory, reading
from tests.waiting import until

if TYPE_CHECKING:
    from pathlib import Path

NEVER = 3600.0


# --- XIDs -------------------------------------------------------------------------------------------------------------


async def test_a_serious_xid_takes_the_gpu_out_of_service(ears: Ears) -> None:
    async with judging(ScriptedInventory([reading(*GPUS)]), ears) as (monitor, seen):
        monitor._inventory.queue.put_nowait(Xid(gpu_uuid="GPU-2", xid=79))
        await until(lambda: len(seen) == 2)
        assert {*seen[1].health} == {"GPU-2"}
        assert not seen[1].health_of("GPU-2").healthy
        assert seen[1].health_of("GPU-2").taints == (Taint("gpu.nvidia.com/xid", "79", Effect.NO_SCHEDULE),)
    assert ("GPUUnhealthy", "gpu-2 (GPU-2): XID 79: the GPU has fallen off the bus", True) in ears.told
    assert ears.judged[-1]["gpu-2", "GPU-2"] == seen[1].health_of("GPU-2")
    assert ears.judged[-1]["gpu-0", "GPU-0"] is HEALTHY


async def test_H1_an_applications_fault_is_told_and_takes_nothing_away(ears: Ears) -> None:
    async with judging(ScriptedInventory([reading(*GPUS)]), ears) as (monitor, seen):
        monitor._inventory.queue.put_nowait(Xid(gpu_uuid="GPU-2", xid=31))
        await until(lambda: len(seen) == 2)
        assert monitor.snapshot.health_of("GPU-2").healthy
        assert monitor.snapshot.health_of("GPU-2").taints[0].effect is Effect.NONE
    assert "GPUUnhealthy" not in ears.reasons()
    assert "GPUHealthNotice" in ears.reasons()
    assert all(count["unhealthy"] == 0 for count in ears.counts)


async def test_H3_a_minor_event_hides_no_serious_one(ears: Ears) -> None:
    async with judging(ScriptedInventory([reading(*GPUS)]), ears) as (monitor, _):
        for xid in (79, 43):
            monitor._inventory.queue.put_nowait(Xid(gpu_uuid="GPU-1", xid=xid))
        await until(lambda: taints(monitor, "GPU-1") == ["xid=79", "xid=43"])
        assert not monitor.snapshot.health_of("GPU-1").healthy


async def test_H2_it_recovers_by_evidence(ears: Ears) -> None:
    needed = {**ALL_WELL, "GPU-1": NEEDED}
    inventory = ScriptedInventory([reading(*GPUS)], checks=[ALL_WELL, needed, ALL_WELL])
    async with judging(inventory, ears) as (monitor, _):
        inventory.queue.put_nowait(Xid(gpu_uuid="GPU-1", xid=79))
        await until(lambda: "GPURecovered" in ears.reasons())
        assert monitor.snapshot.health == {}
    assert ears.reasons().index("GPUUnhealthy") < ears.reasons().index("GPURecovered")


async def test_H2_without_evidence_it_stays(ears: Ears) -> None:
    inventory = ScriptedInventory([reading(*GPUS)], checks=[ALL_WELL])
    async with judging(inventory, ears, quiet=0.001) as (monitor, _):
        inventory.queue.put_nowait(Xid(gpu_uuid="GPU-1", xid=79))
        inventory.queue.put_nowait(Xid(gpu_uuid="GPU-1", xid=48))
        await until(lambda: "xid=79" in taints(monitor, "GPU-1"))
        before = inventory.checked
        await until(lambda: inventory.checked > before + 5)
        assert taints(monitor, "GPU-1") == ["xid=79"]  # the other by quiet time, as the GPU says that it needs nothing


async def test_what_quiet_time_does_not_clear_is_not_looked_at_again_and_again(
    ears: Ears, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("driver.monitor.monitor._UNHEALTHY", 5.0)
    cannot_tell = dict.fromkeys(ALL_WELL, HealthReport())
    inventory = ScriptedInventory([reading(*GPUS)], checks=[cannot_tell])
    async with judging(inventory, ears, quiet=0.001) as (monitor, _):
        inventory.queue.put_nowait(Xid(gpu_uuid="GPU-1", xid=48))
        inventory.queue.put_nowait(Xid(gpu_uuid="GPU-of-nobody", xid=31))
        await until(lambda: taints(monitor, "GPU-1") == ["xid=48"])
        before = inventory.checked
        monitor.refresh()
        await until(lambda: inventory.checked > before)
        assert monitor._until_next() == 5.0


async def test_an_applications_fault_is_over_after_some_quiet_time(ears: Ears) -> None:
    inventory = ScriptedInventory([reading(*GPUS)], checks=[ALL_WELL])
    async with judging(inventory, ears, quiet=0.05) as (monitor, _):
        inventory.queue.put_nowait(Xid(gpu_uuid="GPU-1", xid=31))
        await until(lambda: taints(monitor, "GPU-1") == ["xid=31"])
        await until(lambda: taints(monitor, "GPU-1") == [])


async def test_other_rules_judge_what_is_known_anew(ears: Ears) -> None:
    inventory = ScriptedInventory([reading(*GPUS)], checks=[ALL_WELL])
    async with judging(inventory, ears) as (monitor, _):
        inventory.queue.put_nowait(Xid(gpu_uuid="GPU-1", xid=79))
        await until(lambda: not monitor.snapshot.health_of("GPU-1").healthy)
        monitor.set_rules(plugin_rules(Rules(), HealthFlags(ignored_xids=(79,))))
        await until(lambda: monitor.snapshot.health_of("GPU-1").healthy)
        assert taints(monitor, "GPU-1") == ["xid=79"]
        monitor.set_rules(Rules())
        await until(lambda: not monitor.snapshot.health_of("GPU-1").healthy)


@pytest.mark.parametrize("xid", [0, -1, 10_000, 2**31, 2**64 - 1])
async def test_garbage_is_told_and_is_no_fact(ears: Ears, xid: int) -> None:
    inventory = ScriptedInventory([reading(*GPUS)])
    async with judging(inventory, ears) as (monitor, _seen):
        before = inventory.reads
        inventory.queue.put_nowait(Xid(gpu_uuid="GPU-1", xid=xid))
        await until(lambda: inventory.reads > before)
        assert ears.xids == [xid]
        assert "XidError" in ears.reasons()
        assert monitor.snapshot.health == {}


async def test_an_xid_of_a_gpu_that_does_not_answer_is_known_when_it_does(ears: Ears) -> None:
    inventory = ScriptedInventory([reading(*GPUS[:3])])
    async with judging(inventory, ears) as (monitor, _):
        inventory.queue.put_nowait(Xid(gpu_uuid="GPU-3", xid=95))
        await until(lambda: ears.xids == [95])
        assert monitor.snapshot.health == {}
        inventory.script = [reading(*GPUS)]
        inventory.queue.put_nowait(Changed(why="it is back"))
        await until(lambda: taints(monitor, "GPU-3") == ["xid=95"])


async def test_a_new_gpu_does_not_inherit_the_faults_of_the_one_it_replaces(ears: Ears) -> None:
    new = replace(GPUS[1], uuid="GPU-new")
    inventory = ScriptedInventory([reading(*GPUS)])
    async with judging(inventory, ears) as (monitor, _):
        inventory.queue.put_nowait(Xid(gpu_uuid="GPU-1", xid=79))
        await until(lambda: taints(monitor, "GPU-1") == ["xid=79"])
        inventory.script = [reading(GPUS[0], new, *GPUS[2:])]
        inventory.queue.put_nowait(Changed(why="replaced"))
        await until(lambda: monitor.snapshot.health == {})
        assert {gpu.uuid for gpu in monitor.snapshot.gpus} == {"GPU-0", "GPU-new", "GPU-2", "GPU-3"}


# --- speed, and storms ------------------------------------------------------------------------------------------------


async def test_H8_a_call_that_hangs_delays_no_event(ears: Ears) -> None:
    inventory = ScriptedInventory([reading(*GPUS)])
    async with judging(inventory, ears) as (monitor, _):
        stuck = asyncio.Event()
        inventory.checks = [stuck]
        before = inventory.checked
        monitor.refresh()
        await until(lambda: inventory.checked > before)
        inventory.queue.put_nowait(Xid(gpu_uuid="GPU-2", xid=79))
        await until(lambda: taints(monitor, "GPU-2") == ["xid=79"])
        assert not stuck.is_set()


async def test_a_slow_check_does_not_hold_up_what_was_read(ears: Ears, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("driver.monitor.monitor._CHECK_PATIENCE", 0.001)
    async with judging(ScriptedInventory([reading(*GPUS)], checks=[asyncio.Event()]), ears) as (monitor, seen):
        assert len(seen[0].gpus) == 4
        assert monitor.missing() == ""


async def test_a_storm_of_xids_makes_few_snapshots_and_the_first_at_once(
    ears: Ears, monkeypatch: pytest.MonkeyPatch
) -> None:
    inventory = ScriptedInventory([reading(*GPUS)])
    async with judging(inventory, ears) as (monitor, seen):
        monkeypatch.setattr("driver.monitor.monitor._LEAST_GAP", NEVER)
        monitor._judged_at = float("-inf")  # nothing was published for a long time
        inventory.queue.put_nowait(Xid(gpu_uuid="GPU-2", xid=48))
        await until(lambda: len(seen) == 2)
        for number in range(1000):
            inventory.queue.put_nowait(Xid(gpu_uuid="GPU-2", xid=number % 200 + 1))
        await until(lambda: len(ears.xids) == 1001)
        assert len(seen) == 2  # the next one is due in an hour


async def test_the_same_xid_again_and_again_is_one_snapshot(ears: Ears, caplog: pytest.LogCaptureFixture) -> None:
    inventory = ScriptedInventory([reading(*GPUS)])
    async with judging(inventory, ears) as (_, seen):
        for _ in range(1000):
            inventory.queue.put_nowait(Xid(gpu_uuid="GPU-2", xid=48))
        await until(lambda: len(ears.xids) == 1000)
        before = inventory.reads
        await until(lambda: inventory.reads > before + 1)
        assert len(seen) == 2
    assert sum("reports XID" in line for line in caplog.text.splitlines()) < 50


async def test_a_storm_of_garbage_costs_few_events_and_nothing_is_remembered_of_it(ears: Ears) -> None:
    inventory = ScriptedInventory([reading(*GPUS)])
    async with judging(inventory, ears) as (monitor, _):
        for number in range(3000):
            inventory.queue.put_nowait(Xid(gpu_uuid=f"GPU-unknown-{number}", xid=79))
        await until(lambda: len(ears.xids) == 3000)
        assert ears.reasons().count("XidError") <= 32  # 16 in a minute; the Events' queue is for other news, too
        assert len(monitor._charts._charts) <= 1024
        inventory.queue.put_nowait(Xid(gpu_uuid="GPU-1", xid=79))
        await until(lambda: taints(monitor, "GPU-1") == ["xid=79"])
        assert set(monitor.snapshot.health) == {"GPU-1"}


async def test_an_event_and_what_the_check_after_it_finds_are_one_snapshot(
    ears: Ears, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("driver.monitor.monitor._TOGETHER", NEVER)
    inventory = ScriptedInventory([reading(*GPUS)], checks=[ALL_WELL])
    async with judging(inventory, ears) as (monitor, seen):
        await until(lambda: ears.counts)
        inventory.checks = [{**ALL_WELL, "GPU-1": NEEDED}]
        inventory.queue.put_nowait(Xid(gpu_uuid="GPU-1", xid=79))
        await until(lambda: len(seen) == 2)
        assert taints(monitor, "GPU-1") == ["reset-required=", "xid=79"]


# --- MIG --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dynamic", [False, True])
async def test_a_tenants_fault_concerns_its_mig_device_only(ears: Ears, dynamic: bool) -> None:
    assert MIG.mig is not None
    first, second = (MigDevice(gpu=MIG, instance=one) for one in MIG.mig.instances)
    inventory = ScriptedInventory([reading(MIG)])
    async with judging(inventory, ears) as (monitor, _):
        gi = first.instance.gpu_instance_id
        inventory.queue.put_nowait(Xid(gpu_uuid=MIG.uuid, xid=31, gpu_instance_id=gi, compute_instance_id=0))
        await until(lambda: monitor.snapshot.device_health)
        snapshot = replace(monitor.snapshot, dynamic_mig=frozenset({MIG.uuid} if dynamic else ()))
        assert snapshot.health == {}
        told = [device for device in snapshot.devices() if snapshot.health_of_device(device).taints]
        assert [device.name for device in told] == [first.name]
        assert isinstance(told[0], MigPartition if dynamic else MigDevice)
        assert second.name in {device.name for device in snapshot.devices()}
        # With its instance, the fault goes: whoever is there next has not caused it.
        inventory.script = [reading(replace(MIG, mig=replace(MIG.mig, instances=MIG.mig.instances[1:])))]
        monitor.refresh()
        await until(lambda: not monitor.snapshot.device_health)
        inventory.script = [reading(MIG)]
        before = inventory.reads
        monitor.refresh()
        await until(lambda: inventory.reads > before + 1 or monitor.snapshot.gpus == (MIG,))
        assert not monitor.snapshot.device_health


async def test_a_serious_fault_in_an_instance_concerns_all_of_the_gpu(ears: Ears) -> None:
    inventory = ScriptedInventory([reading(MIG)])
    async with judging(inventory, ears) as (monitor, _):
        inventory.queue.put_nowait(Xid(gpu_uuid=MIG.uuid, xid=94, gpu_instance_id=7, compute_instance_id=0))
        await until(lambda: monitor.snapshot.health)
        snapshot = monitor.snapshot
        assert [snapshot.health_of_device(device).healthy for device in snapshot.devices()] == [False, False]
        assert monitor.snapshot.device_health == MappingProxyType({})


# --- what outlives the process ----------------------------------------------------------------------------------------


async def test_a_serious_xid_outlives_the_agent_but_not_a_boot(ears: Ears, tmp_path: Path) -> None:
    file = tmp_path / "state" / "health.json"
    inventory = ScriptedInventory([reading(*GPUS)], checks=[ALL_WELL])
    async with judging(inventory, ears, memory=HealthMemory(file, "boot-1")) as (monitor, _):
        for event in (Xid(gpu_uuid="GPU-1", xid=79), Xid(gpu_uuid="GPU-2", xid=31), Xid(gpu_uuid="GPU-3", xid=48)):
            inventory.queue.put_nowait(event)
        await until(lambda: len(monitor.snapshot.health) == 3)
    again = ScriptedInventory([reading(*GPUS)], checks=[ALL_WELL])
    async with judging(again, ears, memory=HealthMemory(file, "boot-1")) as (monitor, seen):
        assert {*seen[0].health} == {"GPU-1", "GPU-3"}
        assert taints(monitor, "GPU-1") == ["xid=79"]
    after_boot = ScriptedInventory([reading(*GPUS)])
    async with judging(after_boot, ears, memory=HealthMemory(file, "boot-2")) as (monitor, _):
        assert monitor.snapshot.health == {}


@pytest.mark.parametrize("recovery", [None, Recovery.NONE])
async def test_a_reset_while_the_agent_was_away_is_seen(ears: Ears, tmp_path: Path, recovery: Recovery | None) -> None:
    """It needed a reset when it was seen last, or its driver can't tell."""
    memory = HealthMemory(tmp_path / "health.json", "boot-1")
    needed = dict.fromkeys(ALL_WELL, NEEDED if recovery else HealthReport())
    inventory = ScriptedInventory([reading(*GPUS)], checks=[needed])
    async with judging(inventory, ears, memory=memory) as (monitor, _):
        inventory.queue.put_nowait(Xid(gpu_uuid="GPU-1", xid=79))
        await until(lambda: "xid=79" in taints(monitor, "GPU-1"))
        before = inventory.checked
        await until(lambda: inventory.checked > before + 2)
    well = ScriptedInventory([reading(*GPUS)], checks=[dict.fromkeys(ALL_WELL, HealthReport(recovery=recovery))])
    async with judging(well, ears, memory=memory) as (monitor, _):
        await until(lambda: monitor.snapshot.health == {})


# --- fake GPUs --------------------------------------------------------------------------------------------------------


async def test_with_fake_gpus_from_fault_to_recovery(tmp_path: Path, ears: Ears) -> None:
    faults = tmp_path / "faults.yaml"
    inventory = FakeInventory.from_spec("h100:4", node_name="n", faults_file=faults)
    async with judging(inventory, ears) as (monitor, seen):
        uuid = monitor.snapshot.gpus[1].uuid
        save_faults(faults, Faults(gpus={uuid: GpuFaults(xids=(79,))}))
        await until(lambda: taints(monitor, uuid) == ["reset-required=", "xid=79"])
        save_faults(faults, Faults(gpus={uuid: GpuFaults(health=HealthFaults(row_remap="failed", ecc=2))}))
        await until(lambda: taints(monitor, uuid) == ["ecc-uncorrected=", "row-remap-failed="])
        save_faults(faults, Faults(gpus={uuid: GpuFaults(not_supported=("events",))}))
        await until(lambda: taints(monitor, uuid) == ["unmonitored="])
        save_faults(faults, Faults(gpus={uuid: GpuFaults(fails="ecc")}))
        await until(lambda: monitor.snapshot.problems and taints(monitor, uuid) == [])
        faults.unlink()
        await until(lambda: monitor.snapshot == seen[0])
    await inventory.aclose()
