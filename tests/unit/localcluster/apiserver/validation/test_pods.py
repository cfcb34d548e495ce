from __future__ import annotations

import pytest

from driver.localcluster.apiserver import StatusError
from driver.localcluster.apiserver.objects import clone
from tests.unit.localcluster.apiserver.conftest import pod, template

GPU = "nvidia.com/gpu"


def refused(store, plural, obj):
    with pytest.raises(StatusError) as caught:
        store.create(plural, obj, "default")
    assert caught.value.code == 422
    return caught.value.message


def container(**more):
    return {"containers": [{"name": "c", "image": "x", **more}]}


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"containers": []}, "spec.containers: Required value"),
        ({"containers": [{"name": "c"}]}, "spec.containers[0].image: Required value"),
        ({"containers": [{"image": "x"}]}, "spec.containers[0].name: Required value"),
        ({"containers": [{"name": "C", "image": "x"}]}, "spec.containers[0].name: Invalid value"),
        ({"containers": [{"name": "c", "image": "x"}] * 2}, 'spec.containers[1].name: Duplicate value: "c"'),
        ({"activeDeadlineSeconds": 0}, "Invalid value: 0: must be between 1 and 2147483647, inclusive"),
        (container(lifecycle={"preStop": {}}), "lifecycle.preStop: Required value: must specify a handler type"),
        (container(lifecycle={"postStart": {"exec": {}}}), "lifecycle.postStart.exec.command: Required value"),
        (
            container(lifecycle={"preStop": {"sleep": {"seconds": 1}, "exec": {"command": ["x"]}}}),
            "preStop.exec: Forbidden: may not specify more than 1 handler type",
        ),
        ({"restartPolicy": "Sometimes"}, 'Unsupported value: "Sometimes"'),
        (container(resources={"claims": [{"name": "g"}]}), 'claims[0]: Not found: "g"'),
        (container(resources={"claims": [{}]}), "claims[0].name: Required value"),
        (
            container(resources={"requests": {GPU: 1}}),
            f"resources.limits[{GPU}]: Required value: Limit must be set for non overcommitable resources",
        ),
        (
            container(resources={"requests": {GPU: 1}, "limits": {GPU: 2}}),
            f'resources.requests[{GPU}]: Invalid value: "1": must be equal to {GPU} limit of 2',
        ),
        (container(resources={"limits": {GPU: "500m"}}), f'limits[{GPU}]: Invalid value: "500m": must be an integer'),
        (container(resources={"limits": {GPU: "-1"}}), "must be greater than or equal to 0"),
        (container(resources={"requests": {"cpu": 2}, "limits": {"cpu": 1}}), "less than or equal to cpu limit of 1"),
        (container(volumeMounts=[{"name": "v", "mountPath": "/v"}]), 'volumeMounts[0].name: Not found: "v"'),
        ({"volumes": [{"name": "v"}], **container(volumeMounts=[{"name": "v"}])}, "mountPath: Required value"),
        ({"resourceClaims": [{"name": "g"}]}, "must specify one of"),
        (
            {"resourceClaims": [{"name": "g", "resourceClaimName": "a", "resourceClaimTemplateName": "b"}]},
            "at most one of",
        ),
        ({"resourceClaims": [{"name": "g", "resourceClaimName": "A"}]}, "resourceClaimName: Invalid value"),
        ({"resourceClaims": [{"name": "g", "resourceClaimName": "a"}] * 2}, "Duplicate value"),
    ],
)
def test_a_pod_that_is_not_valid(store, spec, message):
    assert message in refused(store, "pods", pod(**spec))


def test_the_spec_of_a_pod_hardly_changes(store):
    made = clone(store.create("pods", pod(), "default"))
    made["spec"]["containers"][0]["image"] = "other"
    made["spec"]["tolerations"] = [{"operator": "Exists"}]
    changed = clone(store.update("pods", made))
    changed["spec"]["nodeName"] = "n1"
    with pytest.raises(StatusError, match="pod updates may not change fields other than"):
        store.update("pods", changed)


@pytest.mark.parametrize(
    ("plural", "spec", "message"),
    [
        ("deployments", {"template": template(a="b")}, "spec.selector: Required value"),
        ("jobs", {}, "spec.template.spec.containers: Required value"),
        (
            "replicasets",
            {"selector": {"matchLabels": {"a": "c"}}, "template": template(a="b")},
            "`selector` does not match template `labels`",
        ),
    ],
)
def test_a_workload_that_is_not_valid(store, plural, spec, message):
    assert message in refused(store, plural, {"metadata": {"name": "x"}, "spec": spec})


def test_the_selector_of_a_workload_stays(store):
    spec = {"selector": {"matchLabels": {"a": "b"}}, "template": template(a="b", c="d")}
    made = clone(store.create("deployments", {"metadata": {"name": "x"}, "spec": spec}, "default"))
    made["spec"]["selector"]["matchLabels"] = {"c": "d"}
    with pytest.raises(StatusError, match=r"spec.selector: .*field is immutable"):
        store.update("deployments", made)


@pytest.mark.parametrize(
    ("meta", "message"),
    [
        ({"name": "A_b"}, "metadata.name: Invalid value"),
        ({"name": "a" * 254}, "must be no more than 253 characters"),
        ({"labels": {"a b": "c"}}, "metadata.labels: Invalid value"),
        ({"labels": {"a": "b c"}}, "metadata.labels: Invalid value"),
        ({"labels": {"/a": "b"}}, "prefix part must be non-empty"),
        ({"labels": {"A_/a": "b"}}, "prefix part a lowercase RFC 1123 subdomain"),
        ({"labels": {"a/": "b"}}, "name part must be non-empty"),
        ({"labels": {"a" * 64: "b"}}, "name part must be no more than 63 characters"),
        ({"labels": {"a": "b" * 64}}, "must be no more than 63 characters"),
        ({"annotations": {"a b": "c"}}, "metadata.annotations: Invalid value"),
        ({"annotations": {"a": "b" * (257 << 10)}}, "metadata.annotations: Too long"),
        ({"finalizers": ["a b"]}, "metadata.finalizers: Invalid value"),
        ({"ownerReferences": [{"kind": "Node"}]}, "metadata.ownerReferences[0].uid: Invalid value"),
        (
            {
                "ownerReferences": [
                    {"apiVersion": "v1", "kind": "Node", "name": "n", "uid": uid, "controller": True} for uid in "ab"
                ]
            },
            "Only one reference can have Controller set to true",
        ),
    ],
)
def test_metadata_that_is_not_valid(store, meta, message):
    assert message in refused(store, "configmaps", {"metadata": {"name": "x", **meta}})


def test_names_of_roles_may_have_colons(store):
    assert store.create("clusterroles", {"metadata": {"name": "system:node"}})
    with pytest.raises(StatusError, match="may not be"):
        store.create("clusterroles", {"metadata": {"name": "a/b"}})


def test_a_namespace_is_a_label(store):
    with pytest.raises(StatusError, match="a lowercase RFC 1123 label"):
        store.create("namespaces", {"metadata": {"name": "a.b"}})


def test_the_service_account_of_a_pod_must_be_there(store):
    with pytest.raises(StatusError, match='serviceaccount "nobody" not found') as caught:
        store.create("pods", pod(serviceAccountName="nobody"), "default")
    assert caught.value.code == 403
