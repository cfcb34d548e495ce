"""The admission policy, evaluated as the API server does, for slices in every version of the API (P5)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.deploy import policies
from tests.deploy.manifests import BUILDS, build, one
from tests.deploy.policies import AGENT

NAME = "gpu-dra-resourceslices"
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
def test_P5_the_policy_is_bound_and_covers_every_version_and_deletion(name):
    spec = one(build(name), "ValidatingAdmissionPolicy", NAME)["spec"]
    assert spec["failurePolicy"] == "Fail"
    assert spec["matchConstraints"] == {
        "matchPolicy": "Equivalent",
        "resourceRules": [
            {
                "apiGroups": ["resource.k8s.io"],
                "apiVersions": ["*"],
                "operations": ["CREATE", "UPDATE", "DELETE"],
                "resources": ["resourceslices"],
            }
        ],
    }
    binding = one(build(name), "ValidatingAdmissionPolicyBinding", NAME)
    assert binding["spec"] == {"policyName": NAME, "validationActions": ["Deny"]}
