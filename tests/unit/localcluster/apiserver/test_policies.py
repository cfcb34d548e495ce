"""ValidatingAdmissionPolicies, evaluated for writes over HTTP."""

from __future__ import annotations

from typing import Any

import pytest

from driver.localcluster.apiserver import StatusError
from tests.unit.localcluster.apiserver.conftest import CLAIMS, CONFIGMAPS, SLICES, a_slice, claim

RULE = {"apiGroups": ["*"], "apiVersions": ["*"], "operations": ["*"], "resources": ["configmaps"]}
NO_X = {"expression": "!('x' in object.?data.orValue({}))", "message": "no x"}


@pytest.fixture
def policy(server):
    """Store a policy and its binding; parts of the policy's and the binding's spec may be given."""

    def make(*, name: str = "p", binding: dict[str, Any] | None = None, **spec: Any) -> None:
        full = {"matchConstraints": {"resourceRules": [RULE]}, "validations": [NO_X], **spec}
        server.store.create("validatingadmissionpolicies", {"metadata": {"name": name}, "spec": full})
        bound = {"policyName": name, "validationActions": ["Deny"], **(binding or {})}
        server.store.create("validatingadmissionpolicybindings", {"metadata": {"name": name}, "spec": bound})

    return make


def config(name: str = "c", **data: str) -> dict[str, Any]:
    return {"metadata": {"name": name}, "data": data}


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (
            {"failurePolicy": "Ignore", "paramKind": {"apiVersion": "v1", "kind": "ConfigMap"}},
            "spec.paramKind: Forbidden: the embedded cluster has no policies with parameters",
        ),
        ({"matchConstraints": {}}, "spec.matchConstraints.resourceRules: Required value"),
        ({"validations": []}, "spec.validations: Required value"),
        ({"failurePolicy": "Maybe"}, 'spec.failurePolicy: Unsupported value: "Maybe"'),
        ({"validations": [{"expression": " "}]}, "spec.validations[0].expression: Required value"),
        ({"validations": [{"expression": "object =="}]}, "spec.validations[0].expression: Invalid value: "),
        ({"validations": [{"expression": "object =="}]}, "compilation failed: ERROR: <input>:1:10: Syntax error"),
        ({"validations": [{"expression": "params.x"}]}, "undeclared reference to 'params.x'"),
        ({"validations": [{"expression": "1 + 1"}]}, 'Invalid value: "1 + 1": must evaluate to bool'),
        ({"validations": [{**NO_X, "messageExpression": "1"}]}, "messageExpression: Invalid value: "),
        ({"variables": [{"name": "a", "expression": "b"}]}, "spec.variables[0].expression: Invalid value: "),
        (
            {"matchConditions": [{"name": "a", "expression": "''"}]},
            "spec.matchConditions[0].expression: Invalid value: ",
        ),
    ],
)
async def test_a_policy_that_cannot_be_evaluated_is_refused(policy, spec, message):
    with pytest.raises(StatusError) as caught:
        policy(**spec)
    assert caught.value.code == 422
    assert message in caught.value.message


@pytest.mark.parametrize(
    ("binding", "message"),
    [
        ({"policyName": ""}, "spec.policyName: Required value"),
        ({"paramRef": {"name": "c"}}, "spec.paramRef: Forbidden"),
        ({"validationActions": []}, "spec.validationActions: Required value"),
        ({"validationActions": ["Bark"]}, 'spec.validationActions[0]: Unsupported value: "Bark"'),
        ({"validationActions": ["Deny", "Warn"]}, "must not contain both Deny and Warn"),
    ],
)
async def test_a_binding_that_is_not_valid(policy, binding, message):
    with pytest.raises(StatusError) as caught:
        policy(binding=binding)
    assert message in caught.value.message


