from __future__ import annotations

import json
from dataclasses import replace
from types import MappingProxyType

import pytest

from driver.claims.device_status import MAX_DATA, device_statuses, key_of, own_entries, same_entries
from driver.claims.effect import Partition
from driver.model.health import Health
from driver.model.mig import Placement
from driver.model.ownership import Owner, Ownership
from tests.unit.slices.helpers import FELL_OFF, NODE, partitioned, snapshot
from tests.unit.telemetry.builders import held, record

THEN, NOW = "2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"
SHARE = "0b6c1a6e-2f52-4a7b-8f9e-0d1c2b3a4f5e"


def conditions(entry):
    return {one["type"]: one for one in entry["conditions"]}


def test_a_whole_gpu():
    node = snapshot("h100:2")
    gpu = node.gpus[1]
    (entry,) = device_statuses(record("c", held("gpu-1", gpu.uuid)), node, (), NOW)
    assert entry == {
        "driver": "gpu.nvidia.com",
        "pool": NODE,
        "device": "gpu-1",
        "conditions": [
            {"type": "Ready", "status": "True", "reason": "Prepared", "message": "", "lastTransitionTime": NOW},
            {"type": "Healthy", "status": "True", "reason": "Healthy", "message": "", "lastTransitionTime": NOW},
        ],
        "data": {
            "kind": "gpu",
            "uuid": gpu.uuid,
            "productName": "NVIDIA H100 80GB HBM3",
            "pciBusID": "0000:43:00.0",
        },
    }


def test_a_mig_device_that_was_there():
    node = snapshot("h100@mig=1g.10gb*2")
    gpu = node.gpus[0]
    assert gpu.mig is not None
    place = gpu.mig.instances[1].placement
    (entry,) = device_statuses(record("c", held("gpu-0-mig-1g10gb-19-1", gpu.uuid, placement=place)), node, (), NOW)
    assert entry["data"]["uuid"] == gpu.mig.instances[1].uuid
    assert entry["data"]["parentUUID"] == gpu.uuid
    assert entry["data"]["profile"] == "1g.10gb"
    assert entry["data"]["placement"] == {"start": 1, "size": 1}


def test_a_mig_device_made_for_the_claim_has_its_own_uuid():
    node = partitioned("h100:1")
    gpu = node.gpus[0]
    name, place = "gpu-0-mig-1g10gb-19-3", Placement(3, 1)
    made = Partition(gpu=gpu.uuid, device=name, profile_id=19, placement=place, uuid="MIG-made")
    claim = record("c", held(name, gpu.uuid, placement=place), effects=(made,))
    (entry,) = device_statuses(claim, node, (), NOW)
    assert entry["data"]["uuid"] == "MIG-made"
    assert entry["data"]["profile"] == "1g.10gb"


def test_a_share_has_its_key_and_its_limits():
    node = snapshot("h100:1")
    device = held("gpu-0", node.gpus[0].uuid, share=SHARE, memory_limit=10 << 30, thread_percentage=25)
    (entry,) = device_statuses(record("c", device), node, (), NOW)
    assert key_of(entry) == ("gpu.nvidia.com", NODE, "gpu-0", SHARE)
    assert entry["data"]["memoryLimit"] == "10Gi"
    assert entry["data"]["threadPercentage"] == 25


def test_health_with_its_reason_and_the_time_of_its_change():
    node = snapshot("h100:1")
    claim = record("c", held("gpu-0", node.gpus[0].uuid))
    known = device_statuses(claim, node, (), THEN)
    bad = Health(healthy=False, reason="XID 79", taints=(FELL_OFF,))
    sick = replace(node, health=MappingProxyType({node.gpus[0].uuid: bad}))
    (entry,) = device_statuses(claim, sick, known, NOW)
    healthy = conditions(entry)["Healthy"]
    assert (healthy["status"], healthy["message"], healthy["lastTransitionTime"]) == ("False", "XID 79", NOW)
    assert conditions(entry)["Ready"]["lastTransitionTime"] == THEN
    again = device_statuses(claim, node, [entry], "later")
    assert conditions(again[0])["Healthy"]["lastTransitionTime"] == "later"


