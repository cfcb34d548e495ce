from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from driver.slices.dropped import Feature, dropped_fields, features_of
from driver.slices.normal import normal

RECORDED = json.loads(Path(__file__).parents[2].joinpath("data/recordings/slice-validation.json").read_text())
STORED = [case for case in RECORDED if "stored_spec" in case]
POOL = {"name": "n", "generation": 3, "resourceSliceCount": 1}
DEVICE = {
    "name": "gpu-0",
    "attributes": {"type": {"string": "gpu"}, "empty": {"string": ""}, "zero": {"int": 0}, "no": {"bool": False}},
    "capacity": {"memory": {"value": "80Gi", "requestPolicy": {"default": "1Gi", "validValues": ["1Gi", "2Gi"]}}},
    "taints": [{"key": "k", "effect": "NoSchedule"}],
    "consumesCounters": [{"counterSet": "c", "counters": {"memory": {"value": "1Gi"}}}],
    "allowMultipleAllocations": True,
}


def spec(**device: Any) -> dict[str, Any]:
    return {"driver": "d", "nodeName": "n", "pool": POOL, "devices": [{**DEVICE, **device}]}


def capacity(value: str, **policy: Any) -> dict[str, Any]:
    return {"memory": {"value": value, "requestPolicy": {**DEVICE["capacity"]["memory"]["requestPolicy"], **policy}}}  # type: ignore[index]


@pytest.mark.parametrize(
    "case", [case for case in STORED if case["id"] != "unknown-field"], ids=lambda case: case["id"]
)
def test_what_a_real_server_stores_is_the_same_as_what_it_was_given(case: dict[str, Any]) -> None:
    assert normal(case["spec"]) == normal(case["stored_spec"])
    assert case["spec"] != case["stored_spec"]
    assert dropped_fields(case["spec"], case["stored_spec"]) == frozenset()


def test_a_field_that_a_real_server_does_not_know_is_a_difference() -> None:
    (case,) = [case for case in STORED if case["id"] == "unknown-field"]
    assert normal(case["spec"]) != normal(case["stored_spec"])
    assert dropped_fields(case["spec"], case["stored_spec"]) == {"colour"}


@pytest.mark.parametrize(
    "other",
    [
        spec(attributes=dict(reversed(DEVICE["attributes"].items()))),  # type: ignore[attr-defined]
        spec(capacity=capacity("81920Mi")),
        spec(capacity=capacity("80Gi", default="1024Mi", validValues=["1Gi", "2048Mi"])),
        spec(taints=[{"key": "k", "value": "", "effect": "NoSchedule", "timeAdded": "2026-01-01T00:00:00Z"}]),
        spec(consumesCounters=[{"counterSet": "c", "counters": {"memory": {"value": "1024Mi"}}}]),
        spec(bindingConditions=[], nodeName=None, allNodes=False),
        {**spec(), "sharedCounters": None},
        {**spec(), "pool": {**POOL, "generation": 9}},
    ],
)
def test_other_ways_to_write_it_mean_the_same(other: dict[str, Any]) -> None:
    assert normal(other) == normal(spec())
    assert normal(json.loads(json.dumps(other))) == normal(spec())


@pytest.mark.parametrize(
    "other",
    [
        spec(name="gpu-1"),
        spec(attributes={**DEVICE["attributes"], "more": {"int": 1}}),  # type: ignore[dict-item]
        spec(attributes={**DEVICE["attributes"], "zero": {"int": 1}}),  # type: ignore[dict-item]
        spec(attributes={"type": {"string": "gpu"}}),
        spec(capacity=capacity("80G")),
        spec(capacity=capacity("80Gi", default="2Gi")),
        spec(capacity={}),
        spec(taints=[]),
        spec(taints=[{"key": "k", "effect": "NoExecute"}]),
        spec(consumesCounters=[]),
        spec(allowMultipleAllocations=False),
        {**spec(), "nodeName": "m"},
        {**spec(), "devices": []},
        {**spec(), "devices": [DEVICE, {"name": "gpu-1"}]},
        {**spec(), "pool": {**POOL, "resourceSliceCount": 2}},
        {**spec(), "pool": {**POOL, "name": "m"}},
        {**spec(), "sharedCounters": [{"name": "c", "counters": {"memory": {"value": "1"}}}]},
    ],
)
def test_another_content_is_a_difference(other: dict[str, Any]) -> None:
    assert normal(other) != normal(spec())


def test_the_order_of_devices_is_content() -> None:
    one, two = {"name": "a"}, {"name": "b"}
    assert normal({"devices": [one, two]}) != normal({"devices": [two, one]})


@pytest.mark.parametrize("value", ["", "no quantity", None, 7])
def test_anything_a_server_might_hold_is_compared(value: object) -> None:
    odd = spec(capacity={"memory": {"value": value}}, attributes=None, taints=None)
    assert normal(odd) == normal(json.loads(json.dumps(odd)))
    assert normal({}) == normal({"pool": None, "devices": None})


@pytest.mark.parametrize(
    ("kept", "fields", "features"),
    [
        (spec(), set(), set()),
        (spec(taints=[]), {"taints"}, {Feature.TAINTS}),
        (spec(consumesCounters=None), {"consumesCounters"}, {Feature.PARTITIONS}),
        (spec(allowMultipleAllocations=False), {"allowMultipleAllocations"}, {Feature.SHARES}),
        (spec(taints=[], consumesCounters=[]), {"taints", "consumesCounters"}, {Feature.TAINTS, Feature.PARTITIONS}),
    ],
)
def test_dropped_fields_tell_which_feature_is_off(
    kept: dict[str, Any], fields: set[str], features: set[Feature]
) -> None:
    assert dropped_fields(spec(), kept) == fields
    assert features_of(dropped_fields(spec(), kept)) == features


def test_dropped_counters_of_a_slice_are_noticed() -> None:
    asked = {"pool": POOL, "sharedCounters": [{"name": "c", "counters": {"memory": {"value": "1"}}}]}
    assert dropped_fields(asked, {"pool": POOL}) == {"sharedCounters"}
