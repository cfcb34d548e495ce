from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from driver.localcluster.apiserver.errors import StatusError
from driver.localcluster.apiserver.features import Features
from driver.localcluster.controllers.claims import ClaimController
from driver.localcluster.scheduler.scheduler import Scheduler
from tests.unit.localcluster.support import (
    DRIVER,
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
    request,
    resource_slice,
    scheduled,
    template,
    wait_for,
)

RECORDED = json.loads((Path(__file__).parents[3] / "data/recordings/allocation.json").read_text())


async def test_a_claim_is_allocated_reserved_and_the_pod_bound_last():
    store = make_store()
    store.create("nodes", node("a"))
    store.create("deviceclasses", device_class())
    store.create("resourceslices", resource_slice("a", device("gpu-0")))
    store.create("resourceclaims", claim("c"))
    store.create("pods", pod("p", "c"))
    async with Running(Scheduler(store)):
        found = await bound(store, "p")
    held = store.get("resourceclaims", "c", NAMESPACE)
    assert found["spec"]["nodeName"] == "a"
    assert scheduled(found)["status"] == "True"
    assert held["status"]["reservedFor"] == [{"resource": "pods", "name": "p", "uid": found["metadata"]["uid"]}]
    assert devices_of(store, "c") == ["gpu-0"]
    assert held["metadata"]["finalizers"] == ["resource.kubernetes.io/delete-protection"]
    assert [event["reason"] for event in store.list("events", NAMESPACE)] == ["Scheduled"]
    assert int(held["metadata"]["resourceVersion"]) < int(found["metadata"]["resourceVersion"])


@pytest.mark.parametrize("case", RECORDED, ids=[case["id"] for case in RECORDED])
async def test_recorded_pods_get_devices_or_stay_pending_as_recorded(case):
    store = make_store()
    for name in ("control-plane", "node-a", "node-b"):
        store.create("nodes", node(name))
    for item in case["device_classes"]:
        store.create("deviceclasses", {"metadata": {"name": item["name"]}, "spec": item["spec"]})
    for index, spec in enumerate(case["slices"]):
        store.create("resourceslices", {"metadata": {"name": f"s{index}"}, "spec": spec})
    async with Running(Scheduler(store)):
        for index, (spec, want) in enumerate(zip(case["claims"], case["results"], strict=True)):
            body = {"metadata": {"name": f"claim-{index}", "namespace": NAMESPACE}, "spec": spec}
            if "rejected" in want:
                with pytest.raises(StatusError) as refused:
                    store.create("resourceclaims", body)
                assert want["rejected"] in str(refused.value)
                return
            store.create("resourceclaims", body)
            store.create("pods", pod(f"p{index}", f"claim-{index}"))
            if "pending" in want:
                message = await pending(store, f"p{index}")
                reason = scheduled(store.get("pods", f"p{index}", NAMESPACE))["reason"]
                assert reason == want["pending"]
                assert message.startswith(want["message"].partition(". ")[0].replace("alloc/", f"{NAMESPACE}/"))
            else:
                await bound(store, f"p{index}")
                assert len(devices_of(store, f"claim-{index}")) == len(want["allocation"]["devices"]["results"])


async def test_a_pending_pod_says_which_selector_failed_and_by_how_much():
    store = make_store()
    store.create("nodes", node("a"))
    store.create("deviceclasses", device_class())
    store.create("resourceslices", resource_slice("a", device("gpu-0", "81559Mi")))
    wanted = request("r", f"device.capacity['{DRIVER}'].memory.compareTo(quantity('80Gi')) >= 0")
    store.create("resourceclaims", claim("c", wanted))
    store.create("pods", pod("p", "c"))
    async with Running(Scheduler(store)):
        message = await pending(store, "p")
        events = await wait_for(store, "events", list)
    assert message == (
        "0/1 nodes are available: 1 cannot allocate all claims. "
        "On a: c: request r: gpu-0: memory 81559Mi is below 80Gi by 361Mi."
    )
    assert (events[0]["reason"], events[0]["type"], events[0]["message"]) == ("FailedScheduling", "Warning", message)


async def test_a_pending_pod_is_tried_again_when_a_device_comes_and_nothing_is_written_meanwhile():
    store = make_store()
    store.create("nodes", node("a"))
    store.create("deviceclasses", device_class())
    store.create("resourceclaims", claim("c"))
    store.create("pods", pod("p", "c"))
    async with Running(Scheduler(store)):
        await pending(store, "p")
        for _ in range(20):
            await asyncio.sleep(0)
        writes = store.writes
        for _ in range(20):
            await asyncio.sleep(0)
        assert store.writes == writes
        store.create("resourceslices", resource_slice("a", device("gpu-0")))
        await bound(store, "p")


