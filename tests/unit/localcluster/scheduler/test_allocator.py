from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest

from driver.localcluster.scheduler import allocator, diagnosis
from driver.localcluster.scheduler.outcome import Allocation, SchedulerError, Unsatisfiable
from driver.localcluster.scheduler.state import AllocatedState
from tests.unit.localcluster import support
from tests.unit.localcluster.support import DRIVER, device, device_class, request, resource_slice

RECORDED = json.loads((Path(__file__).parents[3] / "data/recordings/allocation.json").read_text())
NODE = support.node("a")


def claim(name, *requests, **extra):
    return support.claim(name, *requests, uid=name, **extra)


class Cluster:
    """Allocates claim after claim on one node."""

    def __init__(self, *slices, classes=(), node=NODE):
        self.pools = support.pools_of(slices)
        self.classes = {item["metadata"]["name"]: item for item in (device_class(), *classes)}
        self.state = AllocatedState()
        self.node = node
        self._ids = itertools.count()

    def allocate(self, *claims):
        outcome = allocator.allocate(
            claims, self.classes, self.pools, self.state, self.node, new_id=lambda: f"share-{next(self._ids)}"
        )
        if isinstance(outcome, Allocation):
            for item in claims:
                allocation = outcome.claims[f"{item['metadata']['namespace']}/{item['metadata']['name']}"]
                self.state.put({**item, "status": {"allocation": allocation}})
        return outcome

    def results(self, *claims):
        outcome = self.allocate(*claims)
        assert isinstance(outcome, Allocation), diagnosis.describe(outcome)
        return [result for allocation in outcome.claims.values() for result in allocation["devices"]["results"]]

    def names(self, *claims):
        return [result["device"] for result in self.results(*claims)]

    def refusal(self, *claims):
        outcome = self.allocate(*claims)
        assert isinstance(outcome, Unsatisfiable), outcome
        return diagnosis.describe(outcome)


def without_ids(allocation):
    results = [
        {key: value for key, value in item.items() if key != "shareID"} for item in allocation["devices"]["results"]
    ]
    return {**allocation, "devices": {**allocation["devices"], "results": results}}


@pytest.mark.parametrize("case", RECORDED, ids=[case["id"] for case in RECORDED])
def test_recorded_allocations_come_out_the_same(case):
    slices = [{"metadata": {"name": f"s{index}"}, "spec": spec} for index, spec in enumerate(case["slices"])]
    cluster = Cluster(*slices)
    cluster.classes = {item["name"]: {"metadata": {"name": item["name"]}, **item} for item in case["device_classes"]}
    for index, (spec, want) in enumerate(zip(case["claims"], case["results"], strict=True)):
        meta = {"namespace": "alloc", "name": f"claim-{index}", "uid": str(index)}
        wanted = {"metadata": meta, "spec": spec}
        if "allocation" in want:
            cluster.node = support.node(want["node"])
            outcome = cluster.allocate(wanted)
            assert isinstance(outcome, Allocation), diagnosis.describe(outcome)
            assert without_ids(outcome.claims[f"alloc/claim-{index}"]) == without_ids(want["allocation"])
        elif want.get("pending") == "SchedulerError":
            cluster.node = support.node("node-b")
            with pytest.raises(SchedulerError) as refused:
                cluster.allocate(wanted)
            assert f'running "DynamicResources" filter plugin: {refused.value}' == want["message"]
        elif "pending" in want:
            for name in ("node-a", "node-b", "node-c"):
                cluster.node = support.node(name)
                assert cluster.refusal(wanted)


def test_slices_are_taken_by_name_and_devices_in_list_order():
    pool = {"name": "a", "generation": 1, "resourceSliceCount": 2}
    second = resource_slice("a", device("x"), device("b"), name="2", pool=pool)
    first = resource_slice("a", device("z"), device("c"), name="1", pool=pool)
    cluster = Cluster(second, first)
    assert cluster.names(claim("c", request(count=4))) == ["z", "c", "x", "b"]


