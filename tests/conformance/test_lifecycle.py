"""Restarts, failures and deletions: what is prepared stays right, and is given back (upstream's tests of a node)."""

from __future__ import annotations

import pytest

from tests.conformance import manifests as m
from tests.conformance.case import uuids, versions
from tests.conformance.cluster import REGISTERED

WRONG = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": "GpuConfig", "sharing": {"strategy": "No"}}


async def another_pod_works(case, name="another"):
    await case.create(m.pod(name, [m.from_template("one")]))
    await case.running(name)
    assert await case.seen(name) == uuids(await case.given(name))


async def test_a_deleted_pod_is_unprepared(case, pod_with_gpu):
    await case.delete("Pod", "pod")
    await case.unprepared(pod_with_gpu)
    await case.wait.gone("ResourceClaim", pod_with_gpu["metadata"]["name"])


async def test_a_force_deleted_pod_is_unprepared(case, pod_with_gpu):
    await case.delete("Pod", "pod", force=True)
    await case.unprepared(pod_with_gpu)
    await case.wait.gone("ResourceClaim", pod_with_gpu["metadata"]["name"])


async def test_a_claim_of_its_own_outlives_its_pod_and_serves_the_next(case):
    await case.create(m.claim("mine"), m.pod("first", [m.from_claim("mine")]))
    await case.running("first")
    claim = await case.allocated("mine")
    await case.delete("Pod", "first")
    await case.unprepared(claim)
    await case.create(m.pod("second", [m.from_claim("mine")]))
    await case.running("second")
    assert len(await case.seen("second")) == 1


async def test_parameters_that_are_wrong_keep_the_pod_pending_and_say_why(case):
    spec = m.devices(config=(m.parameters(WRONG),))
    await case.create(m.template("one", spec), m.pod("pod", [m.from_template("one")]))
    message = await case.event("FailedPrepareDynamicResources", about="pod")
    assert "sharing.strategy" in message
    assert "TimeSlicing" in message
    pod = await case.api.get(case.path("Pod", "pod"))
    assert pod["status"]["phase"] == "Pending"
    claim = await case.claim_of("pod")
    await case.delete("Pod", "pod")
    await case.unprepared(claim)


async def test_parameters_of_a_class_count(case):
    gpu = f"{m.attribute('type')} == 'gpu'"
    async with case.device_class("wrong", gpu, config=[{"opaque": m.parameters(WRONG)["opaque"]}]) as wrong:
        spec = m.devices(m.request("gpu", class_=wrong))
        await case.create(m.template("one", spec), m.pod("pod", [m.from_template("one")]))
        assert "sharing.strategy" in await case.event("FailedPrepareDynamicResources", about="pod")


@pytest.mark.parametrize("wrong", ["first", "second"])
async def test_only_the_parameters_of_the_chosen_subrequest_count(case, wrong):
    choices = m.first_available("gpu", m.subrequest("first"), m.subrequest("second"))
    spec = m.devices(choices, config=(m.parameters(WRONG, f"gpu/{wrong}"),))
    await case.create(m.template("one", spec), m.pod("pod", [m.from_template("one")]))
    if wrong == "first":
        assert "sharing.strategy" in await case.event("FailedPrepareDynamicResources", about="pod")
    else:
        await case.running("pod")


@pytest.mark.needs("restart-driver")
@pytest.mark.gpus(2)
async def test_a_restarted_driver_registers_again_and_its_slices_stay(case, pod_with_gpu):
    before = await case.slices()
    await case.cluster.stop_driver()
    await case.cluster.start_driver()
    await case.cluster.driver_says(REGISTERED)
    await another_pod_works(case)
    after = await case.slices()
    assert versions(after) == versions(before)
    await case.delete("Pod", "pod")
    await case.unprepared(pod_with_gpu)


@pytest.mark.needs("restart-driver")
@pytest.mark.gpus(2)
async def test_a_killed_driver_forgets_nothing(case, pod_with_gpu):
    await case.cluster.kill_driver()
    await case.cluster.start_driver()
    await case.cluster.driver_says(REGISTERED)
    await another_pod_works(case)
    assert uuids(await case.given("another")).isdisjoint(uuids(await case.given("pod")))
    await case.delete("Pod", "pod")
    await case.unprepared(pod_with_gpu)


