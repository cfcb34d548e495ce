from __future__ import annotations

import asyncio
import shutil
import time
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from driver.claims import record as codec
from driver.claims.allocation import ClaimRef
from driver.claims.effect_runner import EffectRunner
from driver.claims.engine import ClaimEngine
from driver.claims.gpu_locks import GpuLocks
from driver.errors import (
    ApiForbiddenError,
    ApiInvalidError,
    ApiUnauthorizedError,
    ApiUnavailableError,
    ClaimRefusedError,
    DeviceHeldError,
    DeviceNotReadyError,
    DriverError,
    InvalidValueError,
    RecordError,
    StorageError,
    SupersededError,
)
from driver.model.health import LOST
from driver.model.snapshot import Snapshot
from tests.unit.claims.helpers import Claims, Node, claim, gpus, mig_gpu, ref, result, uid

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

SHARE = "b98a178b-5be9-4ea2-99fc-1977135f03c"


class Harness:
    """One instance of the driver on a node."""

    def __init__(self, node: Node, claims: Claims) -> None:
        self.node = node
        self.claims = claims
        self.used: frozenset[str] | None = frozenset()
        self.engine = ClaimEngine(
            state=node.state(),
            claims=claims,
            used_claims=self._used,
            runner=EffectRunner(),
            locks=GpuLocks(node.root / "gpus"),
        )

    async def _used(self) -> frozenset[str] | None:
        return self.used

    async def prepare(self, *numbers: int, within: float = 0.5) -> Any:
        answers = await self.engine.prepare([ref(number) for number in numbers], deadline=deadline(within))
        return answers[uid(numbers[0])] if len(numbers) == 1 else [answers[uid(number)] for number in numbers]

    async def unprepare(self, *numbers: int, within: float = 0.5) -> Any:
        answers = await self.engine.unprepare([ref(number) for number in numbers], deadline=deadline(within))
        return answers[uid(numbers[0])] if len(numbers) == 1 else [answers[uid(number)] for number in numbers]


def deadline(within: float) -> float:
    return asyncio.get_running_loop().time() + within


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


@pytest.fixture
def claims() -> Claims:
    return Claims()


@pytest.fixture
async def harness(node: Node, claims: Claims) -> AsyncIterator[Harness]:
    async with instance(node, claims) as one:
        yield one


@asynccontextmanager
async def instance(node: Node, claims: Claims) -> AsyncIterator[Harness]:
    one = Harness(node, claims)
    yield one
    await one.engine.aclose()


def devices(answer: Any) -> list[str]:
    assert isinstance(answer, tuple), answer
    return [device.device for device in answer]


# --- the plain path --------------------------------------------------------------------------------------------------


async def test_prepare_answers_in_the_order_of_the_results(harness: Harness) -> None:
    harness.claims.add(claim(1, result("gpu-2", "big/large"), result("gpu-0", "small")))
    answer = await harness.prepare(1)
    assert [(one.requests, one.pool, one.device, one.cdi_ids) for one in answer] == [
        (("big",), "node-a", "gpu-2", (f"k8s.gpu.nvidia.com/claim={uid(1)}-gpu-2",)),
        (("small",), "node-a", "gpu-0", (f"k8s.gpu.nvidia.com/claim={uid(1)}-gpu-0",)),
    ]
    assert sorted(harness.node.cdi.devices(uid(1))) == ["gpu-0", "gpu-2"]


async def test_S9_prepare_twice_answers_the_same_and_unprepare_still_undoes(harness: Harness) -> None:
    harness.claims.add(claim(1, result("gpu-0")))
    assert await harness.prepare(1) == await harness.prepare(1)
    assert await harness.unprepare(1) is None
    assert harness.node.leftovers() == []
    assert await harness.unprepare(1) is None


