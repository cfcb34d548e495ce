"""Every slice that was shown to a real API server gets that server's answer."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from driver.localcluster.apiserver import Features, StatusError, Store
from driver.localcluster.apiserver.objects import clone
from tests.unit.localcluster.apiserver.conftest import a_slice

RECORDED = json.loads((Path(__file__).parents[4] / "data/recordings/slice-validation.json").read_text())
MOMENT = datetime(2026, 11, 30, 8, 54, 46, tzinfo=UTC)


@pytest.mark.parametrize("case", RECORDED, ids=[case["id"] for case in RECORDED])
def test_recorded_slice(case):
    store = Store(clock=lambda: MOMENT)
    given = {"metadata": {"name": "s"}, "spec": clone(case["spec"])}
    if case["accepted"]:
        stored = store.create("resourceslices", given)
        assert stored["spec"] == case.get("stored_spec", case["spec"])
        return
    with pytest.raises(StatusError) as caught:
        store.create("resourceslices", given)
    assert caught.value.code == case["code"]
    prefix = 'ResourceSlice.resource.k8s.io "s" is invalid: ' if case["code"] == 422 else ""
    assert caught.value.message == prefix + case["message"]


def refused(spec=None, device=None):
    with pytest.raises(StatusError) as caught:
        Store().create("resourceslices", a_slice(**(spec or {"devices": [{"name": "d", **device}]})))
    assert caught.value.code == 422
    return caught.value.message


@pytest.mark.parametrize(
    ("device", "message"),
    [
        ({"taints": [{"key": "e/k", "effect": "NoSchedule"}] * 17}, "taints: Too many: 17: must have at most 16"),
        ({"bindingConditions": ["a"]}, "bindingFailureConditions are required"),
        ({"bindingFailureConditions": ["a"]}, "bindingConditions are required"),
        ({"bindingConditions": ["a"] * 5, "bindingFailureConditions": ["b"]}, "bindingConditions: Too many: 5"),
        ({"consumesCounters": [{"counterSet": "a"}]}, "counters: Required value"),
        ({"consumesCounters": [{"counters": {"a": {"value": "1"}}}]}, "counterSet: Required value"),
        ({"nodeName": "n1"}, "can only be set when `spec.perDeviceNodeSelection`"),
        ({"attributes": {"": {"int": 1}}}, "attributes: Required value"),
        ({"attributes": {"a" * 33: {"int": 1}}}, "attributes: Too long: may not be more than 32 bytes"),
        ({"attributes": {"bad_domain/x": {"int": 1}}}, "a lowercase RFC 1123 subdomain"),
        ({"capacity": {"a-b": {"value": "1"}}}, "a valid C identifier"),
        ({"taints": [{"key": "", "effect": ""}]}, "taints[0].key: Required value"),
    ],
)
def test_further_limits_of_a_device(device, message):
    assert message in refused(device=device)


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        ({"default": "1Gi", "validRange": {"min": "1Gi", "max": "99Gi"}}, "max is larger than capacity value"),
        ({"default": "9Gi", "validRange": {"min": "1Gi", "max": "8Gi"}}, "default is more than max: 8Gi"),
        ({"default": "3Gi", "validRange": {"min": "1Gi", "max": "2Gi"}}, "default is more than max"),
        ({"default": "1536Mi", "validRange": {"min": "1Gi", "step": "1Gi"}}, "not a multiple of a given step: 1Gi"),
        ({"default": "1Gi", "validRange": {}}, "validRange.min: Required value"),
        ({"validValues": ["1Gi"]}, "required when validValues is defined"),
        ({"default": "2Gi", "validValues": ["1Gi"]}, "default value is not valid"),
        ({"default": "1Gi", "validValues": ["1Gi", "1024Mi"]}, "Duplicate value"),
    ],
)
def test_further_rules_of_a_policy(policy, message):
    capacity = {"memory": {"value": "80Gi", "requestPolicy": policy}}
    assert message in refused(device={"allowMultipleAllocations": True, "capacity": capacity})


def test_a_per_device_node_is_needed_where_it_is_announced():
    spec = a_slice()["spec"] | {"perDeviceNodeSelection": True}
    spec.pop("nodeName")
    with pytest.raises(StatusError, match="is required when `perDeviceNodeSelection` is set to true"):
        Store().create("resourceslices", {"metadata": {"name": "s"}, "spec": spec})


@pytest.mark.parametrize(("change", "field"), [({"driver": "x"}, "spec.driver"), ({"nodeName": "n2"}, "spec.nodeName")])
def test_what_names_a_slice_can_not_change(change, field):
    store = Store()
    made = clone(store.create("resourceslices", a_slice()))
    made["spec"] |= change
    with pytest.raises(StatusError, match=f"{field}: Invalid value: .*: field is immutable"):
        store.update("resourceslices", made)


def test_the_time_of_a_taint_stays():
    moments = iter(
        [datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 2, tzinfo=UTC), datetime(2026, 1, 3, tzinfo=UTC)]
    )
    store = Store(clock=lambda: next(moments))
    taint = {"key": "e/k", "effect": "NoSchedule"}
    made = clone(store.create("resourceslices", a_slice(devices=[{"name": "d", "taints": [taint]}])))
    made["spec"]["devices"].append({"name": "e", "taints": [taint]})
    devices = store.update("resourceslices", made)["spec"]["devices"]
    assert [d["taints"][0]["timeAdded"][:10] for d in devices] == ["2026-01-01", "2026-01-02"]


def test_a_taint_without_effect_is_newer_than_kubernetes_134():
    tainted = a_slice(devices=[{"name": "d", "taints": [{"key": "e/k", "effect": "None"}]}])
    gates = {"DRADeviceTaints": True}
    old, new = (Store(features=Features(kubernetes=release, gates=gates)) for release in ("1.34", "1.35"))
    with pytest.raises(
        StatusError, match='effect: Unsupported value: "None": supported values: "NoExecute", "NoSchedule"'
    ):
        old.create("resourceslices", clone(tainted))
    assert new.create("resourceslices", tainted)["spec"]["devices"][0]["taints"][0]["effect"] == "None"


def test_quantities_are_stored_in_one_spelling():
    made = Store().create(
        "resourceslices", a_slice(devices=[{"name": "d", "capacity": {"memory": {"value": "1024Mi"}}}])
    )
    assert made["spec"]["devices"][0]["capacity"]["memory"]["value"] == "1Gi"