async def test_a_refusal_reads_as_a_real_one(client, policy):
    policy()
    found = await client.ask("POST", CONFIGMAPS, config(x="1"))
    text = """configmaps "c" is forbidden: ValidatingAdmissionPolicy 'p' with binding 'p' denied request: no x"""
    assert (found.status, found.body["reason"], found.body["message"]) == (422, "Invalid", text)
    assert (await client.ask("POST", CONFIGMAPS, config(y="1"))).status == 201


async def test_it_holds_for_every_verb_that_writes(client, policy, server):
    policy(validations=[{"expression": "oldObject == null", "message": "for ever", "reason": "Forbidden"}])
    assert (await client.ask("POST", CONFIGMAPS, config())).status == 201
    one = f"{CONFIGMAPS}/c"
    apply = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": {"a": "b"}}
    answers = [
        await client.ask("PUT", one, config(a="b")),
        await client.patch(one, {"data": {"a": "b"}}),
        await client.patch(f"{one}?fieldManager=m", apply, "apply-patch+yaml"),
        await client.ask("DELETE", one),
        await client.ask("DELETE", CONFIGMAPS),
        await client.ask("DELETE", f"{one}?dryRun=All"),
    ]
    assert [answer.status for answer in answers] == [403] * 6
    assert "data" not in server.store.get("configmaps", "c", "default")
    assert (
        await client.patch(f"{CONFIGMAPS}/d?fieldManager=m", {**apply, "metadata": {"name": "d"}}, "apply-patch+yaml")
    ).status == 201


async def test_the_objects_are_in_the_version_that_the_client_speaks(client, policy):
    rule = {**RULE, "resources": ["resourceslices"]}
    names = "object.spec.devices.map(d, has(d.basic) ? 'basic' : 'plain').join()"
    validation = {"expression": "false", "messageExpression": f"{names} + ' ' + request.kind.version"}
    policy(matchConstraints={"resourceRules": [rule]}, validations=[validation])
    found = await client.ask("POST", SLICES, a_slice())
    assert found.body["message"].endswith("denied request: plain v1")
    old = a_slice(devices=[{"name": "gpu-0", "basic": {}}])
    found = await client.ask("POST", SLICES.replace("v1", "v1beta1"), old)
    assert found.body["message"].endswith("denied request: basic v1beta1")


async def test_an_equivalent_version_is_shown_as_the_rule_wants_it(client, policy):
    rule = {**RULE, "apiVersions": ["v1"], "resources": ["resourceclaims"]}
    validation = {"expression": "false", "messageExpression": "object.apiVersion"}
    policy(matchConstraints={"resourceRules": [rule]}, validations=[validation])
    beta = CLAIMS.replace("v1", "v1beta2")
    assert "denied request: resource.k8s.io/v1" in (await client.ask("POST", beta, claim())).body["message"]


async def test_exact_leaves_other_versions_alone(client, policy):
    rule = {**RULE, "apiVersions": ["v1"], "resources": ["resourceclaims"]}
    policy(matchConstraints={"matchPolicy": "Exact", "resourceRules": [rule]}, validations=[{"expression": "false"}])
    assert (await client.ask("POST", CLAIMS.replace("v1", "v1beta2"), claim())).status == 201
    assert (await client.ask("POST", CLAIMS, claim("d"))).status == 422


