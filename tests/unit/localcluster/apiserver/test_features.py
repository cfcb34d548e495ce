from __future__ import annotations

import pytest

from driver.errors import InvalidValueError
from driver.localcluster.apiserver import Features, Store
from driver.localcluster.apiserver.features import parse_gates
from driver.localcluster.apiserver.objects import clone
from tests.unit.localcluster.apiserver.conftest import a_slice, claim


@pytest.mark.parametrize(
    ("version", "gate", "on"),
    [  # facts: features by version
        ("1.34", "DRAAdminAccess", True),
        ("1.34", "DRAPartitionableDevices", False),
        ("1.35", "DRADeviceTaints", False),
        ("1.36", "DRADeviceTaints", True),
        ("1.36", "DRAConsumableCapacity", True),
        ("1.36", "DRAListTypeAttributes", False),
        ("1.34", "DRAListTypeAttributes", False),
        ("1.37", "DRAExtendedResource", True),
    ],
)
def test_what_a_version_has_on(version, gate, on):
    assert Features(kubernetes=version).enabled(gate) is on


def test_gates_can_be_switched():
    assert Features(kubernetes="1.34", gates={"DRADeviceTaints": True}).enabled("DRADeviceTaints")
    assert not Features(gates={"DRAConsumableCapacity": False}).enabled("DRAConsumableCapacity")


@pytest.mark.parametrize(
    "given",
    [
        {"kubernetes": "1.33"},
        {"gates": {"Nonsense": True}},
        {"kubernetes": "1.34", "gates": {"DRAListTypeAttributes": True}},
        {"kubernetes": "1.37", "gates": {"DRADeviceTaints": False}},
        {"dra_versions": ("v2",)},
        {"dra_versions": ()},
    ],
)
def test_what_can_not_be(given):
    with pytest.raises(InvalidValueError):
        Features(**given)


def test_gates_are_written_as_kubernetes_writes_them():
    assert parse_gates("A=true, B=false,") == {"A": True, "B": False}
    assert parse_gates("") == {}
    with pytest.raises(InvalidValueError, match="Gate=true or Gate=false"):
        parse_gates("A=1")


DEVICE = {
    "name": "d",
    "attributes": {"a": {"int": 1}},
    "taints": [{"key": "e/k", "effect": "NoSchedule"}],
    "consumesCounters": [{"counterSet": "c", "counters": {"m": {"value": "1"}}}],
    "allowMultipleAllocations": True,
    "capacity": {"memory": {"value": "80Gi", "requestPolicy": {"default": "1Gi", "validValues": ["1Gi"]}}},
    "bindingConditions": ["a"],
    "bindingFailureConditions": ["b"],
}


def stored_device(store, device=DEVICE):
    return store.create("resourceslices", a_slice(devices=[device]))["spec"]["devices"][0]


@pytest.mark.parametrize("version", ["1.34", "1.35"])
def test_an_older_server_drops_silently_what_it_does_not_know(version):
    store = Store(Features(kubernetes=version))
    assert stored_device(store) == {
        "name": "d",
        "attributes": {"a": {"int": 1}},
        "capacity": {"memory": {"value": "80Gi"}},
    }
    counters = [{"name": "c", "counters": {"m": {"value": "1"}}}]
    made = store.create("resourceslices", a_slice("t", sharedCounters=counters, devices=[]))
    assert "sharedCounters" not in made["spec"]


@pytest.mark.parametrize("version", ["1.36", "1.37"])
def test_a_newer_server_keeps_it(version):
    found = stored_device(Store(Features(kubernetes=version)))
    assert set(found) == set(DEVICE)


@pytest.mark.parametrize(
    ("gate", "field"),
    [
        ("DRAPartitionableDevices", "consumesCounters"),
        ("DRADeviceTaints", "taints"),
        ("DRAConsumableCapacity", "allowMultipleAllocations"),
        ("DRADeviceBindingConditions", "bindingConditions"),
    ],
)
def test_one_gate_drops_its_own_fields(gate, field):
    found = stored_device(Store(Features(gates={gate: False})))
    assert field not in found
    others = {"taints", "consumesCounters", "allowMultipleAllocations", "bindingConditions"} - {field}
    assert others <= set(found)


def test_list_attributes_are_kept_where_they_are_on():
    store = Store(Features(gates={"DRAListTypeAttributes": True}))
    found = stored_device(store, {"name": "d", "attributes": {"a": {"strings": ["x", "y"]}}})
    assert found["attributes"] == {"a": {"strings": ["x", "y"]}}


def test_what_an_old_object_has_stays():
    """A field that is in use survives a feature that was switched off later."""
    store = Store()
    made = clone(store.create("resourceslices", a_slice(devices=[DEVICE])))
    store.features = Features(gates={"DRADeviceTaints": False})
    made["metadata"]["labels"] = {"a": "b"}
    assert store.update("resourceslices", made)["spec"]["devices"][0]["taints"]


def test_claims_lose_fields_too():
    store = Store(Features(kubernetes="1.34"))
    store.create("namespaces", {"metadata": {"name": "default"}})
    asked = {"tolerations": [{"operator": "Exists"}], "capacity": {"requests": {"memory": "1Gi"}}, "adminAccess": False}
    found = store.create("resourceclaims", claim(**asked), "default")["spec"]["devices"]["requests"][0]["exactly"]
    assert set(found) == {"deviceClassName", "allocationMode", "count", "adminAccess"}
    given = store.create("deviceclasses", {"metadata": {"name": "c"}, "spec": {"extendedResourceName": "e.com/gpu"}})
    assert given["spec"] == {}


def test_a_claims_device_status_needs_its_feature():
    results = [
        {
            "request": "r",
            "driver": "d.io",
            "pool": "p",
            "device": "x",
            "shareID": "0" * 8 + "-0000-0000-0000-" + "0" * 12,
        }
    ]
    status = {
        "allocation": {"devices": {"results": results}},
        "devices": [{"driver": "d.io", "pool": "p", "device": "x"}],
    }
    store = Store(Features(gates={"DRAResourceClaimDeviceStatus": False, "DRAConsumableCapacity": False}))
    store.create("namespaces", {"metadata": {"name": "default"}})
    made = store.create("resourceclaims", claim(), "default")
    found = store.update_status("resourceclaims", {**made, "status": status})["status"]
    assert "devices" not in found
    assert "shareID" not in found["allocation"]["devices"]["results"][0]


@pytest.mark.parametrize(("kubernetes", "kept"), [("1.34", False), ("1.35", False), ("1.36", True)])
def test_health_in_a_pods_status_is_dropped_where_the_version_has_it_off(kubernetes: str, kept: bool) -> None:
    store = Store(Features(kubernetes=kubernetes))
    store.create("namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "default"}})
    container = {"name": "c", "image": "busybox"}
    pod = {"metadata": {"name": "p", "namespace": "default"}, "spec": {"containers": [container]}}
    stored = clone(store.create("pods", {"apiVersion": "v1", "kind": "Pod", **pod}))
    health = [{"name": "claim:g", "resources": [{"resourceID": "a/b=c", "health": "Healthy"}]}]
    told = {**container, "imageID": "", "ready": True, "restartCount": 0, "allocatedResourcesStatus": health}
    stored["status"]["containerStatuses"] = [told]
    [status] = store.update_status("pods", stored)["status"]["containerStatuses"]
    assert ("allocatedResourcesStatus" in status) is kept