async def test_two_pods_share_a_claim_on_its_node():
    store = make_store()
    for name in ("a", "b"):
        store.create("nodes", node(name))
    store.create("deviceclasses", device_class())
    store.create("resourceslices", resource_slice("b", device("gpu-0")))
    store.create("resourceclaims", claim("c"))
    async with Running(Scheduler(store)):
        store.create("pods", pod("p", "c"))
        await bound(store, "p")
        store.create("pods", pod("q", "c"))
        assert (await bound(store, "q"))["spec"]["nodeName"] == "b"
    names = [consumer["name"] for consumer in store.get("resourceclaims", "c", NAMESPACE)["status"]["reservedFor"]]
    assert names == ["p", "q"]


async def test_a_pod_waits_for_a_missing_claim_and_for_one_being_deleted():
    store = make_store()
    store.create("nodes", node("a"))
    store.create("pods", pod("p", "c"))
    async with Running(Scheduler(store)):
        assert 'resourceclaim "c" not found' in await pending(store, "p")
        store.create("deviceclasses", device_class())
        store.create("resourceslices", resource_slice("a", device("gpu-0")))
        store.create("resourceclaims", claim("c"))
        await bound(store, "p")


async def test_a_claim_of_a_template_belongs_to_its_pod_only():
    store = make_store()
    store.create("nodes", node("a"))
    store.create("deviceclasses", device_class())
    store.create("resourceslices", resource_slice("a", device("gpu-0")))
    store.create("resourceclaimtemplates", template("t"))
    store.create("pods", pod("p", template="t"))
    async with Running(Scheduler(store), ClaimController(store)):
        made = await bound(store, "p")
    name = made["status"]["resourceClaimStatuses"][0]["resourceClaimName"]
    assert name.startswith("p-gpu-")
    assert devices_of(store, name) == ["gpu-0"]


@pytest.mark.parametrize(
    ("nodes", "spec", "want"),
    [
        ([node("a"), node("b")], {"nodeSelector": {"kubernetes.io/hostname": "b"}}, "b"),
        ([node("a", unschedulable=True), node("b")], {}, "b"),
        ([node("a", taints=[{"key": "k", "value": "v", "effect": "NoSchedule"}]), node("b")], {}, "b"),
        ([node("a", {"cpu": "1"}), node("b", {"cpu": "4"})], {"cpu": "2"}, "b"),
        ([node("a"), node("b", {"nvidia.com/gpu": "2"})], {"nvidia.com/gpu": "2"}, "b"),
    ],
)
async def test_nodes_are_chosen_by_selector_taints_and_resources(nodes, spec, want):
    store = make_store()
    for item in nodes:
        store.create("nodes", item)
    limits = {key: value for key, value in spec.items() if isinstance(value, str)}
    rest = {key: value for key, value in spec.items() if key not in limits}
    containers = [{"name": "main", "image": "busybox", "resources": {"limits": limits}}]
    store.create("pods", pod("p", containers=containers, **rest))
    async with Running(Scheduler(store)):
        assert (await bound(store, "p"))["spec"]["nodeName"] == want


