from __future__ import annotations

import json

import pytest

from driver.cdi import rules
from driver.cdi.spec import ContainerEdits, DeviceNode, Hook, Mount, claim_spec, encode, kind_spec, merge
from driver.errors import InvalidValueError
from driver.model import names

UID = "3f0c5a2e-11aa-4b0a-9d7e-0a1b2c3d4e5f"
LETTER_UID = "af0c5a2e-11aa-4b0a-9d7e-0a1b2c3d4e5f"
ENV = ContainerEdits(env={"A": "1"})


def one(edits: ContainerEdits, uid: str = UID) -> dict[str, ContainerEdits]:
    return {names.cdi_device(uid, "gpu-0"): edits}


def test_claim_spec_in_full():
    edits = ContainerEdits(
        env={"A": "1", "B": "x=y"},
        device_nodes=(
            DeviceNode(path="/dev/nvidia0", host_path="/dev/nvidia0", type="c", major=195, minor=0, file_mode=0o666),
            DeviceNode(path="/dev/x", host_path="/r/dev/x", gid=44),
        ),
        mounts=(Mount(host_path="/h", container_path="/c"), Mount(host_path="s", container_path="/s", type="tmpfs")),
        hooks=(Hook(name="createContainer", path="/hook", args=("hook", "do"), env=("E=1",)),),
        additional_gids=(44,),
    )
    spec = claim_spec(UID, common=ENV, devices=one(edits))
    assert spec == {
        "cdiVersion": "0.7.0",
        "kind": "k8s.gpu.nvidia.com/claim",
        "containerEdits": {"env": ["A=1"]},
        "devices": [
            {
                "name": f"{UID}-gpu-0",
                "containerEdits": {
                    "env": ["A=1", "B=x=y"],
                    "deviceNodes": [
                        {
                            "path": "/dev/nvidia0",
                            "type": "c",
                            "major": 195,
                            "minor": 0,
                            "fileMode": 0o666,
                            "permissions": "rw",
                        },
                        {"path": "/dev/x", "hostPath": "/r/dev/x", "permissions": "rw", "gid": 44},
                    ],
                    "mounts": [
                        {
                            "hostPath": "/h",
                            "containerPath": "/c",
                            "options": ["ro", "nosuid", "nodev", "rbind", "rprivate"],
                        },
                        {
                            "hostPath": "s",
                            "containerPath": "/s",
                            "options": ["ro", "nosuid", "nodev", "rbind", "rprivate"],
                            "type": "tmpfs",
                        },
                    ],
                    "hooks": [{"hookName": "createContainer", "path": "/hook", "args": ["hook", "do"], "env": ["E=1"]}],
                    "additionalGids": [44],
                },
            }
        ],
    }
    assert json.loads(encode(spec)) == spec


@pytest.mark.parametrize(
    ("uid", "edits", "version"),
    [
        (LETTER_UID, ENV, "0.3.0"),
        (UID, ENV, "0.5.0"),
        (LETTER_UID, ContainerEdits(mounts=(Mount(host_path="a", container_path="/b", type="tmpfs"),)), "0.4.0"),
        (LETTER_UID, ContainerEdits(device_nodes=(DeviceNode(path="/dev/a"),)), "0.3.0"),
        (LETTER_UID, ContainerEdits(device_nodes=(DeviceNode(path="/dev/a", host_path="/dev/b"),)), "0.5.0"),
        (LETTER_UID, ContainerEdits(device_nodes=(DeviceNode(path="/dev/a", host_path="/dev/a"),)), "0.3.0"),
        (UID, ContainerEdits(additional_gids=(44,)), "0.7.0"),
    ],
)
def test_the_lowest_version_that_serves(uid, edits, version):
    assert claim_spec(uid, devices=one(edits, uid))["cdiVersion"] == version
    assert claim_spec(uid, common=edits, devices=one(ENV, uid))["cdiVersion"] == version


def test_a_dot_in_the_class_needs_0_6_0():
    assert kind_spec("ex.com/a.b", devices={"g": ENV})["cdiVersion"] == "0.6.0"


