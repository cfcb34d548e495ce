"""Claims that change GPUs: done as recorded, undone completely, whatever fails in between."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from driver.claims.effect_runner import EffectRunner
from driver.claims.engine import ClaimEngine
from driver.claims.gpu_locks import GpuLocks
from driver.claims.ledger import Ledger
from driver.errors import (
    ClaimRefusedError,
    DeviceHeldError,
    DeviceNotReadyError,
    DriverError,
    InvalidValueError,
    MigError,
)
from driver.model.mig import Placement
from driver.model.snapshot import Snapshot
from tests.unit.claims.hardware import Daemons, Hardware, Modes, Slices, dynamic_gpu
from tests.unit.claims.helpers import PROFILE, Claims, Node, claim, gpus, ref, result, uid

if TYPE_CHECKING:
    from pathlib import Path

    from driver.model.mig import MigInstance

API = "resource.nvidia.com/v1beta1"
SHARE = "b98a178b-5be9-4ea2-99fc-1977135f03c"
SLICING_LONG = {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Long"}}
SLICING_SHORT = {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Short"}}
MPS = {"strategy": "MPS", "mpsConfig": {"defaultActiveThreadPercentage": 50}}


def part(start: int, minor: int = 0) -> str:
    return f"gpu-{minor}-mig-1g10gb-19-{start}"


def config(sharing: dict[str, Any], kind: str = "GpuConfig", requests: tuple[str, ...] = ()) -> list[dict[str, Any]]:
    parameters = {"apiVersion": API, "kind": kind, "sharing": sharing}
    opaque = {"driver": "gpu.nvidia.com", "parameters": parameters}
    return [{"source": "FromClaim", "requests": list(requests), "opaque": opaque}]


class Bench:
    """A node with partitionable GPUs, and a driver that can be restarted on it."""

    def __init__(self, root: Path) -> None:
        self.node = Node(root)
        self.node.snapshot = Snapshot(gpus=(dynamic_gpu(0), *gpus(3)[1:]), dynamic_mig=frozenset({"GPU-0"}))
        self.hardware = Hardware()
        self.claims = Claims()
        self.ledger = Ledger(root / "partitions", self.node.boot_id)
        self.used: frozenset[str] | None = frozenset()  # the claims of pods on the node
        self.engine = self.start()

    def start(self) -> ClaimEngine:
        runner = EffectRunner(
            partitions=self.hardware,
            slices=Slices(self.hardware),
            modes=Modes(self.hardware),
            daemons=Daemons(self.hardware),
            ledger=self.ledger,
        )

        async def used() -> frozenset[str] | None:
            return self.used

        locks = GpuLocks(self.node.root / "gpus")
        return ClaimEngine(state=self.node.state(), claims=self.claims, used_claims=used, runner=runner, locks=locks)

    async def restart(self) -> None:
        self.engine = self.start()

    async def prepare(self, *numbers: int, within: float = 0.5) -> Any:
        deadline = asyncio.get_running_loop().time() + within
        answers = await self.engine.prepare([ref(number) for number in numbers], deadline=deadline)
        return answers[uid(numbers[0])] if len(numbers) == 1 else [answers[uid(number)] for number in numbers]

    async def unprepare(self, *numbers: int, within: float = 0.5) -> Any:
        deadline = asyncio.get_running_loop().time() + within
        answers = await self.engine.unprepare([ref(number) for number in numbers], deadline=deadline)
        return answers[uid(numbers[0])] if len(numbers) == 1 else [answers[uid(number)] for number in numbers]

    def observe(self) -> None:
        """See the partitions that there are, as the monitor does."""
        first, *others = self.node.snapshot.gpus
        assert first.mig is not None
        mig = replace(first.mig, enabled=True, instances=tuple(self.hardware.instances["GPU-0"].values()))
        self.node.snapshot = replace(self.node.snapshot, gpus=(replace(first, mig=mig), *others))

    def cdi(self, number: int) -> str:
        return self.node.cdi.path(uid(number)).read_text()


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


EMPTY: object = ({}, {}, [], {}, {}, [])


# --- MIG -------------------------------------------------------------------------------------------------------------


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


# --- time-slicing and MPS --------------------------------------------------------------------------------------------


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


def share(number: int) -> dict[str, Any]:
    return result("gpu-1", shareID=f"{SHARE}{number}", consumedCapacity={"memory": "20Gi"})


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


async def test_a_claim_that_is_allocated_anew_and_refused_leaves_nothing_of_before(bench: Bench) -> None:
    bench.claims.add(claim(1, result("gpu-1"), config=config(SLICING_LONG)))
    await bench.prepare(1)
    bench.claims.add(claim(1, result("gpu-7")))
    assert isinstance(await bench.prepare(1), ClaimRefusedError)
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


async def test_a_daemon_is_reached_with_its_devices_only(bench: Bench) -> None:
    """CUDA finds no other device there, so a container that has only another one must not go to it."""
    results = [result("gpu-1", "shared"), result("gpu-2", "plain")]
    bench.claims.add(claim(1, *results, config=config(MPS, requests=("shared",))))
    assert isinstance(await bench.prepare(1), tuple)
    written = json.loads(bench.cdi(1))
    assert [one["name"].rpartition("-gpu-")[2] for one in written["devices"] if "MPS" in json.dumps(one)] == ["1"]
    assert "MPS" not in json.dumps(written.get("containerEdits"))


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


async def test_shares_of_two_gpus_under_mps_are_refused_in_one_claim(bench: Bench) -> None:
    both = (share(1), share(2) | {"device": "gpu-2"})
    bench.claims.add(claim(1, *both, config=config(MPS)))
    answer = await bench.prepare(1)
    assert isinstance(answer, ClaimRefusedError)
    assert "reaches one MPS daemon" in str(answer)
    assert bench.hardware.log == []


async def test_one_claim_with_two_settings_for_one_daemon_is_refused(bench: Bench) -> None:
    other = {"strategy": "MPS", "mpsConfig": {"defaultActiveThreadPercentage": 10}}
    both = config(MPS, requests=("a",)) + config(other, requests=("b",))
    bench.claims.add(claim(1, result("gpu-1", "a"), result("gpu-2", "b"), config=both))
    answer = await bench.prepare(1)
    assert isinstance(answer, ClaimRefusedError)
    assert "different MPS settings" in str(answer)
    assert bench.hardware.log == []
