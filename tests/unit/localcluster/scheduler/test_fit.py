from __future__ import annotations

from fractions import Fraction

import pytest

from driver.errors import InvalidValueError
from driver.localcluster.scheduler import extended, fit
from tests.unit.localcluster.support import node


def container(name="c", restart=None, **requests):
    body = {"name": name, "resources": {"requests": {key.replace("_", "/"): value for key, value in requests.items()}}}
    return body | ({"restartPolicy": restart} if restart else {})


@pytest.mark.parametrize(
    ("spec", "amounts"),
    [
        ({"containers": [container(cpu="1"), container(cpu="500m")]}, {"cpu": Fraction(3, 2)}),
        ({"containers": [container(cpu="1")], "initContainers": [container(cpu="3")]}, {"cpu": 3}),
        ({"containers": [container(cpu="2")], "initContainers": [container(cpu="1")]}, {"cpu": 2}),
        (
            {
                "containers": [container(cpu="2")],
                "initContainers": [container(cpu="1", restart="Always"), container(cpu="4")],
            },
            {"cpu": 5},
        ),
        ({"containers": [container(cpu="1")], "overhead": {"cpu": "250m"}}, {"cpu": Fraction(5, 4)}),
        ({"containers": [{"name": "c", "resources": {"limits": {"nvidia.com/gpu": "2"}}}]}, {"nvidia.com/gpu": 2}),
        ({"containers": [{"name": "c"}]}, {}),
    ],
)
def test_what_a_pod_requests(spec, amounts):
    assert fit.amounts(spec) == amounts


def test_a_bad_quantity_is_named():
    with pytest.raises(InvalidValueError, match=r"^cpu: invalid value 'lots'"):
        fit.amounts({"containers": [container(cpu="lots")]})


@pytest.mark.parametrize(
    ("item", "spec", "why"),
    [
        (node("a"), {}, None),
        (node("a", unschedulable=True), {}, "node(s) were unschedulable"),
        (node("a", unschedulable=True), {"tolerations": [{"operator": "Exists"}]}, None),
        (
            node("a", taints=[{"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}]),
            {},
            "node(s) had untolerated taint {nvidia.com/gpu: present}",
        ),
        (
            node("a", taints=[{"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}]),
            {"tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}]},
            None,
        ),
        (node("a", taints=[{"key": "k", "effect": "PreferNoSchedule"}]), {}, None),
        (node("a"), {"nodeSelector": {"zone": "x"}}, "node(s) didn't match Pod's node affinity/selector"),
        (
            {**node("a"), "status": {"conditions": [{"type": "Ready", "status": "False"}]}},
            {},
            "node(s) had untolerated taint {node.kubernetes.io/not-ready: }",
        ),
    ],
)
def test_nodes(item, spec, why):
    assert fit.why_not_node(spec, item) == why


@pytest.mark.parametrize(
    ("wanted", "used", "total", "pods", "reasons"),
    [
        ({"cpu": 2}, {"cpu": 1}, {"cpu": 3}, 0, []),
        ({"cpu": 2}, {"cpu": 2}, {"cpu": 3}, 0, ["Insufficient cpu"]),
        ({"cpu": 2, "memory": 1}, {}, {}, 0, []),
        ({"nvidia.com/gpu": 1}, {}, {}, 0, ["Insufficient nvidia.com/gpu"]),
        ({"nvidia.com/gpu": 0}, {}, {}, 0, []),
        ({}, {}, {"pods": 2}, 1, []),
        ({}, {}, {"pods": 2}, 2, ["Too many pods"]),
    ],
)
def test_shortages(wanted, used, total, pods, reasons):
    def exact(amounts):
        return {name: Fraction(amount) for name, amount in amounts.items()}

    assert fit.shortages(exact(wanted), exact(used), exact(total), pods) == reasons


@pytest.mark.parametrize(
    ("name", "is_one"),
    [
        ("nvidia.com/gpu", True),
        ("deviceclass.resource.kubernetes.io/gpu.nvidia.com", True),
        ("cpu", False),
        ("hugepages-2Mi", False),
        ("requests.kubernetes.io/x", False),
    ],
)
def test_extended_resources(name, is_one):
    assert fit.is_extended(name) is is_one


def backed(name, created, resource="nvidia.com/gpu"):
    return {"metadata": {"name": name, "creationTimestamp": created}, "spec": {"extendedResourceName": resource}}


@pytest.mark.parametrize(
    ("classes", "resource", "want"),
    [
        ([backed("a", "2025-01-01T00:00:00Z")], "nvidia.com/gpu", "a"),
        ([backed("a", "2025-01-01T00:00:00Z"), backed("b", "2025-01-02T00:00:00Z")], "nvidia.com/gpu", "b"),
        ([backed("b", "2025-01-01T00:00:00Z"), backed("a", "2025-01-01T00:00:00Z")], "nvidia.com/gpu", "a"),
        ([backed("a", "2025-01-01T00:00:00Z")], "amd.com/gpu", None),
        ([backed("a", "2025-01-01T00:00:00Z")], "deviceclass.resource.kubernetes.io/a", "a"),
        ([backed("a", "2025-01-01T00:00:00Z")], "deviceclass.resource.kubernetes.io/b", None),
    ],
)
def test_the_class_of_an_extended_resource(classes, resource, want):
    assert extended.class_of(resource, {item["metadata"]["name"]: item for item in classes}) == want


def test_the_special_claim_has_a_request_per_container_and_resource():
    meta = {"name": "p", "namespace": "n", "uid": "u"}
    containers = [
        container("x", **{"b.com_g": "1", "a.com_g": "2"}),
        container("y"),
        container("z", **{"a.com_g": "1"}),
    ]
    classes = {"a": backed("a", "", "a.com/g"), "b": backed("b", "", "b.com/g")}
    made = extended.special_claim(
        {"metadata": meta, "spec": {"containers": containers}}, ["a.com/g", "b.com/g"], classes
    )
    requests = [
        (item["name"], item["exactly"]["deviceClassName"], item["exactly"]["count"])
        for item in made.claim["spec"]["devices"]["requests"]
    ]
    assert requests == [
        ("container-0-request-0", "a", 2),
        ("container-0-request-1", "b", 1),
        ("container-2-request-0", "a", 1),
    ]
    assert [(item["containerName"], item["resourceName"]) for item in made.mappings] == [
        ("x", "a.com/g"),
        ("x", "b.com/g"),
        ("z", "a.com/g"),
    ]
