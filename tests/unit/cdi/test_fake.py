from __future__ import annotations

import stat

import pytest

from driver.cdi.fake import FakeEdits, describe, variable
from driver.cdi.spec import claim_spec, merge
from driver.errors import DeviceNotReadyError
from driver.model import names
from driver.model.snapshot import DriverVersions
from tests.unit.cdi.gpus import full, mig, partition

UID = "3f0c5a2e-11aa-4b0a-9d7e-0a1b2c3d4e5f"


@pytest.fixture
def source(tmp_path):
    return FakeEdits(tmp_path / "plugin", versions=lambda: DriverVersions(driver="580.105.08", cuda="13.0"))


def test_a_container_gets_variables_and_one_mount_but_no_device_nodes(source, tmp_path):
    edits = merge(source.common(), source.device(full(0)))
    assert edits.env["GPU_DRA_DRIVER_VERSION"] == "580.105.08"
    assert edits.env["NVIDIA_VISIBLE_DEVICES"] == "void"
    assert edits.env["GPU_DRA_DEVICE_0"].startswith("index=0;start=;uuid=GPU-00000000-")
    assert [(mount.host_path, mount.container_path) for mount in edits.mounts] == [
        (str(tmp_path / "plugin/nvidia-smi"), "/usr/bin/nvidia-smi")
    ]
    assert not edits.device_nodes


def test_every_device_has_a_variable_of_its_own():
    devices = [full(0), full(1), full(10), mig(2, 0), mig(2, 1), mig(3, 0), full(4, minor=None)]
    variables = [variable(device.name) for device in devices]
    assert len(set(variables)) == len(devices)
    assert variables[0] == "GPU_DRA_DEVICE_0"
    assert variables[3] == "GPU_DRA_DEVICE_2_MIG_1G10GB_19_0"


def test_a_spec_of_fake_devices_is_one_that_the_runtime_takes(source):
    devices = {names.cdi_device(UID, one.name): source.device(one) for one in (full(0), mig(1, 2))}
    spec = claim_spec(UID, common=source.common(), devices=devices)
    assert spec["cdiVersion"] == "0.5.0"


def test_a_partition_that_was_not_made_is_not_ready(source):
    with pytest.raises(DeviceNotReadyError, match="gpu-1-mig-1g10gb-19-2: the MIG device was not made yet"):
        source.device(partition(1, 2))


def test_values_cannot_break_out_of_their_pair():
    device = full(0)
    object.__setattr__(device.gpu, "product", "a;uuid=b\nC=1")
    assert "name=a uuid=b C=1;" in describe(device)


def test_the_host_may_name_the_directory_otherwise(tmp_path):
    source = FakeEdits(tmp_path, host_directory=tmp_path / "on-host")
    assert source.common().mounts[0].host_path == str(tmp_path / "on-host/nvidia-smi")
    assert (tmp_path / "nvidia-smi").is_file()


@pytest.mark.parametrize("harm", ["remove", "empty", "mode", "other", "directory"])
def test_the_script_is_put_back_when_it_was_harmed(source, tmp_path, harm):
    source.common()
    script = tmp_path / "plugin/nvidia-smi"
    good = script.read_bytes()
    match harm:
        case "remove":
            script.unlink()
            script.parent.rmdir()
        case "empty":
            script.write_bytes(b"")
        case "mode":
            script.chmod(0o600)
        case "other":
            script.write_bytes(bytes(len(good)))
        case "directory":  # what a runtime makes where a file to mount is missing
            script.unlink()
            script.mkdir()
    if harm == "directory":
        with pytest.raises(DeviceNotReadyError, match="cannot put the fake nvidia-smi"):
            source.common()
        script.rmdir()
    source.common()
    assert script.read_bytes() == good
    assert stat.S_IMODE(script.stat().st_mode) == 0o755
    assert [path.name for path in script.parent.iterdir()] == ["nvidia-smi"]


def test_the_script_is_not_written_again_where_it_is_right(source, tmp_path):
    source.common()
    before = (tmp_path / "plugin/nvidia-smi").stat()
    FakeEdits(tmp_path / "plugin").common()
    source.common()
    assert (tmp_path / "plugin/nvidia-smi").stat().st_ino == before.st_ino


def test_a_directory_that_cannot_be_made_is_said(tmp_path):
    (tmp_path / "plugin").write_text("")
    with pytest.raises(DeviceNotReadyError, match=f"cannot put the fake nvidia-smi at {tmp_path}/plugin/nvidia-smi"):
        FakeEdits(tmp_path / "plugin").common()
