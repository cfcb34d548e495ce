from __future__ import annotations

import os
import stat
from pathlib import Path
from types import SimpleNamespace

import pytest

from driver.cdi.nodes import DeviceNodes
from driver.errors import ClaimRefusedError, DeviceNotReadyError
from driver.root import Root
from tests.unit.cdi.driver_root import DriverRoot
from tests.unit.cdi.gpus import full, mig

MINORS = "config 1\nmonitor 2\ngpu1/gi7/access 75\ngpu1/gi7/ci0/access 76\ngpu1/gi7/ci01/access 99\n"


@pytest.fixture
def node(tmp_path):
    return DriverRoot(tmp_path)


def nodes(node, **kwargs) -> DeviceNodes:
    return DeviceNodes(Root(node.root, Path("/host")), node.proc, node.sys, **kwargs)


def test_a_node_in_full(node):
    node.nodes("nvidia0")
    found = nodes(node).gpu(full(0).gpu)[0]
    status = (node.root / "dev/nvidia0").stat()
    assert found.encode() == {
        "path": "/dev/nvidia0",
        "hostPath": "/host/dev/nvidia0",
        "type": "c",
        "major": os.major(status.st_rdev),
        "minor": os.minor(status.st_rdev),
        "fileMode": 0o666,
        "permissions": "rw",
    }


def test_the_group_comes_only_where_it_is_not_root(node):
    def stat_node(path):
        return SimpleNamespace(st_mode=stat.S_IFCHR | 0o660, st_gid=44, st_rdev=os.makedev(195, 3))

    found = nodes(node, stat_node=stat_node).gpu(full(3).gpu)[0]
    assert (found.encode()["gid"], found.file_mode) == (44, 0o660)


def test_C2_a_node_that_is_not_there_is_said_with_its_path(node):
    node.nodes("nvidiactl")
    with pytest.raises(DeviceNotReadyError, match=r"/host/dev/nvidia0 is not there \(yet\)"):
        nodes(node).gpu(full(0).gpu)
    node.nodes("nvidia0")
    assert nodes(node).gpu(full(0).gpu)


def test_C2_a_file_in_the_place_of_a_node_is_no_node(node, caplog):
    node.file("dev/nvidia0")
    with pytest.raises(DeviceNotReadyError):
        nodes(node).gpu(full(0).gpu)
    assert "/host/dev/nvidia0 is no character device" in caplog.text


def test_P1_a_gpu_without_a_minor_number_is_refused_for_good(node):
    with pytest.raises(ClaimRefusedError, match="has no minor number"):
        nodes(node).gpu(full(0, minor=None).gpu)


@pytest.mark.parametrize("by", ["sysfs", "link"])
def test_display_nodes_of_the_gpus_own_pci_id(node, by):
    node.nodes("nvidia0", "dri/card1", "dri/renderD129", "dri/card2")
    if by == "sysfs":
        for name in ("card1", "renderD129", "controlD65"):
            (node.sys / "bus/pci/devices/0000:60:00.0/drm" / name).mkdir(parents=True)
    else:
        if (node.root / "dev/dri/card1").is_symlink():
            pytest.skip("device nodes take root's rights")
        node.link("dev/dri/by-path/pci-0000:60:00.0-card", "../card1")
        node.link("dev/dri/by-path/pci-0000:60:00.0-render", "../renderD129")
        node.link("dev/dri/by-path/pci-0000:61:00.0-card", "../card2")
    paths = [found.path for found in nodes(node).gpu(full(0).gpu)]
    assert paths == ["/dev/nvidia0", "/dev/dri/card1", "/dev/dri/renderD129"]


def test_a_display_node_that_is_not_there_is_left_out(node):
    node.nodes("nvidia0")
    (node.sys / "bus/pci/devices/0000:60:00.0/drm/card1").mkdir(parents=True)
    assert [found.path for found in nodes(node).gpu(full(0).gpu)] == ["/dev/nvidia0"]


def test_mig_capabilities_by_their_nodes(node):
    node.nodes("nvidia1", "nvidia-caps/nvidia-cap75", "nvidia-caps/nvidia-cap76")
    node.mig_minors(MINORS)
    found = nodes(node).mig(mig(1, 0))
    assert [one.path for one in found] == [
        "/dev/nvidia1",
        "/dev/nvidia-caps/nvidia-cap75",
        "/dev/nvidia-caps/nvidia-cap76",
    ]
    assert found[1].host_path == "/host/dev/nvidia-caps/nvidia-cap75"


def test_mig_capabilities_by_number_where_nobody_made_their_nodes(node):
    node.nodes("nvidia1")
    node.mig_minors(MINORS)
    found = nodes(node).mig(mig(1, 0))[1:]
    assert [one.encode() for one in found] == [
        {
            "path": f"/dev/nvidia-caps/nvidia-cap{minor}",
            "type": "c",
            "major": 506,
            "minor": minor,
            "fileMode": 0o444,
            "permissions": "rw",
        }
        for minor in (75, 76)
    ]


@pytest.mark.parametrize(
    ("minors", "major", "message"),
    [
        ("", 506, r"does not list gpu1/gi7/access"),
        ("gpu1/gi7/access 75\n", 506, r"does not list gpu1/gi7/ci0/access"),
        ("gpu1/gi7/access many\n", 506, r"does not list gpu1/gi7/access"),
        (MINORS, None, r"nvidia-cap75 is not there \(yet\), and .*/devices does not list nvidia-caps"),
    ],
)
def test_C2_mig_capabilities_that_are_not_there(node, minors, major, message):
    node.nodes("nvidia1")
    node.mig_minors(minors, major=major)
    with pytest.raises(DeviceNotReadyError, match=message):
        nodes(node).mig(mig(1, 0))


def test_C2_mig_without_its_parents_node(node):
    node.mig_minors(MINORS)
    with pytest.raises(DeviceNotReadyError, match="/host/dev/nvidia1 is not there"):
        nodes(node).mig(mig(1, 0))


def test_common_nodes_where_present(node):
    node.nodes("nvidiactl", "nvidia-uvm", "nvidia-modeset")
    assert [found.path for found in nodes(node).common()] == [
        "/dev/nvidiactl",
        "/dev/nvidia-uvm",
        "/dev/nvidia-modeset",
    ]


def test_common_uvm_nodes_by_number_where_only_the_module_is_loaded(node):
    node.nodes("nvidiactl")
    node.devices("511 nvidia-uvm\n")
    found = {one.path: (one.major, one.minor, one.host_path) for one in nodes(node).common()[1:]}
    assert found == {"/dev/nvidia-uvm": (511, 0, ""), "/dev/nvidia-uvm-tools": (511, 1, "")}


def test_C2_no_control_node_no_answer(node):
    node.nodes("nvidia0")
    with pytest.raises(DeviceNotReadyError, match="/host/dev/nvidiactl"):
        nodes(node).common()


def test_a_block_device_of_the_same_name_is_not_meant(node):
    node.nodes("nvidiactl")
    node.devices("195 nvidia\n")
    assert len(nodes(node).common()) == 1
