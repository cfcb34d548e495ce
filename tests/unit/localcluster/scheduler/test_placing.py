from __future__ import annotations

import itertools

import pytest

from driver.localcluster.scheduler.placing import Placement, Placer, Refusal
from driver.localcluster.scheduler.pools import PoolIndex
from driver.localcluster.scheduler.view import ClusterView
from tests.unit.localcluster import support
from tests.unit.localcluster.support import DRIVER, device, device_class, node, pod, request, resource_slice


def view_of(count, *, slices=True, **extra):
    view = ClusterView()
    view.device_class("ADDED", device_class())
    for number in range(count):
        view.node("ADDED", node(f"n{number:03}"))
        if slices:
            view.resource_slice("ADDED", resource_slice(f"n{number:03}", device("gpu-0", **extra)))
    return view


def placer(view):
    ids = itertools.count()
    return Placer(view, lambda: f"share-{next(ids)}")


def named(name, uid="u"):
    body = pod(name)
    body["metadata"]["uid"] = uid
    return body


def claim(*requests):
    return support.claim("c", *requests, uid="c")


def test_pods_spread_over_equal_nodes():
    view = view_of(3)
    chosen = []
    for number in range(4):
        placed = placer(view).place(named("p"), [])
        chosen.append(placed.node)
        view.pod("ADDED", {"metadata": {"uid": str(number)}, "spec": {"nodeName": placed.node, "containers": []}})
    assert chosen == ["n000", "n001", "n002", "n000"]


def test_a_large_cluster_is_not_searched_as_a_whole_and_everybody_gets_a_turn():
    view = view_of(300)
    one = placer(view)
    chosen = {one.place(named("p"), [claim()]).node for _ in range(300)}
    assert len(chosen) > 90
    assert len(view.pools._pools) == 300


def test_in_a_large_cluster_the_only_node_that_fits_is_found():
    view = view_of(300, slices=False)
    view.resource_slice("ADDED", resource_slice("n250", device("gpu-0")))
    one = placer(view)
    for _ in range(3):
        assert one.place(named("p"), [claim()]).node == "n250"


def test_alike_nodes_are_named_together():
    big = request("r", f"device.capacity['{DRIVER}'].memory.isGreaterThan(quantity('90Gi'))")
    refused = placer(view_of(3)).place(named("p"), [claim(big)])
    assert refused == Refusal(
        reason="Unschedulable",
        message="0/3 nodes are available: 3 cannot allocate all claims. "
        "On n000 (and 2 more nodes): c: request r: gpu-0: memory 80Gi is below 90Gi by 10Gi.",
    )


@pytest.mark.parametrize("of_class", [False, True])
def test_a_selector_without_a_value_says_for_which_device(of_class):
    broken = "device.attributes['gpu.nvidia.com'].nope == 1"
    view = view_of(1)
    view.device_class("ADDED", device_class("broken", broken))
    asked = request("r", cls="broken") if of_class else request("r", broken)
    whose = "class broken" if of_class else "claim work/c"
    assert placer(view).place(named("p"), [claim(asked)]) == Refusal(
        reason="SchedulerError",
        message=f'running "DynamicResources" filter plugin: {whose}: selector #0: CEL runtime error: '
        "no such key: nope (request r, device gpu-0 of pool n000)",
    )


def test_a_cluster_whose_nodes_have_no_devices_says_so():
    view = view_of(2)
    for name in ("n000", "n001"):
        view.resource_slice("DELETED", resource_slice(name))
    assert placer(view).place(named("p"), [claim()]).message == (
        "0/2 nodes are available: 2 cannot allocate all claims. "
        "On n000 (and 1 more node): c: request r: the node has no devices."
    )


def test_more_devices_than_a_node_has_are_a_reason_where_all_are_free():
    assert placer(view_of(1)).place(named("p"), [claim(request("r", count=2))]).message == (
        "0/1 nodes are available: 1 cannot allocate all claims. "
        "On n000: c: request r: 1 of 2 devices fit, and it has no more."
    )


def test_reasons_are_counted():
    view = view_of(2)
    view.node("MODIFIED", node("n000", unschedulable=True))
    view.resource_slice("DELETED", resource_slice("n001"))
    refused = placer(view).place(named("p"), [claim()])
    assert refused.message == (
        "0/2 nodes are available: 1 cannot allocate all claims, 1 node(s) were unschedulable. "
        "On n001: c: request r: the node has no devices."
    )


def test_a_cluster_without_nodes():
    assert placer(ClusterView()).place(named("p"), []).message == "no nodes available to schedule pods"


def test_a_message_stays_within_bounds():
    view = ClusterView()
    view.device_class("ADDED", device_class())
    for number in range(5):
        view.node("ADDED", node(f"n{number}"))
        view.resource_slice(
            "ADDED", resource_slice(f"n{number}", device("gpu-0", attributes={"x": {"string": str(number) * 60}}))
        )
    long = request("r", *[f"device.attributes['{DRIVER}'].x == '{'y' * 400}'"])
    message = placer(view).place(named("p"), [claim(long)]).message
    assert message.endswith("...")
    assert len(message) < 1024


def test_an_allocated_claim_keeps_its_pods_on_its_nodes():
    view = view_of(3)
    selector = {
        "nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n001"]}]}]
    }
    held = {**claim(), "status": {"allocation": {"devices": {"results": []}, "nodeSelector": selector}}}
    placed = placer(view).place(named("p"), [held])
    assert isinstance(placed, Placement)
    assert (placed.node, dict(placed.allocations)) == ("n001", {})


def test_a_bad_quantity_refuses_its_pod_only():
    body = named("p")
    body["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "lots"}}
    assert "invalid value 'lots'" in placer(view_of(1)).place(body, []).message


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_pools_come_and_go_with_their_slices(order):
    index = PoolIndex()
    pool = {"name": "p", "generation": 1, "resourceSliceCount": 2}
    slices = [resource_slice("a", device(f"gpu-{number}"), name=str(number), pool=pool) for number in range(2)]
    for number in order:
        assert not [item for item in index.for_node("a") if item.problem is None]
        index.put(slices[number])
    assert [item.name for item in index.for_node("a")[0].devices] == ["gpu-0", "gpu-1"]
    assert index.for_node("b") == []
    for number in order:
        index.remove(slices[number])
        index.remove(slices[number])
    assert index.for_node("a") == []


def test_a_pool_for_all_nodes_serves_each():
    index = PoolIndex()
    body = resource_slice("a", device("gpu-0"))
    del body["spec"]["nodeName"]
    body["spec"]["allNodes"] = True
    index.put(body)
    assert index.for_node("x") == index.for_node("y") != []


def test_a_slice_that_can_not_be_read_makes_its_pool_unusable():
    index = PoolIndex()
    index.put(resource_slice("a", device("gpu-0", "lots")))
    index.put(resource_slice("b", device("gpu-0")))
    assert "invalid value 'lots'" in index.for_node("a")[0].problem
    assert index.for_node("b")[0].problem is None
