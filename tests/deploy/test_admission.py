"""The admission policy, evaluated as the API server does, for slices in every version of the API (P5)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.deploy import policies
from tests.deploy.manifests import BUILDS, build, one
from tests.deploy.policies import AGENT

NAME = "gpu-dra-resourceslices"
SLICES, CLAIMS = "gpu-dra-resourceslices", "gpu-dra-claim-status"
VERSIONS = ("v1", "v1beta2", "v1beta1")


def refusals(operation: str, *, user=AGENT, node="node-1", new=None, old=None) -> list[str]:
    spec = one(build("base"), "ValidatingAdmissionPolicy", NAME)["spec"]
    return policies.refusals(spec, operation, user=user, node=node, new=new, old=old)


def slice_of(version: str, node: str | None = "node-1", driver: str = "gpu.nvidia.com") -> dict[str, Any]:
    device = {"attributes": {"type": {"string": "gpu"}}}
    spec: dict[str, Any] = {
        "driver": driver,
        "pool": {"name": node or "p", "generation": 1, "resourceSliceCount": 1},
        "devices": [{"name": "gpu-0", "basic": device} if version == "v1beta1" else {"name": "gpu-0", **device}],
    }
    if node is None:
        spec["allNodes"] = True
    else:
        spec["nodeName"] = node
    return {
        "apiVersion": f"resource.k8s.io/{version}",
        "kind": "ResourceSlice",
        "metadata": {"name": "s"},
        "spec": spec,
    }


@pytest.mark.parametrize("version", VERSIONS)
def test_an_agent_writes_the_slices_of_its_own_node(version):
    own = slice_of(version)
    assert refusals("CREATE", new=own) == []
    assert refusals("UPDATE", new=own, old=own) == []
    assert refusals("DELETE", old=own) == []


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("node", ["node-2", "node-10", "", None])
def test_P5_and_of_no_other_in_any_version(version, node):
    own, foreign = slice_of(version), slice_of(version, node)
    message = "the agent on node node-1 may write only the ResourceSlices of that node"
    assert refusals("CREATE", new=foreign) == [message]
    assert refusals("UPDATE", new=foreign, old=foreign) == [message]
    assert refusals("UPDATE", new=own, old=foreign) == [message]
    assert refusals("UPDATE", new=foreign, old=own) == [message]
    assert refusals("DELETE", old=foreign) == [message]


@pytest.mark.parametrize("version", VERSIONS)
def test_nor_of_another_driver(version):
    foreign = slice_of(version, driver="nic.example.com")
    message = "the agent may write only the ResourceSlices of the driver gpu.nvidia.com"
    assert refusals("CREATE", new=foreign) == [message]
    assert refusals("DELETE", old=foreign) == [message]


@pytest.mark.parametrize("operation", ["CREATE", "UPDATE", "DELETE"])
def test_a_token_that_names_no_node_may_write_nothing(operation):
    objects = {"new": None if operation == "DELETE" else slice_of("v1"), "old": slice_of("v1")}
    found = refusals(operation, node=None, **objects)
    assert found[0].startswith("the service account's token names no node")
    assert refusals(operation, node="", **objects)


@pytest.mark.parametrize(
    "user", ["system:admin", "system:node:node-1", "system:serviceaccount:gpu-dra:other", "x:gpu-dra", "gpu-dra"]
)
def test_others_are_not_concerned(user):
    # The kubelet deletes slices of its node, an administrator any.
    assert refusals("DELETE", user=user, node=None, old=slice_of("v1", "node-2")) == []


def test_the_agent_is_concerned_in_whatever_namespace():
    user = "system:serviceaccount:elsewhere:gpu-dra"
    assert refusals("DELETE", user=user, old=slice_of("v1", "node-2")) != []


@pytest.mark.parametrize("name", BUILDS)
def test_the_policy_is_about_the_account_that_the_agent_runs_as(name):
    account = one(build(name), "ServiceAccount")["metadata"]
    user = f"system:serviceaccount:{account['namespace']}:{account['name']}"
    assert refusals("CREATE", user=user, new=slice_of("v1", "node-2")) != []


@pytest.mark.parametrize("name", BUILDS)
@pytest.mark.parametrize(
    ("policy", "operations", "resource"),
    [(SLICES, ["CREATE", "UPDATE", "DELETE"], "resourceslices"), (CLAIMS, ["UPDATE"], "resourceclaims/status")],
)
def test_P5_the_policies_are_bound_and_cover_every_version(name, policy, operations, resource):
    spec = one(build(name), "ValidatingAdmissionPolicy", policy)["spec"]
    assert spec["failurePolicy"] == "Fail"
    assert spec["matchConstraints"] == {
        "matchPolicy": "Equivalent",
        "resourceRules": [
            {
                "apiGroups": ["resource.k8s.io"],
                "apiVersions": ["*"],
                "operations": operations,
                "resources": [resource],
            }
        ],
    }
    binding = one(build(name), "ValidatingAdmissionPolicyBinding", policy)
    assert binding["spec"] == {"policyName": policy, "validationActions": ["Deny"]}


# --- claims' status ---------------------------------------------------------------------------------------------------


def claim_of(node: str = "node-1", *, device: str = "gpu-0", users=(), devices=(), allocated=True) -> dict[str, Any]:
    status: dict[str, Any] = {}
    if allocated:
        result = {"request": "r", "driver": "gpu.nvidia.com", "pool": node, "device": device}
        field = {"key": "metadata.name", "operator": "In", "values": [node]}
        status["allocation"] = {
            "devices": {"results": [result]},
            "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [field]}]},
        }
    if users:
        status["reservedFor"] = [{"resource": "pods", "name": user, "uid": user} for user in users]
    if devices:
        status["devices"] = [{"driver": driver, "pool": node, "device": "gpu-0"} for driver in devices]
    return {"kind": "ResourceClaim", "metadata": {"name": "c", "namespace": "n"}, "status": status}


def status_refusals(new: dict[str, Any], old: dict[str, Any], **caller: Any) -> list[str]:
    return refusals("UPDATE", new=new, old=old, name=CLAIMS, **caller)


def test_an_agent_says_what_its_devices_are():
    old = claim_of(users=["pod-1"], devices=["nic.example.com"])
    new = claim_of(users=["pod-1"], devices=["gpu.nvidia.com", "nic.example.com"])
    assert status_refusals(new, old) == []
    assert status_refusals(old, new) == []


@pytest.mark.parametrize(
    "new",
    [
        claim_of(device="gpu-1", users=["pod-1"]),
        claim_of(allocated=False),
        claim_of(users=["pod-1", "pod-2"]),
        claim_of(),
    ],
    ids=["another device", "no allocation", "another user", "no user"],
)
def test_it_changes_no_allocation_and_no_reservation(new):
    assert status_refusals(new, claim_of(users=["pod-1"])) == ["the agent may change only status.devices of a claim"]


def test_it_speaks_for_no_other_driver():
    old, new = claim_of(), claim_of(devices=["nic.example.com"])
    message = "the agent may change only the device status of the driver gpu.nvidia.com"
    assert status_refusals(new, old) == [message]
    assert status_refusals(old, new) == [message]


@pytest.mark.parametrize("node", ["node-2", "node-10", "", None])
def test_it_speaks_of_claims_on_its_own_node_only(node):
    claim = claim_of(devices=["gpu.nvidia.com"])
    assert status_refusals(claim, claim_of(), node=node) == [
        f"the agent on node {node or ''} may write only to claims that are allocated there"
    ]


def test_the_scheduler_is_not_concerned():
    user = "system:kube-scheduler"
    assert status_refusals(claim_of(), claim_of(allocated=False), user=user, node=None) == []