def test_another_reason_is_no_transition():
    node = snapshot("h100:1")
    claim = record("c", held("gpu-0", node.gpus[0].uuid))
    known = []
    for now, reason in ((THEN, "XID 79"), (NOW, "XID 79; XID 48")):
        bad = Health(healthy=False, reason=reason)
        sick = replace(node, health=MappingProxyType({node.gpus[0].uuid: bad}))
        known = device_statuses(claim, sick, known, now)
    assert conditions(known[0])["Healthy"]["lastTransitionTime"] == THEN
    assert conditions(known[0])["Healthy"]["message"] == "XID 79; XID 48"


def test_a_claim_that_a_change_of_owners_waits_for_says_so_meanwhile():
    node = snapshot("h100:2")
    claim = record("c", held("gpu-0", node.gpus[0].uuid), held("gpu-1", node.gpus[1].uuid))
    leaving = Ownership(owner=Owner.DRA, wanted=Owner.DEVICE_PLUGIN, waiting_for="claim ns/c")
    draining = replace(node, ownership=MappingProxyType({node.gpus[0].uuid: leaving}))
    first, second = device_statuses(claim, draining, (), NOW)
    withdrawn = conditions(first)["Withdrawn"]
    assert (withdrawn["status"], withdrawn["reason"]) == ("True", "OwnerChanges")
    assert withdrawn["message"] == "its GPU is to be device-plugin's as soon as no claim holds it"
    assert "Withdrawn" not in conditions(second)
    assert "Withdrawn" not in conditions(device_statuses(claim, node, [first], NOW)[0])


@pytest.mark.parametrize("uuid", ["GPU-other", ""])
def test_a_device_that_is_not_there_any_more_is_unknown(uuid):
    (entry,) = device_statuses(record("c", held("gpu-0", uuid)), snapshot("h100:1"), (), NOW)
    assert conditions(entry)["Healthy"]["status"] == "Unknown"
    assert "productName" not in entry["data"]


def test_data_that_would_be_too_long_is_cut_at_a_whole_field():
    node = snapshot("h100:1", product="x" * MAX_DATA)
    (entry,) = device_statuses(record("c", held("gpu-0", node.gpus[0].uuid)), node, (), NOW)
    assert len(json.dumps(entry["data"], separators=(",", ":")).encode()) <= MAX_DATA
    assert entry["data"]["uuid"] == node.gpus[0].uuid
    assert entry["data"]["pciBusID"]
    assert "productName" not in entry["data"]


@pytest.mark.parametrize(
    "known",
    [
        [{}],
        [{"driver": "gpu.nvidia.com", "pool": NODE, "device": "gpu-0", "conditions": "x"}],
        [{"driver": "gpu.nvidia.com", "pool": NODE, "device": "gpu-0", "conditions": [1, {"type": "Ready"}]}],
        [
            {
                "driver": "gpu.nvidia.com",
                "pool": NODE,
                "device": "gpu-0",
                "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": 5}],
            }
        ],
    ],
)
def test_whatever_somebody_left_there(known):
    node = snapshot("h100:1")
    (entry,) = device_statuses(record("c", held("gpu-0", node.gpus[0].uuid)), node, known, NOW)
    assert conditions(entry)["Ready"]["lastTransitionTime"] == NOW


@pytest.mark.parametrize(
    ("claim", "count"),
    [
        ({}, 0),
        ({"status": None}, 0),
        ({"status": {"devices": "x"}}, 0),
        ({"status": {"devices": [None, 1, {"driver": "nic.example.com"}, {"driver": "gpu.nvidia.com"}]}}, 1),
    ],
)
def test_own_entries(claim, count):
    assert len(own_entries(claim)) == count


def test_the_order_of_entries_is_no_difference():
    one, other = {"driver": "d", "device": "a"}, {"driver": "d", "device": "b"}
    assert same_entries([one, other], [other, one])
    assert not same_entries([one], [one, other])
    assert not same_entries([one], [{**one, "data": {}}])