async def test_devices_of_a_plugin_are_used_up_and_come_back_with_the_pod():
    store = make_store()
    store.create("nodes", node("a", {"nvidia.com/gpu": "1"}))
    containers = [{"name": "main", "image": "busybox", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]
    store.create("pods", pod("p", containers=containers))
    async with Running(Scheduler(store)):
        await bound(store, "p")
        store.create("pods", pod("q", containers=containers))
        assert await pending(store, "q") == "0/1 nodes are available: 1 Insufficient nvidia.com/gpu."
        store.patch("pods", "p", {"status": {"phase": "Succeeded"}}, NAMESPACE, subresource="status")
        await bound(store, "q")


async def test_an_extended_resource_backed_by_a_class_gets_a_claim():
    store = make_store()
    store.create("nodes", node("a"))
    store.create("deviceclasses", device_class(extendedResourceName="nvidia.com/gpu"))
    store.create("resourceslices", resource_slice("a", device("gpu-0"), device("gpu-1")))
    containers = [{"name": "main", "image": "busybox", "resources": {"limits": {"nvidia.com/gpu": "2"}}}]
    store.create("pods", pod("p", containers=containers))
    async with Running(Scheduler(store)):
        made = await bound(store, "p")
    status = made["status"]["extendedResourceClaimStatus"]
    assert devices_of(store, status["resourceClaimName"]) == ["gpu-0", "gpu-1"]
    assert status["requestMappings"] == [
        {"containerName": "main", "resourceName": "nvidia.com/gpu", "requestName": "container-0-request-0"}
    ]
    special = store.get("resourceclaims", status["resourceClaimName"], NAMESPACE)
    assert special["metadata"]["annotations"] == {"resource.kubernetes.io/extended-resource-claim": "true"}
    assert special["metadata"]["ownerReferences"][0]["name"] == "p"


async def test_what_a_backed_resource_waits_for_is_told_in_the_pods_words():
    store = make_store()
    store.create("nodes", node("a"))
    store.create("deviceclasses", device_class(extendedResourceName="nvidia.com/gpu"))
    store.create("resourceslices", resource_slice("a", device("gpu-0"), device("gpu-1")))
    containers = [
        {"name": name, "image": "busybox", "resources": {"limits": {"nvidia.com/gpu": amount}}}
        for name, amount in (("helper", "1"), ("main", "2"))
    ]
    store.create("pods", pod("p", containers=containers))
    async with Running(Scheduler(store)):
        message = await pending(store, "p")
    assert message == (
        "0/1 nodes are available: 1 cannot allocate all claims. On a: nvidia.com/gpu of container main: "
        "1 of 2 devices fit: gpu-0: in use by this claim."
    )


async def test_a_node_that_advertises_the_resource_itself_needs_no_claim():
    store = make_store()
    store.create("nodes", node("a", {"nvidia.com/gpu": "1"}))
    store.create("deviceclasses", device_class(extendedResourceName="nvidia.com/gpu"))
    containers = [{"name": "main", "image": "busybox", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]
    store.create("pods", pod("p", containers=containers))
    async with Running(Scheduler(store)):
        made = await bound(store, "p")
    assert "extendedResourceClaimStatus" not in made["status"]
    assert store.list("resourceclaims") == []


@pytest.mark.parametrize("resource", ["nvidia.com/gpu", f"deviceclass.resource.kubernetes.io/{DRIVER}"])
async def test_before_kubernetes_136_no_class_backs_a_resource(resource):
    store = make_store(Features(kubernetes="1.35"))
    store.create("nodes", node("a"))
    store.create("deviceclasses", device_class(extendedResourceName="nvidia.com/gpu"))
    store.create("resourceslices", resource_slice("a", device("gpu-0")))
    containers = [{"name": "main", "image": "busybox", "resources": {"limits": {resource: "1"}}}]
    store.create("pods", pod("p", containers=containers))
    async with Running(Scheduler(store)):
        assert await pending(store, "p") == f"0/1 nodes are available: 1 Insufficient {resource}."


async def test_an_implicit_resource_of_a_class_gets_a_claim():
    store = make_store()
    store.create("nodes", node("a"))
    store.create("deviceclasses", device_class())
    store.create("resourceslices", resource_slice("a", device("gpu-0")))
    limits = {f"deviceclass.resource.kubernetes.io/{DRIVER}": "1"}
    store.create("pods", pod("p", containers=[{"name": "main", "image": "busybox", "resources": {"limits": limits}}]))
    async with Running(Scheduler(store)):
        made = await bound(store, "p")
    assert devices_of(store, made["status"]["extendedResourceClaimStatus"]["resourceClaimName"]) == ["gpu-0"]


async def test_a_bad_slice_costs_its_pool_only():
    store = make_store()
    for name in ("a", "b"):
        store.create("nodes", node(name))
    store.create("deviceclasses", device_class())
    store.create("resourceslices", resource_slice("b", device("gpu-0")))
    bad = resource_slice("a", {"name": "gpu-0", "attributes": {"v": {"version": "1"}}})
    async with Running(scheduler := Scheduler(store)):
        scheduler._view.resource_slice("ADDED", bad)  # an API server refuses it, so it can't come by the store
        store.create("resourceclaims", claim("c"))
        store.create("pods", pod("p", "c"))
        assert (await bound(store, "p"))["spec"]["nodeName"] == "b"


async def test_the_better_alternative_decides_between_nodes():
    store = make_store()
    for name in ("a", "b"):
        store.create("nodes", node(name))
    store.create("deviceclasses", device_class())
    store.create("resourceslices", resource_slice("a", device("gpu-0", "40Gi")))
    store.create("resourceslices", resource_slice("b", device("gpu-0", "80Gi")))
    big = {"cel": {"expression": f"device.capacity['{DRIVER}'].memory.isGreaterThan(quantity('60Gi'))"}}
    alternatives = [
        {"name": "big", "deviceClassName": DRIVER, "selectors": [big]},
        {"name": "any", "deviceClassName": DRIVER},
    ]
    store.create("resourceclaims", claim("c", {"name": "r", "firstAvailable": alternatives}))
    store.create("pods", pod("p", "c"))
    async with Running(Scheduler(store)):
        assert (await bound(store, "p"))["spec"]["nodeName"] == "b"


async def test_pods_go_by_priority_then_by_age():
    store = make_store()
    store.create("nodes", node("a", {"nvidia.com/gpu": "1"}))
    containers = [{"name": "main", "image": "busybox", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]
    store.create("pods", pod("first", containers=containers))
    store.create("pods", pod("vip", containers=containers, priority=10))
    async with Running(Scheduler(store)):
        await bound(store, "vip")
        await pending(store, "first")


async def test_a_gated_pod_waits_for_its_gates():
    store = make_store()
    store.create("nodes", node("a"))
    store.create("pods", pod("p", schedulingGates=[{"name": "example.com/wait"}]))
    async with Running(Scheduler(store)):
        assert "example.com/wait" in await pending(store, "p")
        store.patch("pods", "p", {"spec": {"schedulingGates": None}}, NAMESPACE)
        await bound(store, "p")
