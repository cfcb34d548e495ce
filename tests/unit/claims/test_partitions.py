"""Claims that cut GPUs by MIG: done as recorded, undone completely, whatever fails in between."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from driver.claims.gpu_locks import GpuLocks
from driver.errors import (
    ClaimRefusedError,
    DeviceHeldError,
    DeviceNotReadyError,
    DriverError,
    GpuLostError,
    MigError,
    StateBusyError,
)
from driver.model.mig import Placement
from tests.unit.claims.bench import EMPTY, MPS, Bench, config, part
from tests.unit.claims.hardware import dynamic_gpu
from tests.unit.claims.harness import SHARE
from tests.unit.claims.helpers import PROFILE, claim, result, uid

if TYPE_CHECKING:
    from driver.model.mig import MigInstance


async def test_a_partition_is_made_at_its_placement_and_removed_with_mig_mode_as_found(bench: Bench) -> None:
    bench.claims.add(claim(1, result(part(3))))
    (answer,) = await bench.prepare(1)
    assert answer.device == part(3)
    assert bench.hardware.picture() == ({"GPU-0": [Placement(3, 1)]}, {}, ["GPU-0"], {}, {}, [])
    assert await bench.prepare(1) == (answer,)
    assert await bench.unprepare(1) is None
    assert bench.hardware.picture() == EMPTY
    assert bench.node.leftovers() == []


async def test_mig_mode_stays_until_the_last_partition_goes(bench: Bench) -> None:
    for number in (1, 2):
        bench.claims.add(claim(number, result(part(number))))
    assert all(isinstance(answer, tuple) for answer in await bench.prepare(1, 2))
    await bench.unprepare(1)
    assert bench.hardware.picture() == ({"GPU-0": [Placement(2, 1)]}, {}, ["GPU-0"], {}, {}, [])
    await bench.unprepare(2)
    assert bench.hardware.picture() == EMPTY


async def test_mig_mode_that_was_on_stays_on(bench: Bench) -> None:
    bench.hardware.enabled["GPU-0"] = True
    bench.claims.add(claim(1, result(part(0))))
    await bench.prepare(1)
    await bench.unprepare(1)
    assert bench.hardware.enabled["GPU-0"]


async def test_seven_partitions_of_one_gpu_at_once(bench: Bench) -> None:
    for number in range(7):
        bench.claims.add(claim(number, result(part(number))))
    answers = await asyncio.gather(*(bench.prepare(number, within=10) for number in range(7)))
    assert [answer[0].device for answer in answers] == [part(number) for number in range(7)]
    assert await bench.unprepare(*range(7)) == [None] * 7
    assert bench.hardware.picture() == EMPTY


async def test_a_partition_and_its_whole_gpu_exclude_each_other(bench: Bench) -> None:
    bench.claims.add(claim(1, result(part(0))))
    bench.claims.add(claim(2, result("gpu-0")))
    assert isinstance(await bench.prepare(1), tuple)
    assert isinstance(await bench.prepare(2), DeviceHeldError)


@pytest.mark.parametrize("share", [{}, {"shareID": f"{SHARE}1"}])
async def test_M5_two_profiles_at_one_placement_exclude_each_other(bench: Bench, share: dict[str, str]) -> None:
    """1g.10gb and 1g.10gb+me may lie at the same placements: what one claim has made is not what the other wants."""
    first, *others = bench.node.snapshot.gpus
    assert first.mig is not None
    profiles = (PROFILE, replace(PROFILE, name="1g.10gb+me", id=20, max_instances=1))
    cut = replace(first, mig=replace(first.mig, profiles=profiles))
    bench.node.snapshot = replace(bench.node.snapshot, gpus=(cut, *others))
    names = [one.name for one in bench.node.snapshot.devices() if one.name.endswith("-0")]
    bench.claims.add(claim(1, result(names[1], **share)))
    bench.claims.add(claim(2, result(names[2], **share)))
    assert isinstance(await bench.prepare(1), tuple)
    answer = await bench.prepare(2)
    assert isinstance(answer, DeviceHeldError)
    assert answer.holder == uid(1)
    assert await bench.unprepare(1) is None
    assert isinstance(await bench.prepare(2), tuple)


async def test_a_whole_gpu_turns_mig_mode_off_and_back_on(bench: Bench) -> None:
    bench.hardware.enabled["GPU-0"] = True
    bench.node.snapshot = replace(bench.node.snapshot, gpus=(dynamic_gpu(0, enabled=True),))
    bench.claims.add(claim(1, result("gpu-0")))
    assert isinstance(await bench.prepare(1), tuple)
    assert not bench.hardware.enabled["GPU-0"]
    await bench.unprepare(1)
    assert bench.hardware.enabled["GPU-0"]


@pytest.mark.parametrize("operation", ["mode", "create", "create-ci"])
async def test_M1_a_failed_step_is_rolled_back_and_the_next_try_works(bench: Bench, operation: str) -> None:
    bench.claims.add(claim(1, result(part(0))))
    bench.hardware.fails = {operation: 1}
    answer = await bench.prepare(1)
    assert isinstance(answer, MigError)
    assert operation in str(answer)
    assert bench.hardware.picture() == EMPTY
    assert bench.node.leftovers() == []
    assert isinstance(await bench.prepare(1), tuple)


@pytest.mark.parametrize("fails", [{"create-ci": 1, "destroy": 1}, {"create": 1, "mode": 0}])
async def test_M1_a_roll_back_that_fails_is_finished_by_the_next_try(bench: Bench, fails: dict[str, int]) -> None:
    bench.claims.add(claim(1, result(part(0))))
    bench.claims.add(claim(2, result(part(0))))
    bench.hardware.fails = dict(fails)
    assert isinstance(await bench.prepare(1), DriverError)
    if bench.node.leftovers():
        assert isinstance(await bench.prepare(2), DeviceHeldError)  # its half is still there
    assert isinstance(await bench.prepare(1), tuple)
    assert bench.hardware.picture() == ({"GPU-0": [Placement(0, 1)]}, {}, ["GPU-0"], {}, {}, [])


async def test_a_failed_unprepare_keeps_the_record_and_is_finished_by_a_retry(bench: Bench) -> None:
    bench.claims.add(claim(1, result(part(0))))
    await bench.prepare(1)
    bench.hardware.fails = {"destroy": 1}
    assert isinstance(await bench.unprepare(1), MigError)
    assert bench.node.leftovers() == [f"{uid(1)}.json"]
    assert await bench.unprepare(1) is None
    assert bench.hardware.picture() == EMPTY


async def test_a_placement_taken_by_somebody_else_is_an_error_and_left_alone(bench: Bench) -> None:
    bench.hardware.enabled["GPU-0"] = True
    foreign = await bench.hardware.create_mig("GPU-0", 19, Placement(0, 1))
    bench.claims.add(claim(1, result(part(0))))
    answer = await bench.prepare(1, within=0.5)
    assert isinstance(answer, DeviceNotReadyError)
    assert foreign.uuid in str(answer)
    assert bench.hardware.instances["GPU-0"] == {Placement(0, 1): foreign}
    assert bench.node.leftovers() == []


async def test_a_device_that_somebody_put_in_place_of_ours_is_left_alone(bench: Bench) -> None:
    bench.claims.add(claim(1, result(part(0))))
    await bench.prepare(1)
    await bench.hardware.destroy_mig("GPU-0", Placement(0, 1))
    foreign = await bench.hardware.create_mig("GPU-0", 19, Placement(0, 1))
    assert await bench.unprepare(1) is None
    assert bench.hardware.instances["GPU-0"] == {Placement(0, 1): foreign}
    assert bench.node.leftovers() == []


async def test_a_device_that_somebody_makes_just_before_us_is_left_alone(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The placement was free when it was looked at; then somebody was faster."""
    bench.claims.add(claim(1, result(part(0))))
    create = bench.hardware.create_mig
    foreign: list[MigInstance] = []

    async def somebody_first(gpu: str, profile: int, placement: Placement) -> MigInstance:
        foreign.append(await create(gpu, profile, placement))
        return await create(gpu, profile, placement)

    monkeypatch.setattr(bench.hardware, "create_mig", somebody_first)
    assert isinstance(await bench.prepare(1), MigError)
    assert bench.hardware.instances["GPU-0"] == {Placement(0, 1): foreign[0]}
    assert bench.hardware.enabled == {"GPU-0": True}
    assert bench.node.leftovers() == []
    assert bench.ledger.entries() == ()