def test_annotations_need_0_6_0():
    spec = kind_spec("ex.com/a", devices={"g": ENV})
    assert rules.required_version(spec | {"annotations": {}}) == "0.6.0"
    assert rules.required_version(spec | {"devices": [{**spec["devices"][0], "annotations": {}}]}) == "0.6.0"


def test_C4_a_spec_without_devices_is_never_made():
    with pytest.raises(InvalidValueError, match="at least one device"):
        claim_spec(UID, common=ENV, devices={})


@pytest.mark.parametrize(
    ("devices", "field"),
    [
        (one(ContainerEdits()), "devices[0].containerEdits"),
        ({"other-gpu-0": ENV}, "devices[].name"),
        ({f"{UID}-": ENV}, "devices[0].name"),
        (one(ContainerEdits(env={"": "1"})), "devices[0].containerEdits.env[0]"),
        (one(ContainerEdits(env={"A": "\0"})), "devices[0].containerEdits.env[0]"),
        (
            one(ContainerEdits(device_nodes=(DeviceNode(path="/d", permissions="rwx"),))),
            "devices[0].containerEdits.deviceNodes[0].permissions",
        ),
        (
            one(ContainerEdits(hooks=(Hook(name="sometime", path="/h"),))),
            "devices[0].containerEdits.hooks[0].hookName",
        ),
    ],
)
def test_what_the_runtime_would_refuse_is_refused(devices, field):
    with pytest.raises(InvalidValueError) as caught:
        claim_spec(UID, devices=devices)
    assert caught.value.path == field


@pytest.mark.parametrize("uid", ["", "../x", "a/b", "a b", "x" * 129])
def test_a_bad_uid_is_refused(uid):
    with pytest.raises(InvalidValueError, match="claim UID"):
        claim_spec(uid, devices={f"{uid}-gpu-0": ENV})


def test_two_shares_of_one_gpu_are_two_devices():
    shares = ["11111111-0000-4000-8000-000000000000", "22222222-0000-4000-8000-000000000000"]
    spec = claim_spec(UID, devices={names.cdi_device(UID, "gpu-0", share): ENV for share in shares})
    assert len({device["name"] for device in spec["devices"]}) == 2


def test_merge_keeps_order_and_the_later_of_each():
    left = ContainerEdits(
        env={"A": "1", "B": "1"},
        device_nodes=(DeviceNode(path="/dev/a"), DeviceNode(path="/dev/b")),
        mounts=(Mount(host_path="/1", container_path="/m"),),
        hooks=(Hook(name="createContainer", path="/h"),),
        additional_gids=(1, 2),
    )
    right = ContainerEdits(
        env={"B": "2", "C": "2"},
        device_nodes=(DeviceNode(path="/dev/a", minor=7),),
        mounts=(Mount(host_path="/2", container_path="/m"), Mount(host_path="/2", container_path="/n")),
        hooks=(Hook(name="createContainer", path="/h"), Hook(name="createContainer", path="/i")),
        additional_gids=(2, 3),
    )
    merged = merge(left, right)
    assert list(merged.env.items()) == [("A", "1"), ("B", "2"), ("C", "2")]
    assert [(node.path, node.minor) for node in merged.device_nodes] == [("/dev/a", 7), ("/dev/b", None)]
    assert [(mount.host_path, mount.container_path) for mount in merged.mounts] == [("/2", "/m"), ("/2", "/n")]
    assert [hook.path for hook in merged.hooks] == ["/h", "/i"]
    assert merged.additional_gids == (1, 2, 3)


def test_merge_of_nothing_is_nothing():
    assert not merge()
    assert not merge(ContainerEdits(), ContainerEdits())
    assert merge(ENV) == ENV


def test_equal_specs_have_equal_bytes():
    first, second = (encode(claim_spec(UID, common=ENV, devices=one(ENV))) for _ in range(2))
    assert first == second
    assert first.endswith(b"}\n")
    assert first.count(b"\n") == 1


def test_merge_of_one_keeps_nothing_twice_either():
    twice = ContainerEdits(device_nodes=(DeviceNode(path="/dev/a"), DeviceNode(path="/dev/a", minor=7)))
    assert merge(twice).device_nodes == (DeviceNode(path="/dev/a", minor=7),)