async def test_a_repeated_prepare_writes_nothing(harness: Harness) -> None:
    harness.claims.add(claim(1, result("gpu-0")))
    await harness.prepare(1)
    before = {path: path.stat().st_ino for path in harness.node.root.rglob("*.json")}
    await harness.prepare(1)
    assert {path: path.stat().st_ino for path in harness.node.root.rglob("*.json")} == before


async def test_S12_a_claim_over_two_gpus_frees_both(harness: Harness) -> None:
    harness.claims.add(claim(1, result("gpu-0"), result("gpu-1")))
    await harness.prepare(1)
    await harness.unprepare(1)
    harness.claims.add(claim(2, result("gpu-0")))
    harness.claims.add(claim(3, result("gpu-1")))
    assert [devices(one) for one in await harness.prepare(2, 3)] == [["gpu-0"], ["gpu-1"]]


async def test_a_claim_of_32_results_is_prepared(tmp_path: Path, claims: Claims) -> None:
    node = Node(tmp_path, count=32)
    claims.add(claim(1, *(result(f"gpu-{number}") for number in range(32))))
    async with instance(node, claims) as one:
        assert len(await one.prepare(1)) == 32
        assert await one.unprepare(1) is None
    assert node.leftovers() == []


async def test_static_mig_devices_of_one_gpu_go_to_different_claims(harness: Harness) -> None:
    harness.node.snapshot = Snapshot(gpus=(mig_gpu(0, (0, 1)),))
    harness.claims.add(claim(1, result("gpu-0-mig-1g10gb-19-0")))
    harness.claims.add(claim(2, result("gpu-0-mig-1g10gb-19-1")))
    harness.claims.add(claim(3, result("gpu-0-mig-1g10gb-19-1")))
    assert [devices(one)[0] for one in await harness.prepare(1, 2)] == [
        "gpu-0-mig-1g10gb-19-0",
        "gpu-0-mig-1g10gb-19-1",
    ]
    assert isinstance(await harness.prepare(3), DeviceHeldError)


async def test_one_call_with_many_claims_fails_only_the_bad_ones(harness: Harness) -> None:
    harness.claims.add(claim(1, result("gpu-0")))
    harness.claims.add(claim(2, result("gpu-99")))
    harness.claims.add(claim(3, result("gpu-1")))
    first, second, third = await harness.prepare(1, 2, 3)
    assert (devices(first), devices(third)) == (["gpu-0"], ["gpu-1"])
    assert isinstance(second, ClaimRefusedError)
    assert "gpu-99 does not exist on node node-a (there are: gpu-0, gpu-1, gpu-2, gpu-3)" in str(second)


# --- refusals --------------------------------------------------------------------------------------------------------


async def test_a_claim_that_is_gone_is_refused_at_once(harness: Harness) -> None:
    answer = await harness.prepare(1, within=30)
    assert isinstance(answer, ClaimRefusedError)
    assert "claim default/claim-1" in str(answer)
    assert harness.claims.gets == 1


async def test_a_result_on_another_node_is_refused(harness: Harness) -> None:
    harness.claims.add(claim(1, result("gpu-0", pool="node-b")))
    harness.claims.objects["claim-1"]["status"]["allocation"]["devices"]["results"][0]["pool"] = "node-b"
    assert "pool node-b, but this is node node-a" in str(await harness.prepare(1))


async def test_an_unhealthy_device_is_refused_but_not_to_admin_access(harness: Harness) -> None:
    harness.node.snapshot = replace(harness.node.snapshot, health={"GPU-0": LOST})
    harness.claims.add(claim(1, result("gpu-0")))
    harness.claims.add(claim(2, result("gpu-0", adminAccess=True)))
    refused, admin = await harness.prepare(1, 2)
    assert "gpu-0 (GPU GPU-0) is unhealthy" in str(refused)
    assert devices(admin) == ["gpu-0"]


async def test_one_device_twice_in_a_claim_is_refused(harness: Harness) -> None:
    harness.claims.add(claim(1, result("gpu-0", "a"), result("gpu-0", "b")))
    assert "gpu-0 (request a) and gpu-0 (request b), which can't be used at once" in str(await harness.prepare(1))
    assert harness.node.leftovers() == []


