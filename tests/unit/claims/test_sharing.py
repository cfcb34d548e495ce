"""Time-slicing and MPS: what claims set, and how a GPU is left as it was found."""

from __future__ import annotations

import asyncio
import json
import os

import pytest

from driver.claims.effect import MpsDaemon
from driver.claims.effect_runner import EffectRunner
from driver.config.parameters import Mps
from driver.errors import ClaimRefusedError, DriverError, InvalidValueError, StorageError
from driver.model.mig import Placement
from tests.disk import full_disk
from tests.unit.claims.bench import EMPTY, MPS, SLICING_LONG, Bench, config, part
from tests.unit.claims.hardware import Daemons
from tests.unit.claims.helpers import claim, result, uid


async def test_M7_nothing_is_set_that_nobody_asked_for(bench: Bench) -> None:
    bench.claims.add(claim(1, result("gpu-1")))
    await bench.prepare(1)
    await bench.unprepare(1)
    assert bench.hardware.log == []


async def test_a_time_slice_is_set_and_what_was_found_is_restored(bench: Bench) -> None:
    bench.hardware.slices["GPU-1"] = 2
    bench.hardware.modes["GPU-1"] = "PROHIBITED"
    bench.claims.add(claim(1, result("gpu-1"), config=config(SLICING_LONG)))
    assert isinstance(await bench.prepare(1), tuple)
    assert (bench.hardware.slices["GPU-1"], bench.hardware.modes["GPU-1"]) == (3, "DEFAULT")
    await bench.unprepare(1)
    assert (bench.hardware.slices["GPU-1"], bench.hardware.modes["GPU-1"]) == (2, "PROHIBITED")


async def test_M8_mps_has_a_daemon_and_leaves_the_compute_mode_as_it_was(bench: Bench) -> None:
    bench.claims.add(claim(1, result("gpu-1"), result("gpu-2"), config=config(MPS)))
    assert isinstance(await bench.prepare(1), tuple)
    daemon = bench.hardware.daemons[uid(1)]
    assert (daemon.devices, daemon.active_thread_percentage) == (("GPU-1", "GPU-2"), 50)
    assert bench.hardware.modes == {"GPU-1": "EXCLUSIVE_PROCESS", "GPU-2": "EXCLUSIVE_PROCESS"}
    await bench.unprepare(1)
    assert bench.hardware.picture() == EMPTY


async def test_mps_on_a_made_partition_knows_its_new_uuid(bench: Bench) -> None:
    bench.claims.add(claim(1, result(part(0)), config=config(MPS, "MigDeviceConfig")))
    assert isinstance(await bench.prepare(1), tuple)
    made = bench.hardware.instances["GPU-0"][Placement(0, 1)]
    assert bench.hardware.daemons[uid(1)].devices == (made.uuid,)
    assert bench.hardware.modes == {}
    await bench.unprepare(1)
    assert bench.hardware.picture() == EMPTY


@pytest.mark.parametrize("operation", ["compute", "start"])
async def test_a_failed_mps_start_leaves_the_gpu_as_it_was(bench: Bench, operation: str) -> None:
    bench.claims.add(claim(1, result("gpu-1"), config=config(MPS)))
    bench.hardware.fails = {operation: 1}
    assert isinstance(await bench.prepare(1), DriverError)
    assert bench.hardware.picture() == EMPTY
    assert bench.node.leftovers() == []


async def test_M9_settings_with_admin_access_are_refused_and_admin_disturbs_nobody(bench: Bench) -> None:
    bench.claims.add(claim(1, result("gpu-1"), config=config(MPS)))
    bench.claims.add(claim(2, result("gpu-1", adminAccess=True)))
    bench.claims.add(claim(3, result("gpu-1", adminAccess=True), config=config(SLICING_LONG)))
    owner, monitoring, meddling = await bench.prepare(1, 2, 3)
    assert isinstance(owner, tuple)
    assert isinstance(monitoring, tuple)
    assert isinstance(meddling, ClaimRefusedError)
    assert "has admin access" in str(meddling)
    log = len(bench.hardware.log)
    await bench.unprepare(2)
    assert len(bench.hardware.log) == log


async def test_a_claim_that_is_allocated_anew_and_refused_leaves_nothing_of_before(bench: Bench) -> None:
    bench.claims.add(claim(1, result("gpu-1"), config=config(SLICING_LONG)))
    await bench.prepare(1)
    bench.claims.add(claim(1, result("gpu-7")))
    assert isinstance(await bench.prepare(1), ClaimRefusedError)
    assert bench.hardware.picture() == EMPTY
    assert bench.node.leftovers() == []


async def test_a_daemon_is_reached_with_its_devices_only(bench: Bench) -> None:
    """CUDA finds no other device there, so a container that has only another one must not go to it."""
    results = [result("gpu-1", "shared"), result("gpu-2", "plain")]
    bench.claims.add(claim(1, *results, config=config(MPS, requests=("shared",))))
    assert isinstance(await bench.prepare(1), tuple)
    written = json.loads(bench.cdi(1))
    assert [one["name"].rpartition("-gpu-")[2] for one in written["devices"] if "MPS" in json.dumps(one)] == ["1"]
    assert "MPS" not in json.dumps(written.get("containerEdits"))