@pytest.mark.needs("restart-driver")
async def test_a_pod_waits_while_the_driver_is_away_and_runs_after(case):
    await case.cluster.stop_driver()
    try:
        await case.create(m.template("one"), m.pod("pod", [m.from_template("one")]))
        await case.event("FailedPrepareDynamicResources", about="pod")
    finally:
        await case.cluster.start_driver()
    await case.running("pod")
    assert await case.seen("pod") == uuids(await case.given("pod"))


@pytest.mark.needs("restart-driver")
async def test_a_pod_deleted_while_the_driver_is_away_is_unprepared_after(case, pod_with_gpu):
    await case.cluster.stop_driver()
    try:
        await case.api.delete(case.path("Pod", "pod"))
        await case.wait.one("Pod", "pod", lambda pod: "deletionTimestamp" in pod["metadata"], "is to be deleted")
        if case.cluster.can("restart-kubelet"):  # the embedded one, which tells of what others only log
            await case.event("FailedUnprepareDynamicResources", about="pod")
    finally:
        await case.cluster.start_driver()
    await case.wait.gone("Pod", "pod")
    await case.unprepared(pod_with_gpu)


@pytest.mark.needs("restart-kubelet")
@pytest.mark.gpus(2)
async def test_a_restarted_kubelet_finds_the_driver_and_the_slices_come_back(case, pod_with_gpu):
    await case.cluster.stop_kubelet()
    await case.cluster.start_kubelet()
    await case.published()
    await another_pod_works(case)
    assert (await case.api.get(case.path("Pod", "pod")))["status"]["phase"] == "Running"
    assert uuids(await case.given("another")).isdisjoint(uuids(await case.given("pod")))


@pytest.mark.needs("restart-kubelet")
async def test_a_pod_created_while_the_kubelet_was_down_runs_after(case):
    await case.create(m.template("one"))
    await case.cluster.stop_kubelet()
    try:
        await case.create(m.pod("pod", [m.from_template("one")]))
        await case.wait.one("Pod", "pod", lambda pod: pod["spec"].get("nodeName"), "is bound to a node")
    finally:
        await case.cluster.start_kubelet()
    await case.running("pod")
    assert await case.seen("pod") == uuids(await case.given("pod"))


@pytest.mark.needs("restart-kubelet")
@pytest.mark.parametrize("force", [False, True], ids=["deleted", "force-deleted"])
async def test_a_pod_deleted_while_the_kubelet_was_down_is_unprepared(case, pod_with_gpu, force):
    await case.cluster.stop_kubelet()
    try:
        if force:
            await case.delete("Pod", "pod", force=True)
        else:
            await case.api.delete(case.path("Pod", "pod"))
    finally:
        await case.cluster.start_kubelet()
    await case.wait.gone("Pod", "pod")
    await case.unprepared(pod_with_gpu)


@pytest.mark.needs("restart-kubelet", "restart-driver")
@pytest.mark.gpus(2)
async def test_a_node_where_both_start_again_goes_on(case, pod_with_gpu):
    await case.cluster.stop_kubelet()
    await case.cluster.kill_driver()
    await case.cluster.start_kubelet()
    await case.cluster.start_driver()
    await case.cluster.driver_says(REGISTERED)
    await case.published()
    await another_pod_works(case)
    await case.delete("Pod", "pod")
    await case.unprepared(pod_with_gpu)


@pytest.mark.needs("api-faults")
async def test_a_pod_runs_although_the_api_server_fails_for_a_while(case):
    """What may pass is tried again within the kubelet's call, as its next one comes only after more than a minute."""
    async with case.cluster.claims_unreadable() as tried:
        await case.create(m.template("one"), m.pod("pod", [m.from_template("one")]))
        await tried()
    await case.running("pod")
    assert await case.seen("pod") == uuids(await case.given("pod"))
    assert not await case.events("FailedPrepareDynamicResources", about="pod")


@pytest.mark.needs("api-faults")
async def test_a_pod_stays_pending_while_its_claim_cannot_be_prepared_and_runs_after(case):
    """A failure that will not pass within the call is the kubelet's to come back for."""
    async with case.cluster.claims_unreadable(403):
        await case.create(m.template("one"), m.pod("pod", [m.from_template("one")]))
        assert "a fault to order" in await case.event("FailedPrepareDynamicResources", about="pod")
        assert (await case.api.get(case.path("Pod", "pod")))["status"]["phase"] == "Pending"
    await case.running("pod")
    assert await case.seen("pod") == uuids(await case.given("pod"))
