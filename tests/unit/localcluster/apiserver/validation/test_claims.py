from __future__ import annotations

import pytest

from driver.localcluster.apiserver import StatusError, Store
from driver.localcluster.apiserver.objects import clone
from tests.unit.localcluster.apiserver.conftest import claim


def devices(**more):
    return {"requests": [{"name": "r", "exactly": {"deviceClassName": "c"}}], **more}


def refused(store, plural, obj, namespace="default"):
    with pytest.raises(StatusError) as caught:
        store.create(plural, obj, namespace)
    assert caught.value.code == 422
    return caught.value.message


def exactly(**more):
    return {"requests": [{"name": "r", "exactly": {"deviceClassName": "c", **more}}]}


OWN = {"driver": "gpu.nvidia.com", "pool": "n1", "device": "gpu-0"}
OPAQUE = {"driver": "gpu.nvidia.com", "parameters": {"a": 1}}
BAD = [
    ({"requests": [{"name": "r"}]}, "spec.devices.requests[0]: Required value: exactly one of `exactly`"),
    ({"requests": [{"name": "", "exactly": {"deviceClassName": "c"}}]}, "requests[0].name: Required value"),
    ({"requests": [{"name": "R", "exactly": {"deviceClassName": "c"}}]}, "requests[0].name: Invalid value"),
    ({"requests": [*devices()["requests"]] * 2}, "spec.devices.requests[1]: Duplicate value"),
    ({"requests": [{"name": f"r{at}", "exactly": {"deviceClassName": "c"}} for at in range(33)]}, "Too many: 33"),
    ({"requests": [{"name": "r", "exactly": {}, "firstAvailable": [{"name": "a"}]}]}, "multiple fields are set"),
    (exactly(deviceClassName=""), "exactly.deviceClassName: Required value"),
    (exactly(count=-1), "exactly.count: Invalid value: -1: must be greater than zero"),
    (exactly(count=0), "exactly.count: Invalid value: 0: must be greater than zero"),
    (exactly(allocationMode="All", count=2), "must not be specified when allocationMode is 'All'"),
    (exactly(allocationMode="Some"), 'Unsupported value: "Some": supported values: "All", "ExactCount"'),
    (exactly(selectors=[{}]), "exactly.selectors[0].cel: Required value"),
    (exactly(selectors=[{"cel": {}}]), "selectors[0].cel.expression: Required value"),
    (exactly(selectors=[{"cel": {"expression": "x" * 10241}}]), "Too long: may not be more than 10240 bytes"),
    (exactly(selectors=[{"cel": {"expression": "true"}}] * 33), "selectors: Too many: 33"),
    (exactly(tolerations=[{"operator": "Exists", "value": "x"}]), "must be empty for operator `Exists`"),
    (exactly(tolerations=[{"value": "x"}]), "must not be empty for operator `Equal`"),
    (exactly(tolerations=[{"key": "a", "operator": "Like"}]), 'Unsupported value: "Like"'),
    (exactly(tolerations=[{"operator": "Exists", "effect": "Never"}]), 'Unsupported value: "Never"'),
    (exactly(capacity={"requests": {"a-b": "1"}}), "capacity.requests: Invalid value"),
    ({"requests": [{"name": "r", "firstAvailable": [{"name": "a"}]}]}, "firstAvailable[0].deviceClassName: Required"),
    (devices(constraints=[{}]), "exactly one of `matchAttribute`, `distinctAttribute` is required"),
    (devices(constraints=[{"matchAttribute": "x"}]), "must include a domain"),
    (devices(constraints=[{"matchAttribute": "e.com/x", "requests": ["z"]}]), "constraints[0].requests[0]: Invalid"),
    (devices(config=[{}]), "config[0].opaque: Required value"),
    (devices(config=[{"opaque": {"driver": "d.io"}}]), "config[0].opaque.parameters: Required value"),
    (devices(config=[{"opaque": {**OPAQUE, "parameters": 5}}]), "parameters must be a valid JSON object"),
    (devices(config=[{"opaque": {**OPAQUE, "parameters": {"a": "x" * 10300}}}]), "parameters: Too long"),
    (devices(config=[{"opaque": OPAQUE, "requests": ["r/x"]}]), "separated by '/'"),
    (devices(config=[{"opaque": OPAQUE, "requests": ["r", "r"]}]), 'requests[1]: Duplicate value: "r"'),
    (devices(config=[{"opaque": OPAQUE}] * 33), "config: Too many: 33"),
]  # fmt: skip


@pytest.mark.parametrize(("given", "message"), BAD)
def test_a_claim_that_is_not_valid(store, given, message):
    assert message in refused(store, "resourceclaims", {"metadata": {"name": "c"}, "spec": {"devices": given}})


@pytest.mark.parametrize(("given", "message"), BAD)
def test_a_template_is_held_to_the_same(store, given, message):
    template = {"metadata": {"name": "t"}, "spec": {"spec": {"devices": given}}}
    assert message.replace("spec.devices", "spec.spec.devices") in refused(store, "resourceclaimtemplates", template)


@pytest.mark.parametrize(
    "given",
    [
        {},
        devices(),
        exactly(allocationMode="All"),
        exactly(tolerations=[{"operator": "Exists"}, {"key": "e.com/k", "value": "v", "effect": "NoExecute"}]),
        {"requests": [{"name": "r", "firstAvailable": [{"name": "a", "deviceClassName": "c"}] }]},
        devices(config=[{"opaque": OPAQUE, "requests": ["r"]}, {"opaque": OPAQUE}]),
        devices(constraints=[{"matchAttribute": "gpu.nvidia.com/nvlinkDomain", "requests": ["r"]}]),
    ],
)  # fmt: skip
def test_a_claim_that_is_valid(store, given):
    assert store.create("resourceclaims", {"metadata": {"name": "c"}, "spec": {"devices": given}}, "default")