@pytest.mark.parametrize(
    ("spec", "binding"),
    [
        ({}, {"policyName": "other"}),
        ({}, {"validationActions": ["Audit"]}),
        ({}, {"matchResources": {"namespaceSelector": {"matchLabels": {"a": "b"}}}}),
        ({"matchConditions": [{"name": "c", "expression": "request.userInfo.username != 'admin'"}]}, {}),
        ({"matchConstraints": {"resourceRules": [{**RULE, "operations": ["UPDATE"]}]}}, {}),
        ({"matchConstraints": {"resourceRules": [{**RULE, "apiGroups": ["apps"]}]}}, {}),
        ({"matchConstraints": {"resourceRules": [{**RULE, "resources": ["secrets", "configmaps/status"]}]}}, {}),
        ({"matchConstraints": {"resourceRules": [{**RULE, "resourceNames": ["d"]}]}}, {}),
        ({"matchConstraints": {"resourceRules": [{**RULE, "scope": "Cluster"}]}}, {}),
        ({"matchConstraints": {"resourceRules": [RULE], "excludeResourceRules": [RULE]}}, {}),
        (
            {
                "matchConstraints": {
                    "resourceRules": [RULE],
                    "objectSelector": {"matchExpressions": [{"key": "a", "operator": "Exists"}]},
                }
            },
            {},
        ),
        ({"failurePolicy": "Ignore", "validations": [{"expression": "object.none == 1"}]}, {}),
    ],
)
async def test_who_is_not_concerned_passes(client, policy, spec, binding):
    policy(binding=binding, **spec)
    assert (await client.ask("POST", CONFIGMAPS, config(x="1"))).status == 201


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"validations": [{"expression": "object.none == 1"}]}, "resulted in error: "),
        ({"validations": [{"expression": "object.metadata.name"}]}, "failed expression: object.metadata.name"),
        ({"validations": [{"expression": "false", "messageExpression": "object.none"}]}, "failed expression: false"),
        (
            {"validations": [{"expression": "variables.a"}], "variables": [{"name": "a", "expression": "object.b"}]},
            "resulted in error: ",
        ),
        ({"matchConditions": [{"name": "c", "expression": "object.none"}]}, "matchCondition 'c' resulted in error: "),
    ],
)  # fmt: skip
async def test_an_expression_without_a_value_refuses(client, policy, spec, message):
    policy(**spec)
    found = await client.ask("POST", CONFIGMAPS, config(x="1"))
    assert found.status == 422
    assert message in found.body["message"]


async def test_a_condition_that_does_not_hold_outweighs_one_without_a_value(client, policy):
    policy(matchConditions=[{"name": "a", "expression": "object.none"}, {"name": "b", "expression": "false"}])
    assert (await client.ask("POST", CONFIGMAPS, config(x="1"))).status == 201


async def test_a_warning_lets_the_write_pass(client, policy):
    policy(binding={"validationActions": ["Warn"]})
    found = await client.ask("POST", CONFIGMAPS, config(x="1"))
    assert found.status == 201
    assert "Validation failed for ValidatingAdmissionPolicy 'p' with binding 'p': no x" in found.headers["Warning"]


async def test_selectors_look_at_the_namespace_and_at_both_objects(client, policy, server):
    server.store.patch("namespaces", "default", {"metadata": {"labels": {"a": "b"}}})
    selectors = {
        "namespaceSelector": {"matchLabels": {"a": "b"}},
        "objectSelector": {"matchExpressions": [{"key": "l", "operator": "In", "values": ["1", "2"]}]},
    }
    policy(matchConstraints={"resourceRules": [RULE], **selectors})
    labelled = {"metadata": {"name": "c", "labels": {"l": "1"}}, "data": {}}
    assert (await client.ask("POST", CONFIGMAPS, labelled)).status == 201
    assert (await client.ask("PUT", f"{CONFIGMAPS}/c", config(x="1"))).status == 422
    assert (await client.ask("POST", CONFIGMAPS, config("d", x="1"))).status == 201


async def test_subresources_are_asked_for_by_name(client, policy):
    rule = {**RULE, "resources": ["resourceclaims/status"]}
    policy(matchConstraints={"resourceRules": [rule]}, validations=[{"expression": "false", "message": "no"}])
    assert (await client.ask("POST", CLAIMS, claim())).status == 201
    assert (await client.patch(f"{CLAIMS}/c/status", {"status": {"devices": []}})).status == 422


async def test_the_clusters_own_parts_are_not_asked(policy, server):
    policy(validations=[{"expression": "false"}])
    assert server.store.create("configmaps", config(), "default")
