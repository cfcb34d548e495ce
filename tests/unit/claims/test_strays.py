"""MIG devices whose records are lost are removed if they are ours and nobody uses them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from driver.errors import DriverError, MigError, PlacementTakenError, RecordError
from driver.model.mig import Placement
from tests.unit.claims.bench import EMPTY, SLICING_LONG, Bench, config, part
from tests.unit.claims.helpers import claim, ref, result, uid

if TYPE_CHECKING:
    from pathlib import Path

    from driver.claims.record import PreparedDevice

SHARE = "b98a178b-5be9-4ea2-99fc-1977135f03c"
ON = ({}, {}, ["GPU-0"], {}, {}, [])  # what was found of MIG mode was in the record
MADE = ({"GPU-0": [Placement(0, 1)]}, {}, ["GPU-0"], {}, {}, [])


@pytest.fixture
async def bench(tmp_path: Path) -> Bench:
    """A claim has a partition, and then its record is lost."""
    bench = Bench(tmp_path)
    bench.claims.add(claim(1, result(part(0))))
    await prepared(bench, 1)
    return bench


async def prepared(bench: Bench, number: int) -> tuple[PreparedDevice, ...]:
    answer = await bench.prepare(number)
    assert isinstance(answer, tuple), answer
    return answer


def lose(bench: Bench, number: int = 1) -> None:
    (bench.node.claims_dir / f"{uid(number)}.json").unlink()


async def test_what_a_record_owns_stays(bench: Bench) -> None:
    await bench.restart()
    await bench.engine.settle()
    await bench.engine.reconcile()
    assert bench.hardware.picture() == MADE
    assert len(bench.ledger.entries()) == 1


async def test_a_device_whose_record_was_removed_by_hand_is_removed_at_the_next_start(bench: Bench) -> None:
    lose(bench)
    await bench.restart()
    assert await bench.engine.settle() == 0
    assert bench.hardware.picture() == ON
    assert bench.ledger.entries() == ()


async def test_reconciling_removes_it_too_and_its_placement_is_free_again(bench: Bench) -> None:
    lose(bench)
    assert await bench.unprepare(1) is None  # nothing tells what it had
    await bench.engine.reconcile()
    bench.claims.add(claim(2, result(part(0))))
    await prepared(bench, 2)


@pytest.mark.parametrize("used", [frozenset({ref(1).key}), None])
async def test_a_device_that_a_pod_uses_or_may_use_stays(bench: Bench, used: frozenset[tuple[str, str]] | None) -> None:
    lose(bench)
    bench.used = used
    await bench.restart()
    await bench.engine.settle()
    assert bench.hardware.picture() == MADE
    bench.used = frozenset()
    await bench.engine.reconcile()
    assert bench.hardware.picture() == ON


async def test_a_share_of_another_claim_whose_pod_lives_keeps_it(bench: Bench) -> None:
    for number in (2, 3):
        bench.claims.add(claim(number, result(part(1), shareID=f"{SHARE}{number}")))
        await prepared(bench, number)
    assert await bench.unprepare(2) is None
    lose(bench, 3)
    bench.used = frozenset({ref(1).key, ref(3).key})
    await bench.engine.reconcile()
    assert sorted(bench.hardware.instances["GPU-0"]) == [Placement(0, 1), Placement(1, 1)]
    bench.used = frozenset({ref(1).key})
    await bench.engine.reconcile()
    assert bench.hardware.picture() == MADE


async def test_S1_a_device_of_a_record_that_can_t_be_read_stays_until_that_is_settled(bench: Bench) -> None:
    (bench.node.claims_dir / f"{uid(1)}.json").write_bytes(b"garbage")
    await bench.restart()
    await bench.engine.settle()
    assert isinstance(await bench.unprepare(1), RecordError)
    assert bench.hardware.picture() == MADE
    (kept,) = (bench.node.claims_dir / "quarantine").iterdir()
    kept.unlink()  # as the error said
    assert await bench.unprepare(1) is None
    await bench.engine.reconcile()
    assert bench.hardware.picture() == ON


async def test_what_somebody_put_in_place_of_ours_stays(bench: Bench) -> None:
    lose(bench)
    await bench.hardware.destroy_mig("GPU-0", Placement(0, 1))
    foreign = await bench.hardware.create_mig("GPU-0", 19, Placement(0, 1))
    await bench.restart()
    await bench.engine.settle()
    assert bench.hardware.instances["GPU-0"] == {Placement(0, 1): foreign}
    assert bench.ledger.entries() == ()


async def test_a_device_that_nobody_noted_stays(bench: Bench) -> None:
    foreign = await bench.hardware.create_mig("GPU-0", 19, Placement(3, 1))
    await bench.restart()
    await bench.engine.settle()
    assert bench.hardware.instances["GPU-0"][Placement(3, 1)] == foreign


async def test_a_device_in_use_is_tried_again_and_does_not_hold_up_the_start(bench: Bench) -> None:
    lose(bench)
    bench.hardware.fails["destroy"] = 1
    await bench.restart()
    assert await bench.engine.settle() == 0
    assert bench.hardware.picture() == MADE
    await bench.engine.reconcile()
    assert bench.hardware.picture() == ON


async def test_a_gpu_instance_left_bare_with_its_record_lost_is_removed(bench: Bench) -> None:
    """The driver died before the compute instance was made, and then its record was lost."""
    bench.claims.add(claim(2, result(part(4))))
    bench.hardware.fails = {"create-ci": 1, "destroy": 1}
    assert isinstance(await bench.prepare(2), MigError)
    assert bench.hardware.bare == {"GPU-0": {Placement(4, 1)}}
    lose(bench, 2)
    await bench.restart()
    await bench.engine.settle()
    assert bench.hardware.picture() == MADE


async def test_a_record_that_can_not_be_given_up_keeps_no_other_and_no_stray(bench: Bench) -> None:
    bench.claims.add(claim(2, result(part(1))))
    bench.claims.add(claim(3, result("gpu-1"), config=config(SLICING_LONG)))
    await prepared(bench, 2)
    await prepared(bench, 3)
    lose(bench)
    bench.claims.objects.clear()
    bench.hardware.fails["slice"] = 1
    with pytest.raises(DriverError, match="slice failed on demand"):
        await bench.engine.reconcile()
    assert bench.hardware.picture() == ({}, {}, [], {}, {"GPU-1": 3}, [])
    assert await bench.engine.reconcile() == 1
    assert bench.hardware.picture() == EMPTY


async def test_half_done_work_that_can_not_be_undone_keeps_no_other_half_done(bench: Bench) -> None:
    for number, name in ((2, "gpu-1"), (3, "gpu-2")):
        bench.claims.add(claim(number, result(name), config=config(SLICING_LONG)))
        await prepared(bench, number)
    bench.hardware.fails["slice"] = 2
    for answer in await bench.unprepare(2, 3):
        assert isinstance(answer, DriverError)
    bench.hardware.fails["slice"] = 1
    with pytest.raises(DriverError, match="slice failed on demand"):
        await bench.engine.settle()
    assert len([record for record in await bench.engine.records() if not record.ready]) == 1
    assert await bench.engine.settle() == 1
    assert bench.hardware.picture() == MADE


async def test_a_claim_that_finds_a_stray_in_its_place_has_it_removed(bench: Bench) -> None:
    lose(bench)
    bench.claims.add(claim(2, result(part(0))))
    bench.used = frozenset({ref(1).key})
    assert isinstance(await bench.prepare(2), PlacementTakenError)
    bench.used = frozenset()
    await prepared(bench, 2)
    assert bench.hardware.picture() == MADE


async def test_a_stray_is_removed_to_the_end_though_the_call_that_found_it_ends(bench: Bench) -> None:
    """What has begun on a GPU goes on whatever becomes of a call, so the GPU stays locked until it has ended."""
    lose(bench)
    bench.claims.add(claim(2, result(part(0))))
    arrived, go = bench.hardware.gates["destroy"] = asyncio.Event(), asyncio.Event()
    call = asyncio.create_task(bench.prepare(2, within=30))
    await arrived.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    next_call = asyncio.create_task(bench.prepare(2, within=30))
    go.set()
    assert isinstance(await next_call, tuple)
    assert [one.split()[0] for one in bench.hardware.log].count("destroy") == 1
    assert bench.hardware.picture() == MADE


async def test_a_claim_that_finds_what_somebody_else_made_leaves_it(bench: Bench) -> None:
    foreign = await bench.hardware.create_mig("GPU-0", 19, Placement(3, 1))
    bench.claims.add(claim(2, result(part(3))))
    assert isinstance(await bench.prepare(2), PlacementTakenError)
    assert bench.hardware.instances["GPU-0"][Placement(3, 1)] == foreign
