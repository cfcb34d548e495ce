from __future__ import annotations

import pytest

from driver.localcluster.controllers.claims import ClaimController
from driver.localcluster.scheduler.scheduler import Scheduler
from tests.unit.localcluster.support import (
    NAMESPACE,
    Running,
    bound,
    claim,
    device,
    device_class,
    devices_of,
    make_store,
    node,
    pending,
    pod,
    resource_slice,
    template,
    wait_for,
)


def cluster():
    store = make_store()
    store.create("nodes", node("a"))
    store.create("deviceclasses", device_class())
    store.create("resourceslices", resource_slice("a", device("gpu-0")))
    return store


def finish(store, name, phase="Succeeded"):
    store.patch("pods", name, {"status": {"phase": phase}}, NAMESPACE, subresource="status")


def free(claims):
    return all(not (item.get("status") or {}).get("allocation") for item in claims)


async def test_a_claim_is_made_of_the_template_and_owned_by_the_pod():
    store = cluster()
    body = template("t")
    body["spec"]["metadata"] = {"labels": {"team": "x"}, "annotations": {"note": "y"}}
    store.create("resourceclaimtemplates", body)
    made_for = store.create("pods", pod("p", template="t"))
    async with Running(ClaimController(store)):
        (made,) = await wait_for(store, "resourceclaims", list)
        (seen,) = await wait_for(
            store, "pods", lambda pods: pods if pods[0]["status"].get("resourceClaimStatuses") else None
        )
    assert seen["status"]["resourceClaimStatuses"] == [{"name": "gpu", "resourceClaimName": made["metadata"]["name"]}]
    assert made["metadata"]["labels"] == {"team": "x"}
    assert made["metadata"]["annotations"] == {"note": "y", "resource.kubernetes.io/pod-claim-name": "gpu"}
    owner = made["metadata"]["ownerReferences"][0]
    assert (owner["kind"], owner["uid"], owner["controller"]) == ("Pod", made_for["metadata"]["uid"], True)


async def test_an_interrupted_try_is_found_again_and_not_repeated():
    store = cluster()
    store.create("resourceclaimtemplates", template("t"))
    store.create("pods", pod("p", template="t"))
    async with Running(ClaimController(store)):
        await wait_for(store, "resourceclaims", list)
        await wait_for(store, "pods", lambda pods: pods[0]["status"].get("resourceClaimStatuses"))
    store.patch("pods", "p", {"status": {"resourceClaimStatuses": None}}, NAMESPACE, subresource="status")
    async with Running(ClaimController(store)):
        await wait_for(store, "pods", lambda pods: pods[0]["status"].get("resourceClaimStatuses"))
    assert len(store.list("resourceclaims")) == 1


async def test_a_missing_template_is_told_and_waited_for():
    store = cluster()
    store.create("pods", pod("p", template="t"))
    async with Running(ClaimController(store), Scheduler(store)):
        (event,) = await wait_for(store, "events", lambda found: [e for e in found if "ClaimCreation" in e["reason"]])
        assert event["message"] == 'PodResourceClaim gpu: resourceclaimtemplate "t" not found'
        assert 'resourceclaimtemplate "t" not found' in await pending(store, "p")
        store.create("resourceclaimtemplates", template("t"))
        await bound(store, "p")


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
async def test_a_finished_pod_gives_its_devices_back_and_the_next_gets_them(phase):
    store = cluster()
    store.create("resourceclaims", claim("c"))
    store.create("resourceclaims", claim("d"))
    store.create("pods", pod("p", "c"))
    async with Running(ClaimController(store), Scheduler(store)):
        await bound(store, "p")
        store.create("pods", pod("q", "d"))
        await pending(store, "q")
        finish(store, "p", phase)
        await bound(store, "q")
        await wait_for(store, "resourceclaims", lambda claims: not claims[0]["metadata"].get("finalizers"))
    assert devices_of(store, "c") == []
    assert devices_of(store, "d") == ["gpu-0"]


async def test_what_drivers_said_about_a_claim_goes_with_its_allocation():
    store = cluster()
    store.create("resourceclaims", claim("c"))
    store.create("pods", pod("p", "c"))
    async with Running(ClaimController(store), Scheduler(store)):
        await bound(store, "p")
        said = [{"driver": "gpu.nvidia.com", "pool": "a", "device": "gpu-0", "data": {"x": 1}}]
        store.patch("resourceclaims", "c", {"status": {"devices": said}}, NAMESPACE, subresource="status")
        finish(store, "p")
        await wait_for(store, "resourceclaims", free)
    assert not (store.get("resourceclaims", "c", NAMESPACE).get("status") or {}).get("devices")


async def test_the_claim_of_a_template_goes_when_its_pod_is_done():
    store = cluster()
    store.create("resourceclaimtemplates", template("t"))
    store.create("pods", pod("p", template="t"))
    async with Running(ClaimController(store), Scheduler(store)):
        await bound(store, "p")
        finish(store, "p")
        await wait_for(store, "resourceclaims", lambda claims: not claims)


async def test_the_claim_of_a_template_goes_with_its_deleted_pod():
    store = cluster()
    store.create("resourceclaimtemplates", template("t"))
    store.create("pods", pod("p", template="t"))
    async with Running(ClaimController(store), Scheduler(store)):
        await bound(store, "p")
        store.delete("pods", "p", NAMESPACE, grace_seconds=0)
        await wait_for(store, "resourceclaims", lambda claims: not claims)


async def test_a_claim_in_use_is_deleted_only_after_its_pod():
    store = cluster()
    store.create("resourceclaims", claim("c"))
    store.create("pods", pod("p", "c"))
    async with Running(ClaimController(store), Scheduler(store)):
        await bound(store, "p")
        store.delete("resourceclaims", "c", NAMESPACE)
        assert devices_of(store, "c") == ["gpu-0"]
        store.create("pods", pod("q", "c"))
        assert "is being deleted" in await pending(store, "q")
        store.delete("pods", "p", NAMESPACE, grace_seconds=0)
        await wait_for(store, "resourceclaims", lambda claims: not claims)


async def test_a_shared_claim_stays_until_the_last_pod_is_done():
    store = cluster()
    store.create("resourceclaims", claim("c"))
    for name in ("p", "q"):
        store.create("pods", pod(name, "c"))
    async with Running(ClaimController(store), Scheduler(store)):
        await bound(store, "p")
        await bound(store, "q")
        finish(store, "p")
        await wait_for(store, "resourceclaims", lambda claims: len(claims[0]["status"]["reservedFor"]) == 1)
        assert devices_of(store, "c") == ["gpu-0"]
        finish(store, "q")
        await wait_for(store, "resourceclaims", free)


async def test_the_claim_of_an_extended_resource_goes_with_its_pod():
    store = make_store()
    store.create("nodes", node("a"))
    store.create("deviceclasses", device_class(extendedResourceName="nvidia.com/gpu"))
    store.create("resourceslices", resource_slice("a", device("gpu-0")))
    containers = [{"name": "main", "image": "busybox", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]
    store.create("pods", pod("p", containers=containers))
    async with Running(ClaimController(store), Scheduler(store)):
        await bound(store, "p")
        finish(store, "p")
        await wait_for(store, "resourceclaims", lambda claims: not claims)
        store.create("pods", pod("q", containers=containers))
        await bound(store, "q")