def test_only_the_newest_generation_counts_and_only_if_complete():
    old = resource_slice("a", device("old"), name="1")
    new = resource_slice("a", device("new"), name="2", pool={"name": "a", "generation": 2, "resourceSliceCount": 1})
    assert Cluster(old, new).names(claim("c")) == ["new"]
    half = resource_slice("a", device("new"), name="2", pool={"name": "a", "generation": 2, "resourceSliceCount": 2})
    assert "only 1 of its 2 slices are there" in Cluster(old, half).refusal(claim("c"))


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        ((device("gpu-0"), device("gpu-0")), "device gpu-0 is in it twice"),
        (
            (device("gpu-0", consumesCounters=[{"counterSet": "s", "counters": {"c": {"value": "1"}}}]),),
            "consumes counter c of s, which nothing provides",
        ),
    ],
)
def test_an_invalid_pool_is_not_used(broken, words):
    assert words in Cluster(resource_slice("a", *broken)).refusal(claim("c"))


def test_backtracking_over_requests():
    wanted = claim("c", request("any"), request("first", f"device.attributes['{DRIVER}'].minor == 0"))
    slices = resource_slice("a", *(device(f"gpu-{n}", attributes={"minor": {"int": n}}) for n in range(2)))
    results = Cluster(slices).results(wanted)
    assert [(item["request"], item["device"]) for item in results] == [("any", "gpu-1"), ("first", "gpu-0")]


def test_backtracking_over_claims_of_one_pod():
    pick = request("r", f"device.attributes['{DRIVER}'].minor == 0")
    slices = resource_slice("a", *(device(f"gpu-{n}", attributes={"minor": {"int": n}}) for n in range(2)))
    assert Cluster(slices).names(claim("c"), claim("d", pick)) == ["gpu-1", "gpu-0"]


def test_all_takes_every_matching_device_or_none():
    cluster = Cluster(resource_slice("a", device("gpu-0"), device("gpu-1", "10Gi"), device("gpu-2")))
    big = f"device.capacity['{DRIVER}'].memory.isGreaterThan(quantity('20Gi'))"
    assert cluster.names(claim("c", request("r", big, allocationMode="All"))) == ["gpu-0", "gpu-2"]
    assert cluster.refusal(claim("d", request("r", allocationMode="All"))) == (
        "d: request r: all matching devices are wanted, but gpu-0: in use by claim work/c (1 more likewise)"
    )
    assert isinstance(Cluster().allocate(claim("e", request("r", allocationMode="All"))), Unsatisfiable)


def test_admin_access_sees_devices_in_use_and_holds_none():
    cluster = Cluster(resource_slice("a", device("gpu-0")))
    assert cluster.names(claim("c")) == ["gpu-0"]
    (result,) = cluster.results(claim("admin", request("r", adminAccess=True)))
    assert result["adminAccess"] is True
    cluster.state.drop("c")
    assert cluster.names(claim("d")) == ["gpu-0"]
    twice = claim("twice", request("r", adminAccess=True, count=2))
    assert cluster.refusal(twice) == "twice: request r: 1 of 2 devices fit, and it has no more"