def test_a_claim_and_a_template_never_change(store):
    made = clone(store.create("resourceclaims", claim(), "default"))
    made["spec"]["devices"]["requests"][0]["exactly"]["count"] = 2
    with pytest.raises(StatusError, match=r"spec: Invalid value: .*: field is immutable"):
        store.update("resourceclaims", made)
    template = {"metadata": {"name": "t"}, "spec": {"spec": claim()["spec"]}}
    made = clone(store.create("resourceclaimtemplates", template, "default"))
    made["spec"]["spec"]["devices"]["requests"][0]["exactly"]["count"] = 2
    with pytest.raises(StatusError, match="field is immutable"):
        store.update("resourceclaimtemplates", made)


def test_cel_is_checked_by_who_knows_it():
    store = Store(cel=lambda expression: "compilation failed: no" if "(" in expression else None)
    store.create("namespaces", {"metadata": {"name": "default"}})
    bad = {"selectors": [{"cel": {"expression": "device("}}]}
    message = refused(store, "resourceclaims", claim(**bad))
    assert 'exactly.selectors[0].cel.expression: Invalid value: "device(": compilation failed: no' in message
    assert "compilation failed" in refused(store, "deviceclasses", {"metadata": {"name": "c"}, "spec": bad})
    good = {"selectors": [{"cel": {"expression": "true"}}]}
    assert store.create("resourceclaims", claim(**good), "default")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"extendedResourceName": "gpu"}, "must be a valid extended resource name"),
        ({"extendedResourceName": "kubernetes.io/gpu"}, "must be a valid extended resource name"),
        ({"config": [{}]}, "spec.config[0].opaque: Required value"),
        ({"selectors": [{}]}, "spec.selectors[0].cel: Required value"),
    ],
)
def test_a_class_that_is_not_valid(store, spec, message):
    assert message in refused(store, "deviceclasses", {"metadata": {"name": "c"}, "spec": spec}, None)


RESULT = {"request": "r", "driver": "gpu.nvidia.com", "pool": "n1", "device": "gpu-0"}
USER = {"resource": "pods", "name": "p", "uid": "u"}


def allocated(*results, **more):
    return {"allocation": {"devices": {"results": list(results or [RESULT])}}, **more}


def write_status(store, status):
    return store.update_status("resourceclaims", {**store.get("resourceclaims", "c", "default"), "status": status})


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (allocated({**RESULT, "request": "z"}), "results[0].request: Invalid value"),
        (allocated({**RESULT, "device": ""}), "results[0].device: Required value"),
        (allocated({**RESULT, "pool": ""}), "results[0].pool: Required value"),
        (allocated({**RESULT, "shareID": "X"}), "results[0].shareID: Invalid value"),
        (allocated(*[RESULT] * 33), "results: Too many: 33: must have at most 32"),
        ({"reservedFor": [USER]}, "may not be specified when `allocated` is not set"),
        (allocated(reservedFor=[USER, USER]), "status.reservedFor[1].uid: Duplicate value"),
        (allocated(reservedFor=[{"name": "p"}]), "reservedFor[0].uid: Required value"),
        (allocated(devices=[{"driver": "x", "pool": "n1", "device": "gpu-0"}]), "must be an allocated device"),
        (
            allocated(devices=[OWN | {"data": {"a": "x" * 10300}}]),
            "devices[0].data: Too long",
        ),
        (
            allocated(devices=[OWN | {"conditions": [{"type": "R"}]}]),
            "conditions[0].reason: Required value",
        ),
        ({"allocation": {"devices": {"config": [{"source": "No", "opaque": OPAQUE}]}}}, 'Unsupported value: "No"'),
    ],
)  # fmt: skip
def test_a_status_that_is_not_valid(store, status, message):
    store.create("resourceclaims", claim(), "default")
    with pytest.raises(StatusError) as caught:
        write_status(store, status)
    assert message in caught.value.message


def test_an_allocation_is_made_once_and_can_be_undone(store):
    store.create("resourceclaims", claim(), "default")
    write_status(store, allocated(reservedFor=[USER]))
    with pytest.raises(StatusError, match=r"status.allocation: Invalid value: .*: field is immutable"):
        write_status(store, allocated({**RESULT, "device": "gpu-1"}))
    condition = {"type": "Ready", "status": "True", "reason": "R", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    own = {"driver": "gpu.nvidia.com", "pool": "n1", "device": "gpu-0", "conditions": [condition]}
    assert write_status(store, allocated(devices=[own]))["status"]["devices"] == [own]
    assert "status" not in write_status(store, {})


def test_a_claim_that_goes_is_not_allocated_any_more(store):
    held = claim()
    held["metadata"]["finalizers"] = ["e.com/f"]
    store.create("resourceclaims", held, "default")
    store.delete("resourceclaims", "c", "default")
    with pytest.raises(StatusError, match="new allocations may not be created when a claim is deleted"):
        write_status(store, allocated())


def test_admin_access_needs_the_namespaces_label(store):
    message = refused(store, "resourceclaims", claim(adminAccess=True))
    assert "requires the `resource.kubernetes.io/admin-access: true` label on the containing namespace" in message
    store.patch("namespaces", "default", {"metadata": {"labels": {"resource.kubernetes.io/admin-access": "true"}}})
    assert store.create("resourceclaims", claim(adminAccess=True), "default")
