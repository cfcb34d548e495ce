from __future__ import annotations

from pathlib import Path

import pytest

from driver.cdi.edits import NvidiaEdits
from driver.cdi.spec import claim_spec
from driver.errors import DeviceNotReadyError
from driver.model import names
from tests.unit.cdi.driver_root import VERSION, DriverRoot
from tests.unit.cdi.gpus import full, mig, partition

UID = "3f0c5a2e-11aa-4b0a-9d7e-0a1b2c3d4e5f"


@pytest.fixture
def node(tmp_path):
    return DriverRoot(tmp_path).install().load().nodes()


def edits(node, **kwargs) -> NvidiaEdits:
    kwargs.setdefault("host_driver_root", Path("/run/nvidia/driver"))
    return NvidiaEdits(node.root, proc_root=node.proc, sys_root=node.sys, **kwargs)


def test_a_claim_of_real_devices_is_a_spec_that_the_runtime_takes(node):
    node.file("usr/bin/nvidia-cdi-hook", b"create-symlinks update-ldcache")
    node.file("run/nvidia-persistenced/socket")
    node.mig_minors("gpu1/gi7/access 75\ngpu1/gi7/ci0/access 76\n")
    source = edits(node)
    devices = {names.cdi_device(UID, one.name): source.device(one) for one in (full(0), mig(1, 2))}
    spec = claim_spec(UID, common=source.common(), devices=devices)
    assert spec["cdiVersion"] == "0.5.0"
    common = spec["containerEdits"]
    assert common["env"] == ["NVIDIA_VISIBLE_DEVICES=void"]
    assert [one["path"] for one in common["deviceNodes"]] == ["/dev/nvidiactl", "/dev/nvidia-uvm"]
    assert [one["args"][1] for one in common["hooks"]] == ["create-symlinks", "update-ldcache"]
    assert common["mounts"][-1] == {
        "hostPath": "/run/nvidia/driver/run/nvidia-persistenced/socket",
        "containerPath": "/run/nvidia-persistenced/socket",
        "options": ["ro", "nosuid", "nodev", "rbind", "rprivate", "noexec"],
    }


def test_without_a_toolkit_the_libraries_come_under_their_further_names_too(node):
    common = edits(node).common()
    assert common.hooks == ()
    by_target = {mount.container_path: mount.host_path for mount in common.mounts}
    assert by_target["/usr/lib64/libcuda.so.1"] == f"/run/nvidia/driver/usr/lib64/libcuda.so.{VERSION}"


def test_nodes_may_be_under_another_root(node, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    source = edits(node, dev_root=other, host_dev_root=Path("/"))
    with pytest.raises(DeviceNotReadyError, match=r"node /dev/nvidiactl is not there"):
        source.common()
    (node.root / "dev").rename(other / "dev")
    assert source.device(full(0)).device_nodes[0].host_path == "/dev/nvidia0"
    assert source.common().mounts[0].host_path.startswith("/run/nvidia/driver/")


def test_a_partition_that_was_not_made_is_not_ready(node):
    with pytest.raises(DeviceNotReadyError, match="gpu-1-mig-1g10gb-19-2: the MIG device was not made yet"):
        edits(node).device(partition(1, 2))


def test_C2_nothing_is_cached_of_a_driver_that_is_not_there(tmp_path):
    node = DriverRoot(tmp_path)
    source = edits(node)
    with pytest.raises(DeviceNotReadyError, match="nvidiactl"):
        source.common()
    node.nodes("nvidiactl")
    with pytest.raises(DeviceNotReadyError, match="no GPU driver libraries"):
        source.common()
    node.install()
    assert source.common().mounts
    with pytest.raises(DeviceNotReadyError, match="nvidia0"):
        source.device(full(0))
    node.nodes("nvidia0")
    assert source.device(full(0)).device_nodes


def test_C2_what_is_still_being_installed_is_not_cached(node):
    source = edits(node)
    source.common()
    node.file(f"usr/lib64/libnvcuvid.so.{VERSION}")
    assert any("libnvcuvid" in mount.container_path for mount in source.common().mounts)


def test_a_search_is_not_repeated_while_nothing_changes(node, caplog):
    node.settle()
    source = edits(node)
    with caplog.at_level("INFO"):
        first = source.common()
        for _ in range(3):
            assert source.common() == first
    assert caplog.text.count("found GPU driver") == 1


@pytest.mark.parametrize("change", ["library", "upgrade", "hook", "firmware", "program", "gone"])
def test_a_change_is_seen_at_the_next_call(node, change):
    node.settle()
    source = edits(node)
    before = source.common()
    match change:
        case "library":
            node.file(f"usr/lib64/libnvcuvid.so.{VERSION}")
        case "upgrade":
            node.install("590.1").load("590.1")
        case "hook":
            node.file("usr/local/nvidia/toolkit/nvidia-cdi-hook", b"update-ldcache")
        case "firmware":
            node.file(f"lib/firmware/nvidia/{VERSION}/gsp_tu10x.bin")
        case "program":
            node.file("usr/bin/nvidia-cuda-mps-server")
        case "gone":
            (node.root / f"usr/lib64/libcuda.so.{VERSION}").unlink()
            with pytest.raises(DeviceNotReadyError, match="lacks libcuda"):
                source.common()
            return
    assert source.common() != before


def test_C2_a_node_that_vanishes_is_noticed_though_the_files_are_cached(node):
    node.settle()
    source = edits(node)
    source.common()
    (node.root / "dev/nvidiactl").unlink()
    with pytest.raises(DeviceNotReadyError, match="nvidiactl"):
        source.common()