async def test_malformed_parameters_are_refused_with_their_path(harness: Harness) -> None:
    parameters = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": "GpuConfig", "sharing": {}}
    opaque = {"driver": "gpu.nvidia.com", "parameters": parameters}
    harness.claims.add(claim(1, result("gpu-0"), config=[{"source": "FromClaim", "opaque": opaque}]))
    assert "status.allocation.devices.config[0].opaque.parameters.sharing.strategy" in str(await harness.prepare(1))


async def test_settings_that_are_not_served_are_refused_not_ignored(harness: Harness) -> None:
    sharing = {"strategy": "TimeSlicing"}
    parameters = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": "GpuConfig", "sharing": sharing}
    opaque = {"driver": "gpu.nvidia.com", "parameters": parameters}
    harness.claims.add(claim(1, result("gpu-0"), config=[{"source": "FromClaim", "opaque": opaque}]))
    assert "sharing settings are switched off" in str(await harness.prepare(1))
    assert harness.node.leftovers() == []


async def test_parameters_without_settings_are_accepted(harness: Harness) -> None:
    parameters = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": "GpuConfig"}
    opaque = {"driver": "gpu.nvidia.com", "parameters": parameters}
    harness.claims.add(claim(1, result("gpu-0"), config=[{"source": "FromClass", "opaque": opaque}]))
    assert devices(await harness.prepare(1)) == ["gpu-0"]


@pytest.mark.parametrize(
    ("bad", "path"),
    [
        (ClaimRef(namespace="default", name="c", uid="../../etc/passwd"), "uid"),
        (ClaimRef(namespace="default", name="c", uid=""), "uid"),
        (ClaimRef(namespace="default", name="c", uid="a\x00b"), "uid"),
        (ClaimRef(namespace="default", name="../x", uid="u"), "name"),
        (ClaimRef(namespace="a/b", name="c", uid="u"), "namespace"),
        (ClaimRef(namespace="", name="c", uid="u"), "namespace"),
    ],
)
async def test_malformed_names_are_refused_before_they_become_paths(harness: Harness, bad: ClaimRef, path: str) -> None:
    answer = (await harness.engine.prepare([bad], deadline=deadline(1)))[bad.uid]
    assert isinstance(answer, InvalidValueError)
    assert answer.path == path
    assert harness.claims.gets == 0
    if path == "uid":
        assert isinstance((await harness.engine.unprepare([bad], deadline=deadline(1)))[bad.uid], InvalidValueError)


# --- ownership -------------------------------------------------------------------------------------------------------


async def test_S11_a_second_claim_on_a_gpu_is_refused_and_the_holder_named(harness: Harness) -> None:
    harness.claims.add(claim(1, result("gpu-0")))
    harness.claims.add(claim(2, result("gpu-0")))
    await harness.prepare(1)
    refused = await harness.prepare(2, within=30)
    assert isinstance(refused, DeviceHeldError)
    assert uid(1) in str(refused)
    assert harness.node.leftovers() == [f"{uid(1)}.json", uid(1)]


async def test_S11_admin_access_and_distinct_shares_are_exempt(harness: Harness) -> None:
    harness.claims.add(claim(1, result("gpu-0", shareID=f"{SHARE}1")))
    harness.claims.add(claim(2, result("gpu-0", shareID=f"{SHARE}2")))
    harness.claims.add(claim(3, result("gpu-0", adminAccess=True)))
    harness.claims.add(claim(4, result("gpu-0")))
    first, second, admin, exclusive = await harness.prepare(1, 2, 3, 4)
    assert (first[0].share_id, second[0].share_id) == (f"{SHARE}1", f"{SHARE}2")
    assert devices(admin) == ["gpu-0"]
    assert isinstance(exclusive, DeviceHeldError)