async def test_after_a_restart_daemons_are_taken_over_strays_stopped_and_dead_ones_told(bench: Bench) -> None:
    bench.claims.add(claim(1, result("gpu-1"), config=config(MPS)))
    bench.claims.add(claim(2, result("gpu-2"), config=config(MPS)))
    await bench.prepare(1, 2)
    bench.hardware.daemons["stray"] = bench.hardware.daemons[uid(1)]
    del bench.hardware.daemons[uid(2)]
    await bench.restart()
    assert await bench.engine.resume() == (uid(2),)
    assert list(bench.hardware.daemons) == [uid(1)]


@pytest.mark.parametrize("gate", ["start", "sweep"])
async def test_a_daemon_that_another_instance_is_starting_is_neither_dead_nor_a_stray(bench: Bench, gate: str) -> None:
    """A rolling update: the new instance looks for daemons while the old one still serves."""
    bench.claims.add(claim(1, result("gpu-1"), config=config(MPS)))
    arrived, go = asyncio.Event(), asyncio.Event()
    bench.hardware.gates[gate] = arrived, go
    old, new = bench.prepare(1, within=10), bench.start().resume()
    first, second = (old, new) if gate == "start" else (new, old)
    waiting = asyncio.create_task(first)
    await arrived.wait()
    answers = [await second]
    go.set()
    answers.append(await waiting)
    assert () in answers
    assert all(isinstance(answer, tuple) for answer in answers)
    assert list(bench.hardware.daemons) == [uid(1)]


@pytest.mark.parametrize("key", ["1", "GPU-5f3c8a1e-0000-4000-8000-abcdef012345"])
async def test_a_limit_for_a_device_that_the_claim_has_not_got_is_refused(bench: Bench, key: str) -> None:
    sharing = {"strategy": "MPS", "mpsConfig": {"defaultPerDevicePinnedMemoryLimit": {key: "1Gi"}}}
    bench.claims.add(claim(1, result("gpu-1"), config=config(sharing)))
    answer = await bench.prepare(1)
    assert isinstance(answer, ClaimRefusedError)
    assert f"[{key}] is none of its 1 devices" in str(answer)


async def test_limits_are_by_uuid_or_index_before_the_common_one(bench: Bench) -> None:
    limits = {"defaultPinnedDeviceMemoryLimit": "1Gi", "defaultPerDevicePinnedMemoryLimit": {"1": "2Gi"}}
    bench.claims.add(
        claim(1, result("gpu-1"), result("gpu-2"), config=config({"strategy": "MPS", "mpsConfig": limits}))
    )
    await bench.prepare(1)
    assert bench.hardware.daemons[uid(1)].memory_limits == {"GPU-1": 1 << 30, "GPU-2": 2 << 30}


async def test_a_device_with_two_limits_is_refused_before_anything_is_recorded(bench: Bench) -> None:
    settings = Mps(memory_limit_by_device={"0": 2 << 30, "GPU-1": 1 << 30})
    daemon = MpsDaemon(id=uid(1), gpus=("GPU-1",), devices=("gpu-1",), uuids=("GPU-1",), settings=settings)
    with pytest.raises(InvalidValueError, match="names the same device as key '0'"):
        await EffectRunner(daemons=Daemons(bench.hardware)).observe([daemon])


async def test_one_claim_with_two_settings_for_one_daemon_is_refused(bench: Bench) -> None:
    other = {"strategy": "MPS", "mpsConfig": {"defaultActiveThreadPercentage": 10}}
    both = config(MPS, requests=("a",)) + config(other, requests=("b",))
    bench.claims.add(claim(1, result("gpu-1", "a"), result("gpu-2", "b"), config=both))
    answer = await bench.prepare(1)
    assert isinstance(answer, ClaimRefusedError)
    assert "different MPS settings" in str(answer)
    assert bench.hardware.log == []


async def test_a_full_disk_keeps_nobody_from_unpreparing_what_has_effects(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That a claim is half undone must be recorded first: there is a spare file for it."""
    for number, sharing in ((1, MPS), (2, SLICING_LONG)):
        bench.claims.add(claim(number, result(f"gpu-{number}"), config=config(sharing)))
        assert isinstance(await bench.prepare(number), tuple)
    with monkeypatch.context() as disk:
        disk.setattr(os, "open", full_disk(os.open))
        bench.claims.add(claim(3, result("gpu-0"), config=config(SLICING_LONG)))
        assert isinstance(await bench.prepare(3), StorageError)
        assert await bench.unprepare(1, 2) == [None, None]
    assert bench.hardware.picture() == EMPTY
    assert bench.node.leftovers() == []
