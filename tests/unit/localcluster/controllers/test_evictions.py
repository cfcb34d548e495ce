from __future__ import annotations

import pytest

from driver.localcluster.controllers.evictions import EvictionController
from driver.localcluster.scheduler.scheduler import Scheduler
from tests.unit.localcluster.support import (
    NAMESPACE,
    Running,
    bound,
    claim,
    device,
    device_class,
    make_store,
    node,
    pod,
    request,
    resource_slice,
    wait_for,
)

LOST = {"key": "gpu.nvidia.com/lost", "value": "yes", "effect": "NoExecute"}


def taint(store, *taints):
    body = store.get("resourceslices", "0-a")
    devices = [{**item, "taints": list(taints)} for item in body["spec"]["devices"]]
    store.update("resourceslices", {**body, "spec": {**body["spec"], "devices": devices}})


async def cluster(tolerations=()):
    store = make_store()
    store.create("nodes", node("a"))
    store.create("deviceclasses", device_class())
    store.create("resourceslices", resource_slice("a", device("gpu-0")))
    wanted = request("r", **({"tolerations": list(tolerations)} if tolerations else {}))
    store.create("resourceclaims", claim("c", wanted))
    store.create("pods", pod("p", "c"))
    async with Running(Scheduler(store)):
        await bound(store, "p")
    return store


def leaving(pods):
    return [item for item in pods if item["metadata"].get("deletionTimestamp")]


async def test_a_pod_leaves_a_device_that_is_lost():
    store = await cluster()
    async with Running(EvictionController(store)):
        taint(store, LOST)
        (found,) = await wait_for(store, "pods", leaving)
    reasons = [item["reason"] for item in found["status"]["conditions"] if item["type"] == "DisruptionTarget"]
    assert reasons == ["DeletionByDeviceTaintManager"]
    assert {event["reason"] for event in store.list("events", NAMESPACE)} == {"DeviceTaintManagerEviction", "Scheduled"}


@pytest.mark.parametrize(
    ("tolerations", "taints"),
    [
        ([{"key": LOST["key"], "operator": "Exists"}], [LOST]),
        ([], [{**LOST, "effect": "NoSchedule"}]),
        ([], [{**LOST, "effect": "None"}]),
        ([{"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 3600}], [LOST]),
    ],
    ids=["tolerated", "NoSchedule", "None", "tolerated for an hour"],
)
async def test_a_pod_stays_on_a_device_whose_taint_is_harmless_or_tolerated(tolerations, taints):
    store = await cluster(tolerations)
    async with Running(controller := EvictionController(store)):
        taint(store, *taints)
        await wait_for(store, "resourceslices", lambda found: found[0]["spec"]["devices"][0].get("taints"), None)
        controller._sync(("resourceclaims", NAMESPACE, "c"))
    assert not leaving(store.list("pods"))


async def test_a_toleration_runs_out():
    store = await cluster([{"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 60}])
    async with Running(EvictionController(store)):
        taint(store, {**LOST, "timeAdded": "2020-01-01T00:00:00Z"})
        await wait_for(store, "pods", leaving)