async def test_two_shares_of_one_gpu_in_one_claim_have_two_cdi_devices(harness: Harness) -> None:
    harness.claims.add(claim(1, result("gpu-0", shareID=f"{SHARE}1"), result("gpu-0", shareID=f"{SHARE}2")))
    answer = await harness.prepare(1)
    assert len({one.cdi_ids for one in answer}) == 2
    assert len(harness.node.cdi.devices(uid(1))) == 2


async def test_of_claims_that_race_for_one_gpu_exactly_one_wins(node: Node, claims: Claims) -> None:
    for number in range(1, 9):
        claims.add(claim(number, result("gpu-0")))
    async with instance(node, claims) as one, instance(node, claims) as other:
        instances = [one, other] * 4
        answers = await asyncio.gather(*(which.prepare(n) for n, which in enumerate(instances, 1)))
    assert sum(isinstance(answer, tuple) for answer in answers) == 1
    assert sum(isinstance(answer, DeviceHeldError) for answer in answers) == 7


async def test_two_instances_share_state_as_in_a_rolling_update(node: Node, claims: Claims) -> None:
    claims.add(claim(1, result("gpu-0")))
    async with instance(node, claims) as old, instance(node, claims) as new:
        assert await old.prepare(1) == await new.prepare(1)
        assert await new.unprepare(1) is None
        assert await old.unprepare(1) is None
        assert node.leftovers() == []
        assert devices(await old.prepare(1)) == ["gpu-0"]


async def test_S7_the_record_of_a_deleted_claim_gives_way(harness: Harness) -> None:
    harness.claims.add(claim(1, result("gpu-0")))
    await harness.prepare(1)
    del harness.claims.objects["claim-1"]
    harness.claims.add(claim(2, result("gpu-0")))
    assert devices(await harness.prepare(2)) == ["gpu-0"]
    assert harness.node.leftovers() == [f"{uid(2)}.json", uid(2)]


async def test_S7_reconcile_drops_what_is_gone_and_keeps_what_is_used_or_unknown(harness: Harness) -> None:
    for number in range(1, 5):
        harness.claims.add(claim(number, result(f"gpu-{number - 1}")))
    await harness.prepare(1, 2, 3, 4)
    del harness.claims.objects["claim-1"]  # deleted
    harness.claims.objects["claim-2"] = claim(99, result("gpu-1"))  # replaced by another of its name
    harness.claims.objects["claim-3"]["status"] = {}  # deallocated, but a pod still runs
    harness.used = frozenset({uid(3)})
    assert await harness.engine.reconcile() == 2
    assert sorted(harness.node.cdi.claim_uids()) == [uid(3), uid(4)]
    harness.used = frozenset()
    assert await harness.engine.reconcile() == 1
    assert sorted(harness.node.cdi.claim_uids()) == [uid(4)]


async def test_S7_nothing_is_given_up_while_the_api_server_or_the_kubelet_is_away(harness: Harness) -> None:
    harness.claims.add(claim(1, result("gpu-0")))
    await harness.prepare(1)
    del harness.claims.objects["claim-1"]
    harness.used = None
    assert await harness.engine.reconcile() == 0
    harness.used = frozenset()
    harness.claims.errors = [ApiUnavailableError("connection refused")]
    assert await harness.engine.reconcile() == 0
    assert await harness.engine.reconcile() == 1


async def test_a_claim_waits_for_a_holder_that_is_on_its_way_out(harness: Harness) -> None:
    harness.claims.add(claim(1, result("gpu-0")))
    harness.claims.add(claim(2, result("gpu-0")))
    await harness.prepare(1)
    del harness.claims.objects["claim-1"]
    harness.used = frozenset({uid(1)})  # its pod is still terminating
    waiting = asyncio.create_task(harness.prepare(2, within=30))
    while harness.claims.gets < 3:
        await asyncio.sleep(0)
    assert await harness.unprepare(1) is None
    assert devices(await waiting) == ["gpu-0"]