async def test_what_a_crash_left_half_done_is_undone_at_the_next_start(bench: Bench) -> None:
    """The driver dies after the GPU instance was made: the intent is on disk, nobody comes back for the claim."""
    bench.claims.add(claim(1, result(part(0))))
    bench.hardware.fails = {"create-ci": 1, "destroy": 1}
    await bench.prepare(1)
    assert bench.hardware.picture() != EMPTY
    await bench.restart()
    assert await bench.engine.settle() == 1
    assert bench.hardware.picture() == EMPTY
    assert bench.node.leftovers() == []


async def test_undoing_what_a_crash_left_does_not_refuse_the_kubelets_next_try(bench: Bench) -> None:
    bench.claims.add(claim(1, result(part(0))))
    bench.hardware.fails = {"create-ci": 1, "destroy": 1}
    await bench.prepare(1)
    await bench.restart()
    answers = await asyncio.gather(bench.prepare(1, within=10), bench.engine.settle())
    assert isinstance(answers[0], tuple)
    assert bench.hardware.picture() == ({"GPU-0": [Placement(0, 1)]}, {}, ["GPU-0"], {}, {}, [])


async def test_S7_reconciling_a_claim_that_is_gone_undoes_its_effects(bench: Bench) -> None:
    bench.claims.add(claim(1, result(part(0))))
    bench.claims.add(claim(2, result("gpu-1"), config=config(MPS)))
    await bench.prepare(1, 2)
    bench.claims.objects.clear()
    assert await bench.engine.reconcile() == 2
    assert bench.hardware.picture() == EMPTY
    assert bench.node.leftovers() == []


