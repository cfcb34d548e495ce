from __future__ import annotations

import pytest

from tests.deploy.manifests import BUILDS, build, one
from tests.deploy.rbac import Call, missing, permitted, unused

# The calls of the code, each with the place that makes it.
CALLS = {
    Call("get", "resource.k8s.io", "resourceclaims"),  # kube.resources: claim
    Call("patch", "resource.k8s.io", "resourceclaims", "status"),  # kube.resources: apply_claim_devices
    Call("associated-node:patch", "resource.k8s.io", "resourceclaims", "driver", "gpu.nvidia.com"),  # as above
    Call("list", "resource.k8s.io", "resourceslices"),  # slices.mirror
    Call("watch", "resource.k8s.io", "resourceslices"),  # slices.mirror
    Call("create", "resource.k8s.io", "resourceslices"),  # slices.publish
    Call("update", "resource.k8s.io", "resourceslices"),  # slices.publish
    Call("delete", "resource.k8s.io", "resourceslices"),  # slices.publish
    Call("get", "", "nodes"),  # slices.publish: owner; agent: container runtime; plugin_config: the config's label
    Call("watch", "", "nodes"),  # plugin_config: the label nvidia.com/device-plugin.config; kube.node_labels
    Call("patch", "", "nodes"),  # kube.node_labels
    Call("list", "resource.k8s.io", "deviceclasses"),  # kube.device_classes
    Call("watch", "resource.k8s.io", "deviceclasses"),  # kube.device_classes
    Call("create", "", "events"),  # kube.events
    Call("patch", "", "events"),  # kube.events: the count of repeats
}


@pytest.mark.parametrize("name", BUILDS)
def test_P4_the_role_permits_exactly_what_is_called(name):
    rules = one(build(name), "ClusterRole")["rules"]
    assert missing(rules, CALLS) == set()
    assert unused(rules, CALLS) == set()


@pytest.mark.parametrize("name", BUILDS)
def test_the_role_is_bound_to_the_agents_account(name):
    objects = build(name)
    binding = one(objects, "ClusterRoleBinding")
    account = one(objects, "ServiceAccount")["metadata"]
    assert binding["roleRef"] == {
        "apiGroup": "rbac.authorization.k8s.io",
        "kind": "ClusterRole",
        "name": one(objects, "ClusterRole")["metadata"]["name"],
    }
    assert binding["subjects"] == [
        {"kind": "ServiceAccount", "name": account["name"], "namespace": account["namespace"]}
    ]


def test_the_comparison_tells_both_ways():
    rules = [{"apiGroups": ["", "apps"], "resources": ["pods", "pods/status"], "verbs": ["get"]}]
    assert len(permitted(rules)) == 4
    assert missing(rules, {Call("get", "", "pods"), Call("list", "", "pods")}) == {Call("list", "", "pods")}
    assert Call("get", "", "pods", "status") in unused(rules, {Call("get", "", "pods")})


@pytest.mark.parametrize(
    "rule",
    [
        {"apiGroups": ["*"], "resources": ["pods"], "verbs": ["get"]},
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["*"]},
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["get"], "resourceNames": []},
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["get"], "nonResourceURLs": ["/metrics"]},
    ],
)
def test_a_rule_that_can_not_be_compared_fails(rule):
    with pytest.raises(AssertionError):
        permitted([rule])