# --- what comes in between -------------------------------------------------------------------------------------------


async def test_S10_an_unprepare_during_a_retrying_prepare_leaves_no_ghost(harness: Harness) -> None:
    harness.claims.add(claim(1, result("gpu-0")))
    harness.claims.errors = [ApiUnavailableError("connection refused")]
    late = asyncio.create_task(harness.prepare(1, within=30))
    while not harness.claims.gets:
        await asyncio.sleep(0)
    assert await harness.unprepare(1) is None
    assert isinstance(await late, SupersededError)
    assert harness.node.leftovers() == []


async def test_S10_a_prepare_that_came_before_the_unprepare_but_began_after_it_leaves_no_ghost(
    harness: Harness,
) -> None:
    harness.claims.add(claim(1, result("gpu-0")))
    came = time.monotonic_ns()
    await harness.unprepare(1)
    answers = await harness.engine.prepare([ref(1)], deadline=deadline(5), since=came)
    assert isinstance(answers[uid(1)], SupersededError)
    assert harness.node.leftovers() == []
    assert devices(await harness.prepare(1)) == ["gpu-0"]


async def test_S10_holds_across_instances_too(node: Node, claims: Claims) -> None:
    claims.add(claim(1, result("gpu-0")))
    claims.errors = [ApiUnavailableError("connection refused")]
    async with instance(node, claims) as old, instance(node, claims) as new:
        late = asyncio.create_task(old.prepare(1, within=30))
        while not claims.gets:
            await asyncio.sleep(0)
        await new.unprepare(1)
        assert isinstance(await late, SupersededError)
    assert node.leftovers() == []


async def test_a_prepare_after_an_unprepare_of_the_same_claim_is_served(harness: Harness) -> None:
    harness.claims.add(claim(1, result("gpu-0")))
    await harness.prepare(1)
    await harness.unprepare(1)
    assert devices(await harness.prepare(1)) == ["gpu-0"]


async def test_S10_a_cancelled_call_does_nothing(harness: Harness) -> None:
    harness.claims.add(claim(1, result("gpu-0")))
    blocked = asyncio.Event()

    async def never(namespace: str, name: str) -> dict[str, Any]:
        blocked.set()
        await asyncio.Event().wait()
        raise AssertionError

    harness.claims.claim = never  # type: ignore[method-assign]
    call = asyncio.create_task(harness.prepare(1, within=30))
    await blocked.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert harness.node.leftovers() == []


async def test_a_claim_allocated_anew_replaces_what_was_prepared(harness: Harness) -> None:
    harness.claims.add(claim(1, result("gpu-0")))
    await harness.prepare(1)
    harness.claims.add(claim(1, result("gpu-3")))
    assert devices(await harness.prepare(1)) == ["gpu-3"]
    assert harness.node.cdi.devices(uid(1)) == ("gpu-3",)
    harness.claims.add(claim(2, result("gpu-0")))
    assert devices(await harness.prepare(2)) == ["gpu-0"]


# --- what is retried, what is not ------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [ApiUnavailableError("503"), ApiUnauthorizedError("401", status=401)])
async def test_what_may_pass_is_tried_again_within_the_call(harness: Harness, error: DriverError) -> None:
    harness.claims.add(claim(1, result("gpu-0")))
    harness.claims.errors = [error]
    assert devices(await harness.prepare(1, within=30)) == ["gpu-0"]
    assert harness.claims.gets == 2


@pytest.mark.parametrize("error", [ApiForbiddenError("403", status=403), ApiInvalidError("422", status=422)])
async def test_what_can_not_pass_is_answered_at_once(harness: Harness, error: DriverError) -> None:
    harness.claims.errors = [error]
    assert await harness.prepare(1, within=30) is error
    assert harness.claims.gets == 1


async def test_the_last_error_is_told_when_the_deadline_comes(harness: Harness) -> None:
    harness.claims.on_get = lambda: harness.claims.errors.append(ApiUnavailableError("connection refused"))
    answer = await harness.prepare(1, within=0.35)
    assert isinstance(answer, ApiUnavailableError)
    assert harness.claims.gets >= 2