def test_alternatives_fall_back_and_carry_their_own_name_and_config():
    config = [
        {"requests": ["r/big"], "opaque": {"driver": DRIVER, "parameters": {"for": "big"}}},
        {"requests": ["r/any"], "opaque": {"driver": DRIVER, "parameters": {"for": "any"}}},
        {"requests": ["r"], "opaque": {"driver": DRIVER, "parameters": {"for": "r"}}},
        {"opaque": {"driver": DRIVER, "parameters": {"for": "all"}}},
    ]
    big = {"cel": {"expression": f"device.capacity['{DRIVER}'].memory.isGreaterThan(quantity('90Gi'))"}}
    alternatives = [
        {"name": "big", "deviceClassName": DRIVER, "selectors": [big]},
        {"name": "any", "deviceClassName": "configured"},
    ]
    configured = device_class("configured", config=[{"opaque": {"driver": DRIVER, "parameters": {"for": "class"}}}])
    cluster = Cluster(resource_slice("a", device("gpu-0")), classes=[configured])
    outcome = cluster.allocate(claim("c", {"name": "r", "firstAvailable": alternatives}, config=config))
    devices_ = outcome.claims["work/c"]["devices"]
    assert [item["request"] for item in devices_["results"]] == ["r/any"]
    given = [(item["source"], item.get("requests"), item["opaque"]["parameters"]["for"]) for item in devices_["config"]]
    assert given == [
        ("FromClass", ["r/any"], "class"),
        ("FromClaim", ["r/any"], "any"),
        ("FromClaim", ["r"], "r"),
        ("FromClaim", None, "all"),
    ]


def test_a_better_alternative_scores_higher():
    alternatives = [
        {"name": "two", "deviceClassName": DRIVER, "count": 2},
        {"name": "one", "deviceClassName": DRIVER, "count": 1},
    ]
    wanted = claim("c", {"name": "r", "firstAvailable": alternatives})
    one = Cluster(resource_slice("a", device("gpu-0"))).allocate(wanted)
    two = Cluster(resource_slice("a", device("gpu-0"), device("gpu-1"))).allocate(wanted)
    assert two.score > one.score > Cluster(resource_slice("a", device("gpu-0"))).allocate(claim("d")).score