async def test_S7_a_gpu_whose_holder_is_gone_is_given_to_the_next(bench: Bench) -> None:
    bench.claims.add(claim(1, result(part(0))))
    await bench.prepare(1)
    bench.claims.objects.clear()
    bench.claims.add(claim(2, result("gpu-0")))
    assert isinstance(await bench.prepare(2), tuple)
    assert bench.hardware.picture() == EMPTY


async def test_S6_after_a_reboot_only_mig_mode_is_left_to_restore(bench: Bench) -> None:
    bench.claims.add(claim(1, result(part(0))))
    await bench.prepare(1)
    bench.hardware.instances.clear()  # the reboot
    bench.node.boot_id = "boot-2"
    await bench.restart()
    log = len(bench.hardware.log)
    assert await bench.unprepare(1) is None
    assert bench.hardware.log[log:] == ["mode GPU-0 False"]
    assert bench.hardware.picture() == EMPTY


async def test_the_work_is_finished_though_its_caller_goes_away(bench: Bench) -> None:
    bench.claims.add(claim(1, result(part(0))))
    entered, go = asyncio.Event(), asyncio.Event()
    make = bench.hardware.create_mig

    async def slow(*arguments: Any) -> Any:
        entered.set()
        await go.wait()
        return await make(*arguments)

    bench.hardware.create_mig = slow  # type: ignore[method-assign]
    call = asyncio.create_task(bench.prepare(1, within=30))
    await entered.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    unprepare = asyncio.create_task(bench.unprepare(1, within=30))
    go.set()
    assert await unprepare is None
    assert bench.hardware.picture() == EMPTY
    assert bench.node.leftovers() == []