async def test_C2_missing_device_nodes_are_waited_for_and_never_half_prepared(harness: Harness) -> None:
    harness.claims.add(claim(1, result("gpu-0")))
    harness.node.edits.missing = {"gpu-0"}
    answer = await harness.prepare(1, within=0.3)
    assert isinstance(answer, DeviceNotReadyError)
    assert "/dev/nvidia0 is missing" in str(answer)
    assert harness.node.leftovers() == []
    harness.claims.on_get = harness.node.edits.missing.clear
    assert devices(await harness.prepare(1, within=30)) == ["gpu-0"]


# --- the disk --------------------------------------------------------------------------------------------------------


async def test_S13_a_cdi_directory_that_can_not_be_written_consumes_nothing(harness: Harness) -> None:
    harness.claims.add(claim(1, result("gpu-0")))
    harness.node.cdi.directory.write_text("a file where the directory should be")
    answer = await harness.prepare(1, within=0.3)
    assert isinstance(answer, StorageError)
    assert str(harness.node.cdi.directory) in str(answer)
    harness.node.cdi.directory.unlink()
    assert harness.node.leftovers() == []
    harness.claims.add(claim(2, result("gpu-0")))
    assert devices(await harness.prepare(2)) == ["gpu-0"]


async def test_a_claims_directory_that_vanished_is_made_again_and_no_device_is_forgotten(harness: Harness) -> None:
    for number in (1, 2, 3):
        harness.claims.add(claim(number, result("gpu-1" if number == 3 else "gpu-0")))
    await harness.prepare(1)
    shutil.rmtree(harness.node.claims_dir)
    assert isinstance(await harness.prepare(2), DeviceHeldError)
    assert devices(await harness.prepare(3)) == ["gpu-1"]
    assert await harness.unprepare(1, 3) == [None, None]
    assert harness.node.leftovers() == []


async def test_a_claims_directory_that_can_not_be_made_again_is_an_error_not_a_crash(harness: Harness) -> None:
    harness.claims.add(claim(1, result("gpu-0")))
    shutil.rmtree(harness.node.claims_dir)
    harness.node.claims_dir.write_text("in the way")
    assert isinstance(await harness.prepare(1, within=0.3), StorageError)
    harness.node.claims_dir.unlink()
    assert harness.node.leftovers() == []
    assert devices(await harness.prepare(1)) == ["gpu-0"]


async def test_S6_a_record_of_another_boot_is_void_and_rebuilt(node: Node, claims: Claims) -> None:
    claims.add(claim(1, result("gpu-0")))
    claims.add(claim(2, result("gpu-0")))
    async with instance(node, claims) as before:
        await before.prepare(1)
    node.boot_id = "boot-2"
    shutil.rmtree(node.cdi.directory)
    async with instance(node, claims) as after:
        assert devices(await after.prepare(2)) == ["gpu-0"]  # the old record holds nothing
        assert isinstance(await after.prepare(1), DeviceHeldError)
        await after.unprepare(2)
        assert devices(await after.prepare(1)) == ["gpu-0"]
        assert node.cdi.exists(uid(1))


async def test_C1_a_vanished_cdi_file_is_rebuilt_by_a_repeat_and_by_refresh(harness: Harness) -> None:
    harness.claims.add(claim(1, result("gpu-0")))
    first = await harness.prepare(1)
    content = harness.node.cdi.path(uid(1)).read_bytes()
    harness.node.cdi.remove(uid(1))
    assert await harness.prepare(1) == first
    assert harness.node.cdi.path(uid(1)).read_bytes() == content
    harness.node.cdi.remove(uid(1))
    await harness.engine.refresh_cdi()
    assert harness.node.cdi.path(uid(1)).read_bytes() == content


