from __future__ import annotations

import pytest

from driver.deviceplugin.resources import offer
from tests.unit.deviceplugin.helpers import config, only, shared, snapshot


def counts(spec, document=None, **flags):
    found = offer(snapshot(spec), config(document, **flags))
    return {name: len(resource.devices) for name, resource in found.resources.items()}


def test_whole_gpus_by_uuid_in_their_order():
    node = snapshot("h100:8")
    resource = only(node, config())
    assert [one.id for one in resource.devices] == [gpu.uuid for gpu in node.gpus]
    assert [one.numa_node for one in resource.devices] == [gpu.numa_node for gpu in node.gpus]
    assert resource.endpoint == "nvidia-gpu"
    assert offer(node, config()) == offer(node, config())


def test_K6_only_gpus_of_the_device_plugin_are_offered():
    node = snapshot("h100:4", dra=(0, 2))
    assert [one.index for one in only(node, config()).devices] == ["1", "3"]
    assert offer(snapshot("h100:2", dra=(0, 1)), config()).resources == {}


def test_an_unhealthy_gpu_stays_in_the_list_with_its_reason():
    devices = only(snapshot("h100:2", unhealthy={1: "XID 79"}), config()).devices
    assert [one.unhealthy for one in devices] == ["", "XID 79"]


@pytest.mark.parametrize(
    ("spec", "strategy", "expected"),
    [
        ("h100:2", "none", {"nvidia.com/gpu": 2}),
        ("h100@mig=1g.10gb*3,h100", "none", {"nvidia.com/gpu": 1}),
        ("h100@mig=1g.10gb*3,h100@mig=1g.10gb*2", "single", {"nvidia.com/gpu": 5}),
        ("h100:2", "single", {"nvidia.com/gpu": 2}),
        ("h100@mig=1g.10gb*3,h100", "single", {}),
        ("h100@mig=1g.10gb*3,h100@mig=3g.40gb", "single", {}),
        ("h100@mig=1g.10gb*3,h100", "mixed", {"nvidia.com/gpu": 1, "nvidia.com/mig-1g.10gb": 3}),
        ("h100@mig=3g.40gb+1g.10gb+me", "mixed", {"nvidia.com/mig-1g.10gb.me": 1, "nvidia.com/mig-3g.40gb": 1}),
    ],
)
def test_mig_strategies(spec, strategy, expected):
    assert counts(spec, mig_strategy=strategy) == expected


@pytest.mark.parametrize(
    ("spec", "strategy", "words"),
    [
        ("h100@mig=1g.10gb,h100", "none", "gpu-0 is not offered: it is in MIG mode, and the MIG strategy is none"),
        ("h100@mig=1g.10gb,h100", "single", "needs MIG mode on all GPUs, but it is on for 1 of 2"),
        ("h100@mig=1g.10gb,h100@mig=3g.40gb", "single", "needs one profile on all GPUs, but there are 1g.10gb, 3g.40"),
    ],
)
def test_what_a_strategy_can_not_serve_is_told(spec, strategy, words):
    (problem,) = offer(snapshot(spec), config(mig_strategy=strategy)).problems
    assert words in problem


def test_a_mig_devices_index_and_uuid():
    node = snapshot("h100@mig=1g.10gb*2")
    devices = only(node, config(mig_strategy="single")).devices
    assert [one.index for one in devices] == ["0:0", "0:1"]
    assert {one.uuid for one in devices} == {one.uuid for one in node.gpus[0].mig.instances}


def test_patterns_rename_and_what_matches_none_keeps_its_name():
    document = {"resources": {"gpus": [{"pattern": "*H100*", "name": "big"}, {"pattern": "NVIDIA", "name": "never"}]}}
    assert counts("h100:2,l4", document) == {"nvidia.com/big": 2, "nvidia.com/gpu": 1}


def test_mig_patterns():
    document = {"resources": {"mig": [{"pattern": "1g.*", "name": "small"}]}}
    assert counts("h100@mig=1g.10gb*3", document, mig_strategy="mixed") == {"nvidia.com/small": 3}


# --- sharing ----------------------------------------------------------------------------------------------------------


def test_replicas_have_ids_of_their_own():
    devices = only(snapshot("h100:2"), config(shared(3))).devices
    first = devices[0].uuid
    assert [one.id for one in devices[:3]] == [f"{first}::0", f"{first}::1", f"{first}::2"]
    assert all(len(one.id) <= 63 for one in devices)
    assert {one.replicas for one in devices} == {3}


@pytest.mark.parametrize(
    ("sharing", "expected"),
    [
        ({}, {"nvidia.com/gpu": 16}),
        ({"rename": "slice"}, {"nvidia.com/slice": 16}),
        ({"devices": 1}, {"nvidia.com/gpu": 7}),
        ({"devices": 1, "rename": "slice"}, {"nvidia.com/gpu": 3, "nvidia.com/slice": 4}),
        ({"devices": [0, "3"], "rename": "slice"}, {"nvidia.com/gpu": 2, "nvidia.com/slice": 8}),
    ],
)
def test_renames_and_sharing_of_some_devices_work(sharing, expected):
    assert counts("h100:4", shared(4, **sharing)) == expected


def test_rename_by_default():
    document = shared(2)
    document["sharing"]["timeSlicing"]["renameByDefault"] = True
    assert counts("h100", document) == {"nvidia.com/gpu.shared": 2}


@pytest.mark.parametrize(
    ("sharing", "words"),
    [
        ({"name": "absent"}, "shares nvidia.com/absent, but this node offers no such resource"),
        ({"devices": 5}, "5 are to be shared, but nvidia.com/gpu has 2"),
        ({"devices": [0, 7]}, "nvidia.com/gpu has no device 7"),
    ],
)
def test_sharing_of_what_is_not_there_is_told_and_costs_only_itself(sharing, words):
    found = offer(snapshot("h100:2"), config(shared(2, **sharing)))
    (problem,) = found.problems
    assert words in problem
    assert len(found.resources["nvidia.com/gpu"].devices) >= 2


def test_mps_replicas_are_not_offered_without_mps():
    found = offer(snapshot("h100:2"), config(shared(2, kind="mps")))
    assert found.resources == {}
    assert "sharing.mps can't be served" in found.problems[0]
    offered = offer(snapshot("h100:2"), config(shared(2, kind="mps")), mps=True).resources["nvidia.com/gpu"]
    assert (len(offered.devices), offered.sharing, offered.at_most_one) == (4, "mps", True)