async def test_two_claims_that_swap_the_whole_gpu_for_partitions(bench: Bench) -> None:
    bench.claims.add(claim(1, result(part(0))))
    await bench.prepare(1)
    bench.claims.add(claim(1, result("gpu-0")))  # allocated anew
    assert [one.device for one in await bench.prepare(1)] == ["gpu-0"]
    assert bench.hardware.picture() == EMPTY


async def test_M9_admin_access_to_a_partition_sees_what_another_claim_has_made_and_makes_none(bench: Bench) -> None:
    bench.claims.add(claim(1, result(part(0))))
    bench.claims.add(claim(2, result(part(0), adminAccess=True)))
    refused = await bench.prepare(2)
    assert isinstance(refused, ClaimRefusedError)
    assert "admin access makes none" in str(refused)
    assert bench.hardware.log == []
    await bench.prepare(1)
    bench.observe()
    log = len(bench.hardware.log)
    assert isinstance(await bench.prepare(2), tuple)
    made = bench.hardware.instances["GPU-0"][Placement(0, 1)]
    assert made.uuid in bench.cdi(2)
    await bench.unprepare(2)
    assert len(bench.hardware.log) == log
    await bench.unprepare(1)
    late = await bench.prepare(2)  # before anybody has looked at the GPUs again
    assert "admin access makes none" in str(late)


async def test_a_hung_instance_that_keeps_a_gpu_collects_no_tries_and_is_named(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("driver.claims.gpu_locks._PATIENCE", 0.05)
    for number, name in ((1, part(0)), (2, part(1)), (3, "gpu-1")):
        bench.claims.add(claim(number, result(name)))
    await bench.prepare(1)
    hung = GpuLocks(bench.node.root / "gpus")
    async with hung.hold(["GPU-0"]):
        before = asyncio.all_tasks()
        for _ in range(2):
            for answer in (await bench.prepare(2, within=0.5), await bench.unprepare(1, within=0.5)):
                assert isinstance(answer, StateBusyError)
                assert "gpus/GPU-0.lock: is an instance of the driver hung?" in str(answer)
        assert asyncio.all_tasks() == before
        assert isinstance(await bench.prepare(3), tuple)  # of another GPU
    assert await bench.unprepare(1) is None
    assert isinstance(await bench.prepare(2), tuple)
    assert bench.hardware.picture() == ({"GPU-0": [Placement(1, 1)]}, {}, ["GPU-0"], {}, {}, [])


async def test_K2_a_claim_on_a_gpu_that_fell_off_the_bus_is_unprepared(bench: Bench) -> None:
    """Its pod must end: the node can't be drained for the reset before."""
    bench.claims.add(claim(1, result(part(0)), config=config(MPS, "MigDeviceConfig")))
    bench.claims.add(claim(2, result("gpu-1"), config=config(MPS)))
    assert all(isinstance(answer, tuple) for answer in await bench.prepare(1, 2))
    bench.hardware.lost = {"GPU-0", "GPU-1"}
    assert await bench.unprepare(1, 2) == [None, None]
    assert bench.node.leftovers() == []
    assert not bench.hardware.daemons
    bench.hardware.lost.clear()  # it was no reset: what was made is still there
    assert bench.hardware.picture() == (
        {"GPU-0": [Placement(0, 1)]},
        {},
        ["GPU-0"],
        {"GPU-1": "EXCLUSIVE_PROCESS"},
        {},
        [],
    )
    await bench.engine.reconcile()
    assert not bench.hardware.instances["GPU-0"]


async def test_a_gpu_that_falls_off_the_bus_between_plan_and_effect_leaves_no_record(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = bench.hardware.create_mig

    async def vanish(*arguments: Any) -> MigInstance:
        bench.hardware.lost = {"GPU-0"}
        return await create(*arguments)

    monkeypatch.setattr(bench.hardware, "create_mig", vanish)
    bench.claims.add(claim(1, result(part(0))))
    assert isinstance(await bench.prepare(1), GpuLostError)
    assert bench.node.leftovers() == []