def spread(**extra):
    return resource_slice("a", *(device(f"gpu-{n}", attributes={"numa": {"int": n // 2}}, **extra) for n in range(4)))


def test_match_attribute_within_and_across_requests():
    constraint = [{"requests": ["a", "b"], "matchAttribute": f"{DRIVER}/numa"}]
    cluster = Cluster(spread())
    assert cluster.names(claim("x", request("a"), request("b"), constraints=constraint)) == ["gpu-0", "gpu-1"]
    assert cluster.names(claim("y")) == ["gpu-2"]
    assert cluster.refusal(claim("z", request("a"), request("b"), constraints=constraint))


def test_match_attribute_names_the_values_there_are():
    constraint = [{"matchAttribute": f"{DRIVER}/numa"}]
    assert Cluster(spread()).refusal(claim("x", request("r", count=3), constraints=constraint)) == (
        "x: request r: no 3 free devices with one gpu.nvidia.com/numa: 2 with 0, 2 with 1"
    )


def test_distinct_attribute():
    constraint = [{"distinctAttribute": f"{DRIVER}/numa"}]
    cluster = Cluster(spread())
    assert cluster.names(claim("x", request("r", count=2), constraints=constraint)) == ["gpu-0", "gpu-2"]
    assert "no 3 free devices with different gpu.nvidia.com/numa" in Cluster(spread()).refusal(
        claim("y", request("r", count=3), constraints=constraint)
    )


def test_a_constraint_covers_the_alternatives_of_its_request():
    constraint = [{"requests": ["r", "b"], "matchAttribute": f"{DRIVER}/numa"}]
    alternatives = {"name": "r", "firstAvailable": [{"name": "x", "deviceClassName": DRIVER, "count": 1}]}
    second = request("b", f"device.attributes['{DRIVER}'].numa == 1")
    assert Cluster(spread()).names(claim("c", alternatives, second, constraints=constraint)) == ["gpu-2", "gpu-3"]


def test_tolerations_open_tainted_devices_and_are_copied():
    taint = {"key": "k", "value": "v", "effect": "NoExecute"}
    toleration = {"key": "k", "operator": "Equal", "value": "v", "effect": "NoExecute"}
    cluster = Cluster(resource_slice("a", device("gpu-0", taints=[taint])))
    assert "taint k=v:NoExecute is not tolerated" in cluster.refusal(claim("c"))
    (result,) = cluster.results(claim("d", request("r", tolerations=[toleration])))
    assert result["tolerations"] == [toleration]


def shared(**policy):
    capacity = {"memory": {"value": "80Gi", **({"requestPolicy": policy} if policy else {})}}
    return resource_slice("a", device("gpu-0", capacity=capacity, allowMultipleAllocations=True))


def ask(amount=None, **extra):
    return request("r", **({"capacity": {"requests": {"memory": amount}}} if amount else {}), **extra)


@pytest.mark.parametrize(
    ("policy", "amount", "taken"),
    [
        ({}, "20Gi", "20Gi"),
        ({}, None, "80Gi"),
        ({"default": "8Gi", "validRange": {"min": "4Gi"}}, None, "8Gi"),
        ({"default": "8Gi", "validRange": {"min": "4Gi"}}, "1Gi", "4Gi"),
        ({"default": "1Gi", "validRange": {"min": "1Gi", "step": "1Gi"}}, "1500Mi", "2Gi"),
        ({"default": "3Gi", "validRange": {"min": "3Gi", "step": "2Gi"}}, "4Gi", "5Gi"),
        ({"default": "10Gi", "validValues": ["10Gi", "20Gi", "40Gi"]}, "11Gi", "20Gi"),
        ({"default": "10Gi", "validValues": ["10Gi", "20Gi", "40Gi"]}, "20Gi", "20Gi"),
        ({"default": "10Gi", "validValues": ["10Gi", "20Gi", "40Gi"]}, None, "10Gi"),
    ],
)
def test_a_share_is_rounded_by_the_policy(policy, amount, taken):
    (result,) = Cluster(shared(**policy)).results(claim("c", ask(amount)))
    assert result["consumedCapacity"] == {"memory": taken}
    assert result["shareID"] == "share-0"


@pytest.mark.parametrize(
    ("policy", "amount", "words"),
    [
        (
            {"default": "1Gi", "validRange": {"min": "1Gi", "max": "8Gi"}},
            "9Gi",
            "above 8Gi, the most that its request policy allows, by 1Gi",
        ),
        (
            {"default": "10Gi", "validValues": ["10Gi", "40Gi"]},
            "41Gi",
            "above 40Gi, the most that its request policy allows, by 1Gi",
        ),
        ({}, "81Gi", "memory 80Gi is below 81Gi by 1Gi"),
    ],
)
def test_a_share_that_no_policy_gives(policy, amount, words):
    assert words in Cluster(shared(**policy)).refusal(claim("c", ask(amount)))


def test_shares_add_up_over_claims_and_pods_and_say_what_is_left():
    cluster = Cluster(shared())
    assert cluster.names(claim("c", ask("50Gi")), claim("d", ask("20Gi"))) == ["gpu-0", "gpu-0"]
    assert "memory: 10Gi of 80Gi is left, 11Gi is needed" in cluster.refusal(claim("e", ask("11Gi")))
    assert cluster.names(claim("f", ask("10Gi"))) == ["gpu-0"]
    cluster.state.drop("c")
    assert cluster.names(claim("g", ask("50Gi"))) == ["gpu-0"]


def test_a_capacity_that_the_device_has_not():
    wanted = request("r", capacity={"requests": {"bandwidth": "1G"}})
    assert "it has no capacity bandwidth" in Cluster(shared()).refusal(claim("c", wanted))


def test_counters_are_shared_over_the_slices_of_a_pool():
    pool = {"name": "a", "generation": 1, "resourceSliceCount": 2}
    counters = [{"name": "s", "counters": {"slots": {"value": "2"}}}]
    consumes = [{"counterSet": "s", "counters": {"slots": {"value": "1"}}}]
    of = [{"counterSet": "s", "counters": {"slots": {"value": "2"}}}]
    parts = [device(f"part-{n}", consumesCounters=consumes) for n in range(3)]
    cluster = Cluster(
        resource_slice("a", name="1", pool=pool, sharedCounters=counters),
        resource_slice("a", device("whole", consumesCounters=of), *parts, name="2", pool=pool),
    )
    assert cluster.names(claim("c", request("r", count=2))) == ["part-0", "part-1"]
    assert "slots of s has 0 left, 2 is needed" in cluster.refusal(claim("d"))
    cluster.state.drop("c")
    assert cluster.names(claim("e")) == ["whole"]


@pytest.mark.parametrize(
    ("where", "selector"),
    [
        ({"nodeName": "a"}, {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["a"]}]}),
        (
            {
                "nodeSelector": {
                    "nodeSelectorTerms": [
                        {
                            "matchExpressions": [
                                {"key": "kubernetes.io/hostname", "operator": "In", "values": ["a", "b"]}
                            ]
                        }
                    ]
                }
            },
            {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": ["a", "b"]}]},
        ),
        ({"allNodes": True}, None),
    ],
    ids=["nodeName", "nodeSelector", "allNodes"],
)
def test_an_allocation_says_where_it_can_be_used(where, selector):
    body = resource_slice("a", device("gpu-0"))
    del body["spec"]["nodeName"]
    body["spec"].update(where)
    outcome = Cluster(body).allocate(claim("c"))
    found = outcome.claims["work/c"].get("nodeSelector")
    assert found == (None if selector is None else {"nodeSelectorTerms": [selector]})


def test_devices_choose_their_nodes_one_by_one():
    body = resource_slice("a", device("gpu-0", nodeName="b"), device("gpu-1", allNodes=True))
    del body["spec"]["nodeName"]
    body["spec"]["perDeviceNodeSelection"] = True
    assert Cluster(body).names(claim("c")) == ["gpu-1"]
    assert Cluster(body, node=support.node("b")).names(claim("c")) == ["gpu-0"]


@pytest.mark.parametrize(
    ("requests", "words"),
    [
        ([request("r", cls="nope")], "request r: device class nope does not exist"),
        ([request("a", count=20), request("b", count=13)], "claim work/c asks for 33 devices, a claim can hold 32"),
    ],
)
def test_what_no_node_can_do(requests, words):
    outcome = Cluster(resource_slice("a", device("gpu-0"))).allocate(claim("c", *requests))
    assert isinstance(outcome, Unsatisfiable)
    assert outcome.everywhere
    assert diagnosis.describe(outcome) == words


def test_a_hopeless_search_gives_up_and_says_so():
    slices = resource_slice(
        "a", *(device(f"gpu-{n}", attributes={"x": {"int": n}, "y": {"int": n % 2}}) for n in range(40))
    )
    requests = [request(f"r{n}", count=3) for n in range(8)]
    constraints = [
        {"distinctAttribute": f"{DRIVER}/x"},
        {"requests": ["r0", "r7"], "matchAttribute": f"{DRIVER}/y"},
        {"requests": ["r7"], "matchAttribute": f"{DRIVER}/x"},
    ]
    assert "gave up after 10000 checks" in Cluster(slices).refusal(claim("c", *requests, constraints=constraints))


def test_a_class_that_fails_is_named():
    broken = device_class("broken", "device.attributes['gpu.nvidia.com'].nope == 1")
    with pytest.raises(SchedulerError, match=r"^class broken: selector #0: CEL runtime error: no such key: nope$"):
        Cluster(resource_slice("a", device("gpu-0")), classes=[broken]).allocate(claim("c", request(cls="broken")))


def test_a_selector_is_not_asked_about_devices_that_are_not_needed():
    picky = request("r", f"device.attributes['{DRIVER}'].special == true")
    slices = resource_slice("a", device("gpu-0", attributes={"special": {"bool": True}}), device("gpu-1"))
    assert Cluster(slices).names(claim("c", picky)) == ["gpu-0"]
