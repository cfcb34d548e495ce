"""What the agent may write of Nodes: the labels of its own one."""

from __future__ import annotations

import copy

import pytest

from driver.labels import TIMESTAMP, LabelOptions, labels
from driver.labels.vgpu import HostDriver
from tests.deploy import policies
from tests.deploy.manifests import BUILDS, build, one
from tests.deploy.policies import AGENT
from tests.unit.labels.helpers import options, plugins, sharing
from tests.unit.slices.helpers import snapshot

NAME = "gpu-dra-nodes"


def refusals(old, new, *, user=AGENT, node="node-1", operation="UPDATE", **request):
    spec = one(build("base"), "ValidatingAdmissionPolicy", NAME)["spec"]
    about = {"name": "node-1", **request}
    return policies.refusals(spec, operation, user=user, node=node, new=new, old=old, **about)


def node(**labels):
    metadata = {"name": "node-1", "labels": {"kubernetes.io/hostname": "node-1", **labels}}
    return {"metadata": metadata, "spec": {"taints": [{"key": "a", "effect": "NoSchedule"}]}}


def labelled(**changes):
    """A Node with some labels of others changed; None removes one."""
    found = node()
    found["metadata"]["labels"].update(changes)
    found["metadata"]["labels"] = {key: value for key, value in found["metadata"]["labels"].items() if value}
    return found


@pytest.mark.parametrize(
    "found",
    [
        labels(snapshot("h100:8,l4"), options()),
        labels(plugins("h100@mig=1g.10gb*2"), options("single", sharing(gpu=2))),
        labels(plugins("h100@mig=1g.10gb+me+2g.20gb,h100"), options("mixed")),
        labels(snapshot("gb200:4"), options()),
        labels(snapshot("l4"), LabelOptions(host_driver=HostDriver("550.90.05", "r550_00"))),
        {TIMESTAMP: "1700000000"},
    ],
)
def test_all_labels_may_be_set_and_removed(found):
    assert found
    assert refusals(node(), node(**found)) == []
    assert refusals(node(**found), node()) == []


@pytest.mark.parametrize(
    "key",
    [
        "kubernetes.io/hostname",
        "node-role.kubernetes.io/control-plane",
        "team",
        "nvidia.com/mig.config",
        "nvidia.com/device-plugin.config",
        "nvidia.com/gpu.present",
        "nvidia.com/gpu.deploy.driver",
        "nvidia.com/gpu.productx",
        "xnvidia.com/gpu.product",
        "nvidia.com/gpu.product/x",
    ],
)
def test_P5_no_label_of_others(key):
    message = f"the agent may write only the labels of feature discovery, not {key}"
    assert refusals(node(), node(**{key: "x"})) == [message]
    assert refusals(node(**{key: "x"}), node(**{key: "y"})) == [message]
    assert refusals(node(**{key: "x"}), labelled(**{key: None})) == [message]


def test_P5_no_other_node():
    new = node(**{"nvidia.com/gpu.count": "8"})
    assert refusals(node(), new, node="node-2") == ["the agent on node node-2 may label only that node"]
    for nobody in (None, ""):
        assert refusals(node(), new, node=nobody) == ["the token of the service account names no node"]


@pytest.mark.parametrize(
    "change",
    [
        lambda item: item["spec"].update(unschedulable=True),
        lambda item: item["spec"].pop("taints"),
        lambda item: item["metadata"].update(annotations={"a": "b"}),
        lambda item: item["metadata"].update(finalizers=["a/b"]),
        lambda item: item["metadata"].update(ownerReferences=[{"name": "x"}]),
    ],
)
def test_P5_nothing_but_labels(change):
    old, new = node(), copy.deepcopy(node())
    change(new)
    assert refusals(old, new) == ["the agent may change nothing of its node but labels"]


@pytest.mark.parametrize(("operation", "more"), [("CREATE", {}), ("DELETE", {}), ("UPDATE", {"subResource": "status"})])
def test_P5_no_other_write(operation, more):
    old = None if operation == "CREATE" else node()
    new = None if operation == "DELETE" else node()
    assert "the agent may only label its node" in refusals(old, new, operation=operation, **more)


@pytest.mark.parametrize("user", ["system:node:node-1", "system:admin", "system:serviceaccount:gpu-dra:other"])
def test_others_are_not_concerned(user):
    assert refusals(node(), node(team="x"), user=user, node=None) == []


def test_a_node_without_labels():
    bare = {"metadata": {"name": "node-1"}, "spec": {}}
    assert refusals(bare, {**bare, "metadata": {"name": "node-1", "labels": {"nvidia.com/gpu.count": "1"}}}) == []


@pytest.mark.parametrize("name", BUILDS)
def test_the_policy_is_bound(name):
    spec = one(build(name), "ValidatingAdmissionPolicy", NAME)["spec"]
    assert spec["failurePolicy"] == "Fail"
    (rule,) = spec["matchConstraints"]["resourceRules"]
    assert rule["resources"] == ["nodes", "nodes/status"]
    binding = one(build(name), "ValidatingAdmissionPolicyBinding", NAME)
    assert binding["spec"] == {"policyName": NAME, "validationActions": ["Deny"]}
