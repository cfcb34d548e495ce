"""What one instance answers: the plain path, refusals, and what is tried again within a call."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from driver.claims.allocation import ClaimRef
from driver.errors import (
    ApiForbiddenError,
    ApiInvalidError,
    ApiNotFoundError,
    ApiUnauthorizedError,
    ApiUnavailableError,
    ClaimRefusedError,
    DeviceHeldError,
    DeviceNotReadyError,
    DriverError,
    InvalidValueError,
)
from driver.model.health import LOST
from driver.model.snapshot import Snapshot
from tests.unit.claims.harness import Harness, deadline, devices, instance
from tests.unit.claims.helpers import Claims, Node, claim, gpus, mig_gpu, result, uid

if TYPE_CHECKING:
    from pathlib import Path


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


async def test_a_bug_costs_one_claim_of_a_call(harness: Harness) -> None:
    harness.claims.add(claim(1, result("gpu-0")))
    harness.claims.add(claim(2, result("gpu-1")))
    harness.claims.errors.append(ValueError("a bug"))
    first, second = await harness.prepare(1, 2)
    assert str(first) == "internal error: ValueError('a bug'); see the driver's log"
    assert devices(second) == ["gpu-1"]


async def test_a_bug_costs_one_claim_of_a_turn(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in (1, 2, 3):
        harness.claims.add(claim(number, result(f"gpu-{number}")))
    write = harness.node.cdi.write

    def broken(claim_uid: str, data: bytes) -> None:
        if claim_uid == uid(2):
            raise ValueError("a bug")
        write(claim_uid, data)

    monkeypatch.setattr(harness.node.cdi, "write", broken)
    first, second, third = await harness.prepare(1, 2, 3)
    assert (devices(first), devices(third)) == (["gpu-1"], ["gpu-3"])
    assert "internal error: ValueError('a bug')" in str(second)
    assert harness.node.leftovers() == [f"{uid(1)}.json", f"{uid(3)}.json", uid(1), uid(3)]


async def test_an_api_that_is_not_served_is_no_claim_that_is_gone(harness: Harness) -> None:
    harness.claims.add(claim(1, result("gpu-0")))
    harness.claims.errors.append(ApiNotFoundError("the API server does not serve resource.k8s.io", status=404))
    assert devices(await harness.prepare(1, within=5)) == ["gpu-0"]
    harness.claims.errors += [ApiNotFoundError("404: default backend", status=404)] * 2
    answer = await harness.prepare(1, within=0.05)
    assert isinstance(answer, ApiUnavailableError)
    assert "can't be read: 404: default backend" in str(answer)
    assert await harness.engine.reconcile() == 0
    assert harness.claims.errors == []
    assert len(await harness.engine.records()) == 1


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


async def test_internal_errors_become_the_claims_error_and_the_engine_lives(harness: Harness) -> None:
    harness.claims.add(claim(1, result("gpu-0")))
    harness.node.snapshot = None  # type: ignore[assignment]
    answer = await harness.prepare(1)
    assert isinstance(answer, DriverError)
    assert "internal error" in str(answer)
    harness.node.snapshot = Snapshot(gpus=gpus(1))
    assert devices(await harness.prepare(1)) == ["gpu-0"]
