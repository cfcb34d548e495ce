"""What the monitor makes of checks that fail, and of what others know of a GPU's health."""

from __future__ import annotations

import pytest

from driver.errors import InventoryError
from driver.inventory.base import Changed
from driver.model.health import Effect, Taint
from driver.model.health_facts import Fact, HealthReport, Kind
from driver.model.health_rules import Rules
from tests.unit.monitor.judging import ALL_WELL, MIG, judging, taints
from tests.unit.monitor.monitors import GPUS, Ears, ScriptedInventory, reading, without
from tests.waiting import until


async def test_a_query_that_fails_is_asked_again_before_it_counts(ears: Ears) -> None:
    failing = {**ALL_WELL, "GPU-0": HealthReport(failed=("fabric",))}
    inventory = ScriptedInventory([reading(*GPUS)], checks=[failing, ALL_WELL])
    async with judging(inventory, ears) as (monitor, seen):
        await until(lambda: inventory.checked == 2)
        await until(lambda: ears.counts)
        assert monitor.snapshot.problems == ()
        assert len(seen) == 1


async def test_a_query_that_keeps_failing_is_told_and_leaves_what_was_known(ears: Ears) -> None:
    bad = {**ALL_WELL, "GPU-0": HealthReport(remap_failed=True)}
    failing = {**ALL_WELL, "GPU-0": HealthReport(failed=("remap_failed",))}
    inventory = ScriptedInventory([reading(*GPUS)], checks=[bad, failing])
    async with judging(inventory, ears) as (monitor, _):
        monitor.refresh()
        await until(lambda: monitor.snapshot.problems)
        assert monitor.snapshot.problems[0].object == "gpu-0"
        assert "remap_failed" in monitor.snapshot.problems[0].message
        assert taints(monitor, "GPU-0") == ["row-remap-failed="]


@pytest.mark.parametrize("error", [InventoryError("NVML is stuck"), ZeroDivisionError("a bug")])
async def test_a_check_that_fails_as_a_whole_costs_itself(ears: Ears, error: Exception) -> None:
    inventory = ScriptedInventory([reading(*GPUS)], checks=[error])
    async with judging(inventory, ears) as (monitor, _):
        assert monitor.missing() == ""
        assert monitor.snapshot.health == {}
        assert [problem.object for problem in monitor.snapshot.problems] == ["health checks"]
        inventory.checks = [ALL_WELL]
        monitor.refresh()
        await until(lambda: monitor.snapshot.problems == ())


async def test_H4_a_gpu_without_events_is_not_monitored_which_is_not_unhealthy(ears: Ears) -> None:
    inventory = ScriptedInventory([reading(*GPUS)], monitored=frozenset({"GPU-0", "GPU-1", "GPU-2"}))
    async with judging(inventory, ears) as (monitor, _):
        health = monitor.snapshot.health_of("GPU-3")
        assert (health.healthy, taints(monitor, "GPU-3")) == (True, ["unmonitored="])
        assert {*monitor.snapshot.health} == {"GPU-3"}
        inventory.monitored = frozenset()  # the set of events has died
        inventory.queue.put_nowait(Changed(why="NVML events ended"))
        await until(lambda: len(monitor.snapshot.health) == 4)
        inventory.monitored = frozenset(gpu.uuid for gpu in GPUS)
        monitor.refresh()
        await until(lambda: monitor.snapshot.health == {})


async def test_what_others_know_counts_while_they_say_so(ears: Ears) -> None:
    mps: dict[str, list[Fact]] = {}
    probe: dict[str, list[Fact]] = {}
    async with judging(ScriptedInventory([reading(*GPUS, MIG)]), ears) as (monitor, _):
        monitor.also(lambda: mps)
        monitor.also(lambda: probe)
        device = monitor.snapshot.devices()[-1]
        mps |= {"GPU-0": [Fact(Kind.MPS)], "GPU-1": [Fact(Kind.MPS)], device.name: [Fact(Kind.MPS)]}
        monitor.reconsider()
        await until(lambda: {*monitor.snapshot.health} == {"GPU-0", "GPU-1"})
        assert not monitor.snapshot.health_of_device(device).healthy
        assert monitor.snapshot.health_of(device.gpu.uuid).healthy
        assert ("GPUUnhealthy", f"MIG device {device.name}: mps-dead", True) in ears.told
        probe["GPU-0"] = [Fact(Kind.PROBE)]
        del mps["GPU-0"], mps[device.name]
        monitor.reconsider()
        await until(lambda: taints(monitor, "GPU-0") == ["probe-failed="])
        assert taints(monitor, "GPU-1") == ["mps-dead="]
        mps.clear()
        probe.clear()
        monitor.reconsider()
        await until(lambda: not monitor.snapshot.health and not monitor.snapshot.device_health)
        assert ("GPURecovered", f"MIG device {device.name} is healthy again", False) in ears.told


async def test_serious_faults_may_evict_if_the_rules_say_so(ears: Ears) -> None:
    inventory = ScriptedInventory([reading(*GPUS)])
    async with judging(inventory, ears, rules=Rules(serious=Effect.NO_EXECUTE)) as (monitor, _):
        inventory.script = [without(1)]
        monitor.refresh()
        await until(lambda: monitor.snapshot.health)
        assert monitor.snapshot.health_of("GPU-1").taints == (Taint("gpu.nvidia.com/gpu-lost", "", Effect.NO_EXECUTE),)