async def test_a_driver_upgrade_refreshes_the_cdi_files(harness: Harness) -> None:
    harness.claims.add(claim(1, result("gpu-0")))
    await harness.prepare(1)
    harness.node.edits.version = "2"
    await harness.engine.refresh_cdi()
    assert b"DRIVER=2" in harness.node.cdi.path(uid(1)).read_bytes()


async def test_a_repeat_is_answered_though_the_device_is_in_trouble(harness: Harness) -> None:
    harness.claims.add(claim(1, result("gpu-0")))
    first = await harness.prepare(1)
    harness.node.snapshot = Snapshot()
    assert await harness.prepare(1) == first


async def test_K2_unprepare_needs_neither_the_api_server_nor_the_devices(harness: Harness) -> None:
    harness.claims.add(claim(1, result("gpu-0")))
    await harness.prepare(1)
    harness.node.snapshot = Snapshot()
    harness.claims.objects.clear()
    gets = harness.claims.gets
    assert await harness.unprepare(1) is None
    assert harness.claims.gets == gets
    assert harness.node.leftovers() == []


async def test_a_start_removes_cdi_files_without_a_record_and_temporary_files(node: Node, claims: Claims) -> None:
    async with instance(node, claims):
        pass
    node.cdi.write(uid(7), b"{}")
    (node.claims_dir / f".{uid(7)}.json.abcd.tmp").write_bytes(b"half")
    async with instance(node, claims):
        assert node.leftovers() == []


# --- records that can't be read --------------------------------------------------------------------------------------


def flip(data: bytes) -> bytes:
    position = data.index(b'"sha256": "') + 11
    return data[:position] + (b"0" if data[position : position + 1] != b"0" else b"1") + data[position + 1 :]


async def test_S1_a_bad_checksum_is_quarantined_alone_and_its_gpu_is_not_given_away(node: Node, claims: Claims) -> None:
    for number in (1, 2):
        claims.add(claim(number, result(f"gpu-{number - 1}")))
    claims.add(claim(3, result("gpu-0")))
    async with instance(node, claims) as before:
        await before.prepare(1, 2)
    path = node.claims_dir / f"{uid(1)}.json"
    broken = flip(path.read_bytes())
    path.write_bytes(broken)
    async with instance(node, claims) as after:
        assert node.quarantined == [uid(1)]
        (kept,) = (node.claims_dir / "quarantine").iterdir()
        assert kept.read_bytes() == broken
        assert isinstance(await after.prepare(3), DeviceHeldError)
        assert devices(await after.prepare(2)) == ["gpu-1"]
        assert devices(await after.prepare(1)) == ["gpu-0"]  # its own claim gets it back, with a new record
        assert await after.unprepare(1) is None
        assert devices(await after.prepare(3)) == ["gpu-0"]
    assert len(list((node.claims_dir / "quarantine").iterdir())) == 1  # the bytes are still kept


async def test_S1_an_unreadable_record_is_reported_once_and_defends_its_gpu_after_a_restart(
    node: Node, claims: Claims
) -> None:
    claims.add(claim(1, result("gpu-0")))
    claims.add(claim(2, result("gpu-0")))
    async with instance(node, claims) as before:
        await before.prepare(1)
    (node.claims_dir / f"{uid(1)}.json").write_bytes(b"")
    for _ in range(2):
        async with instance(node, claims) as after:
            assert isinstance(await after.prepare(2), DeviceHeldError)  # known from the CDI file
    assert node.quarantined == [uid(1)]


