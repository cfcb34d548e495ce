"""Claims for shares of one device: the settings, daemons and limits that they have in common."""

from __future__ import annotations

from typing import Any

import pytest

from driver.errors import ClaimRefusedError, DriverError, InvalidValueError
from driver.model.mig import Placement
from tests.unit.claims.bench import EMPTY, MPS, SLICING_LONG, SLICING_SHORT, Bench, config, part, share
from tests.unit.claims.harness import SHARE
from tests.unit.claims.helpers import claim, result, uid


async def test_shares_that_agree_share_the_setting_and_the_last_restores_it(bench: Bench) -> None:
    for number in (1, 2):
        bench.claims.add(claim(number, share(number), config=config(SLICING_LONG)))
    assert all(isinstance(answer, tuple) for answer in await bench.prepare(1, 2))
    await bench.unprepare(1)
    assert bench.hardware.slices["GPU-1"] == 3
    await bench.unprepare(2)
    assert bench.hardware.slices["GPU-1"] == 0


@pytest.mark.parametrize("sharing", [SLICING_LONG, MPS])
async def test_shares_that_are_unprepared_in_one_call_restore_the_setting(
    bench: Bench, sharing: dict[str, Any]
) -> None:
    """A pod with two claims: the kubelet's one call releases both, and each is the other's last."""
    for number in (1, 2, 3):
        bench.claims.add(claim(number, share(number), config=config(sharing)))
    await bench.prepare(1, 2, 3)
    assert await bench.unprepare(1, 2, 3) == [None, None, None]
    assert bench.hardware.picture() == EMPTY
    assert bench.node.leftovers() == []


async def test_what_was_found_is_inherited_from_a_claim_that_is_half_undone(bench: Bench) -> None:
    for number in (1, 2):
        bench.claims.add(claim(number, share(number), config=config(SLICING_LONG)))
    await bench.prepare(1)
    bench.hardware.fails = {"slice": 1}
    assert isinstance(await bench.unprepare(1), DriverError)
    assert isinstance(await bench.prepare(2), tuple)
    await bench.unprepare(1)
    await bench.unprepare(2)
    assert bench.hardware.picture() == EMPTY


async def test_shares_of_two_partitions_of_one_gpu_have_two_daemons(bench: Bench) -> None:
    for number in (1, 2):
        shared = result(part(number), shareID=f"{SHARE}{number}")
        bench.claims.add(claim(number, shared, config=config(MPS, "MigDeviceConfig")))
    assert all(isinstance(answer, tuple) for answer in await bench.prepare(1, 2, within=5))
    made = bench.hardware.instances["GPU-0"]
    assert {name: spec.devices for name, spec in bench.hardware.daemons.items()} == {
        part(number): (made[Placement(number, 1)].uuid,) for number in (1, 2)
    }
    await bench.unprepare(1, 2)
    assert bench.hardware.picture() == EMPTY


@pytest.mark.parametrize("other", [config(SLICING_SHORT), config(MPS), None])
async def test_shares_that_disagree_are_refused_and_the_first_keeps_its_setting(bench: Bench, other: Any) -> None:
    bench.claims.add(claim(1, share(1), config=config(SLICING_LONG)))
    bench.claims.add(claim(2, share(2), config=other))
    assert isinstance(await bench.prepare(1), tuple)
    answer = await bench.prepare(2)
    assert isinstance(answer, ClaimRefusedError)
    assert "give both the same parameters" in str(answer)
    assert bench.hardware.slices["GPU-1"] == 3
    await bench.unprepare(1)
    assert isinstance(await bench.prepare(2), tuple)


async def test_shares_under_mps_have_one_daemon_and_limits_of_their_own(bench: Bench) -> None:
    for number in (1, 2):
        bench.claims.add(claim(number, share(number), config=config(MPS)))
    assert all(isinstance(answer, tuple) for answer in await bench.prepare(1, 2))
    assert list(bench.hardware.daemons) == ["gpu-1"]
    assert "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=20480M" in bench.cdi(1)
    assert "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=50" in bench.cdi(2)
    await bench.unprepare(1)
    assert list(bench.hardware.daemons) == ["gpu-1"]
    await bench.unprepare(2)
    assert bench.hardware.picture() == EMPTY


async def test_shares_of_one_partition_are_made_once_and_removed_with_the_last(bench: Bench) -> None:
    for number in (1, 2):
        bench.claims.add(claim(number, result(part(0), shareID=f"{SHARE}{number}")))
    first, second = await bench.prepare(1, 2)
    assert isinstance(first, tuple)
    assert isinstance(second, tuple)
    assert [line for line in bench.hardware.log if line.startswith("create ")] == ["create GPU-0 0"]
    await bench.unprepare(1)
    assert bench.hardware.picture() == ({"GPU-0": [Placement(0, 1)]}, {}, ["GPU-0"], {}, {}, [])
    await bench.unprepare(2)
    assert bench.hardware.picture() == EMPTY


async def test_a_share_is_told_its_memory_even_where_nothing_enforces_it(bench: Bench) -> None:
    bench.claims.add(claim(1, share(1)))
    await bench.prepare(1)
    assert "GPU_DRA_MEMORY_LIMIT_1=20480M" in bench.cdi(1)
    assert "CUDA_MPS" not in bench.cdi(1)


async def test_several_shares_of_one_gpu_in_one_claim_tell_their_sum(bench: Bench) -> None:
    """A container that has both gets each variable once, so it must be right for both."""
    bench.claims.add(claim(1, share(1), share(2), config=config(MPS)))
    assert isinstance(await bench.prepare(1), tuple)
    assert bench.cdi(1).count("GPU_DRA_MEMORY_LIMIT_1=40960M") == 2
    assert bench.cdi(1).count("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=40960M") == 2
    assert list(bench.hardware.daemons) == ["gpu-1"]


async def test_a_claim_may_not_make_the_shares_of_others_one_users(bench: Bench) -> None:
    multi = {"strategy": "MPS", "mpsConfig": {"multiUser": True}}
    bench.claims.add(claim(1, share(1), config=config(multi)))
    bench.claims.add(claim(2, result("gpu-2"), config=config(multi)))
    refused, alone = await bench.prepare(1, 2)
    assert isinstance(refused, InvalidValueError)
    assert "only a DeviceClass may set it" in str(refused)
    assert isinstance(alone, tuple)
    assert list(bench.hardware.daemons) == [uid(2)]


@pytest.mark.parametrize("setting", [None, config(MPS)])
async def test_a_share_that_was_given_no_memory_has_no_limit(bench: Bench, setting: Any) -> None:
    """What the scheduler writes where the default is 0: shares without limit, or N of them."""
    consumed = {"memory": "0", "shares": "1"}
    bench.claims.add(claim(1, share(1) | {"consumedCapacity": consumed}, config=setting))
    assert isinstance(await bench.prepare(1), tuple)
    assert "GPU_DRA_MEMORY_LIMIT" not in bench.cdi(1)
    assert "MEM_LIMIT" not in bench.cdi(1)


async def test_shares_of_two_gpus_under_mps_are_refused_in_one_claim(bench: Bench) -> None:
    both = (share(1), share(2) | {"device": "gpu-2"})
    bench.claims.add(claim(1, *both, config=config(MPS)))
    answer = await bench.prepare(1)
    assert isinstance(answer, ClaimRefusedError)
    assert "reaches one MPS daemon" in str(answer)
    assert bench.hardware.log == []
