from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest

from driver.errors import ApiInvalidError
from driver.kube.versions import VERSIONS, from_version, to_version

DEVICE = {
    "name": "gpu-0",
    "attributes": {"type": {"string": "gpu"}},
    "capacity": {"memory": {"value": "80Gi"}},
    "taints": [{"key": "a", "effect": "NoSchedule"}],
    "consumesCounters": [{"counterSet": "c", "counters": {"m": {"value": "1"}}}],
}
SLICE = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "ResourceSlice",
    "metadata": {"name": "s"},
    "spec": {"driver": "d", "nodeName": "n", "devices": [DEVICE, {"name": "gpu-1"}]},
}


@pytest.mark.parametrize("version", VERSIONS)
def test_a_slice_survives_the_way_there_and_back(version: str) -> None:
    before = deepcopy(SLICE)
    there = to_version(SLICE, version)
    assert there["apiVersion"] == f"resource.k8s.io/{version}"
    assert from_version(there, version) == SLICE == before


def test_v1beta1_wraps_all_but_the_name_in_basic() -> None:
    devices = to_version(SLICE, "v1beta1")["spec"]["devices"]
    assert devices == [
        {"name": "gpu-0", "basic": {key: value for key, value in DEVICE.items() if key != "name"}},
        {"name": "gpu-1", "basic": {}},
    ]
    assert to_version(SLICE, "v1beta2")["spec"] == SLICE["spec"]


@pytest.mark.parametrize("spec", [None, {}, {"devices": None}, {"devices": []}, {"sharedCounters": [{"name": "c"}]}])
def test_a_slice_without_devices_is_left_alone(spec: object) -> None:
    item = {"metadata": {"resourceVersion": "1"}, "spec": spec}
    assert from_version(item, "v1beta1")["spec"] == spec
    assert "spec" not in from_version({"metadata": {}}, "v1beta1")  # a bookmark


@pytest.mark.parametrize(
    "item", [{}, {"metadata": {"name": "s"}}, {"metadata": {"name": 5}, "spec": {}}, {"metadata": None, "spec": {}}]
)
def test_what_the_server_stores_is_a_whole_slice(item: dict[str, Any]) -> None:
    with pytest.raises(ApiInvalidError, match="no ResourceSlice"):
        from_version(item, "v1", whole=True)