async def test_S7_an_unreadable_record_whose_bytes_name_a_claim_that_is_gone_is_given_up(
    node: Node, claims: Claims
) -> None:
    for number in (1, 2):
        claims.add(claim(number, result(f"gpu-{number - 1}")))
    claims.add(claim(3, result("gpu-0")))
    async with instance(node, claims) as one:
        await one.prepare(1, 2)
        path = node.claims_dir / f"{uid(1)}.json"
        path.write_bytes(flip(path.read_bytes()))
        assert await one.engine.reconcile() == 0  # its claim is there
        del claims.objects["claim-1"]
        one.used = frozenset({uid(1)})
        assert await one.engine.reconcile() == 0  # its pod runs
        assert isinstance(await one.prepare(3), DeviceNotReadyError)
        one.used = frozenset()
        assert await one.engine.reconcile() == 1
        assert devices(await one.prepare(3)) == ["gpu-0"]
        assert sorted(node.cdi.claim_uids()) == [uid(2), uid(3)]
    (kept,) = (node.claims_dir / "quarantine").iterdir()
    assert kept.name.endswith(".settled")


async def test_S11_a_claim_gets_the_gpu_of_an_unreadable_record_whose_claim_is_gone(node: Node, claims: Claims) -> None:
    claims.add(claim(1, result("gpu-0")))
    claims.add(claim(2, result("gpu-0")))
    async with instance(node, claims) as one:
        await one.prepare(1)
        path = node.claims_dir / f"{uid(1)}.json"
        path.write_bytes(flip(path.read_bytes()))
        assert isinstance(await one.prepare(2), DeviceHeldError)
        del claims.objects["claim-1"]
        assert devices(await one.prepare(2)) == ["gpu-0"]


@pytest.mark.parametrize("content", [b"", b"garbage", b"\x00" * 100])
async def test_S2_unprepare_with_an_unreadable_record_is_an_error_and_keeps_the_bytes(
    node: Node, claims: Claims, content: bytes
) -> None:
    claims.add(claim(1, result("gpu-0")))
    claims.add(claim(2, result("gpu-1")))
    async with instance(node, claims) as one:
        await one.prepare(1, 2)
        (node.claims_dir / f"{uid(1)}.json").write_bytes(content)
        broken, fine = await one.unprepare(1, 2)
        assert isinstance(broken, RecordError)
        assert fine is None
        (kept,) = (node.claims_dir / "quarantine").iterdir()
        assert kept.read_bytes() == content
        assert str(kept) in str(broken)
        kept.unlink()  # what the message says to do
        assert await one.unprepare(1) is None
    assert node.leftovers() == []


async def test_a_foreign_file_is_quarantined_and_other_names_are_left_alone(node: Node, claims: Claims) -> None:
    claims.add(claim(1, result("gpu-0")))
    async with instance(node, claims) as one:
        await one.prepare(1)
        other = node.claims_dir / f"{uid(2)}.json"
        shutil.copy(node.claims_dir / f"{uid(1)}.json", other)
        (node.claims_dir / "notes.txt").write_text("mine")
        (node.claims_dir / "..json").write_text("x")
        assert devices(await one.prepare(1)) == ["gpu-0"]
        assert await one.unprepare(1) is None
        assert node.quarantined == [uid(2)]
        assert (node.claims_dir / "notes.txt").read_text() == "mine"


async def test_S4_a_newer_records_extra_fields_survive_this_version(node: Node, claims: Claims) -> None:
    claims.add(claim(1, result("gpu-0")))
    async with instance(node, claims) as one:
        answer = await one.prepare(1)
        path = node.claims_dir / f"{uid(1)}.json"
        newer = replace(codec.decode(path.read_bytes(), uid(1)), unknown={"future": 1})
        path.write_bytes(codec.encode(newer))
        assert await one.prepare(1) == answer
        assert b'"future":1' in path.read_bytes()
        assert node.quarantined == []


async def test_internal_errors_become_the_claims_error_and_the_engine_lives(harness: Harness) -> None:
    harness.claims.add(claim(1, result("gpu-0")))
    harness.node.snapshot = None  # type: ignore[assignment]
    answer = await harness.prepare(1)
    assert isinstance(answer, DriverError)
    assert "internal error" in str(answer)
    harness.node.snapshot = Snapshot(gpus=gpus(1))
    assert devices(await harness.prepare(1)) == ["gpu-0"]
