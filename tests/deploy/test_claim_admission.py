"""What the agent may write of claims: the device status of its own driver, on its own node."""

from __future__ import annotations

from typing import Any

import pytest

from tests.deploy import policies
from tests.deploy.manifests import BUILDS, build, one

NAME = "gpu-dra-claim-status"


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
    spec = one(build("base"), "ValidatingAdmissionPolicy", NAME)["spec"]
    return policies.refusals(spec, "UPDATE", new=new, old=old, **caller)


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


@pytest.mark.parametrize("name", BUILDS)
def test_P5_the_policy_is_bound_and_covers_every_version(name):
    spec = one(build(name), "ValidatingAdmissionPolicy", NAME)["spec"]
    assert spec["failurePolicy"] == "Fail"
    (rule,) = spec["matchConstraints"]["resourceRules"]
    assert (rule["apiVersions"], rule["operations"]) == (["*"], ["UPDATE"])
    assert rule["resources"] == ["resourceclaims/status"]
    binding = one(build(name), "ValidatingAdmissionPolicyBinding", NAME)
    assert binding["spec"] == {"policyName": NAME, "validationActions": ["Deny"]}
