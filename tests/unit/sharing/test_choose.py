"""What the settings make of sharing."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from driver.errors import InvalidValueError
from driver.inventory.driver_root import DriverRoot
from driver.kube.client import KubeClient
from driver.kube.config import ClusterConfig
from driver.settings import load_settings
from driver.sharing.choose import Sharing, make_sharing
from driver.sharing.fake import FakeMps
from driver.sharing.mps import MpsDaemons
from driver.sharing.mps_pod import MpsPods
from tests.unit.sharing.conftest import GPU

if TYPE_CHECKING:
    from tests.fakes.install import FakeDriver


CLUSTER = ClusterConfig(server="https://localhost:1")


def make(root: Path, **flags: str) -> Sharing:
    settings = load_settings({"node_name": "n1", "state_dir": str(root / "state"), **flags}, {})
    return make_sharing(settings, DriverRoot(settings.driver_root), "boot", KubeClient(CLUSTER))


def test_fake_gpus_have_fake_sharing(tmp_path: Path) -> None:
    assert isinstance(make(tmp_path, gpus="h100").mps, FakeMps)


def test_real_ones_have_daemons_below_the_state_directory(short_tmp: Path) -> None:
    mps = make(short_tmp).mps
    assert isinstance(mps, MpsDaemons)
    pipe, shm = mps.edits("uid").mounts
    assert (pipe.host_path, shm.host_path) == (f"{short_tmp}/state/mps/uid/p", "/dev/shm/gpu-dra/uid")


def test_daemons_may_be_pods(short_tmp: Path) -> None:
    mps = make(short_tmp, mps="pod", driver_root="/host").mps
    assert isinstance(mps, MpsPods)
    pipe, shm = mps.edits("uid").mounts
    assert (pipe.host_path, shm.host_path) == (f"{short_tmp}/state/mps/uid/p", "/dev/shm/gpu-dra/uid")
    assert isinstance(make(short_tmp, mps="pod", gpus="h100").mps, FakeMps)


def test_pods_need_a_driver_root_that_can_be_mounted(tmp_path: Path) -> None:
    with pytest.raises(InvalidValueError, match="pods find the driver by --driver-root"):
        make(tmp_path, mps="pod")


@pytest.mark.parametrize("gpus", ["", "h100"])
def test_mps_can_be_switched_off(tmp_path: Path, gpus: str) -> None:
    assert make(tmp_path, mps="off", gpus=gpus).mps is None


async def test_a_setting_names_nvidia_smi(tmp_path: Path, driver: FakeDriver) -> None:
    sharing = make(tmp_path, nvidia_smi=str(driver.bin / "nvidia-smi"))
    await sharing.time_slices.set(GPU, 1)
    await sharing.compute_modes.set(GPU, "PROHIBITED")
    assert len(driver.calls()) == 2


async def test_fake_gpus_use_the_tools_that_a_setting_names(tmp_path: Path, driver: FakeDriver) -> None:
    sharing = make(tmp_path, gpus="h100", nvidia_smi=str(driver.bin / "nvidia-smi"))
    await sharing.compute_modes.set(GPU, "PROHIBITED")
    assert len(driver.calls()) == 1
    assert isinstance(sharing.mps, FakeMps)
    control = str(driver.bin / "nvidia-cuda-mps-control")
    sharing = make(tmp_path, gpus="h100", mps_control=control)
    await sharing.compute_modes.set(GPU, "PROHIBITED")
    assert len(driver.calls()) == 1
    assert isinstance(sharing.mps, MpsDaemons)
    assert make(tmp_path, gpus="h100", mps="off", mps_control=control).mps is None


def test_a_claims_and_a_gpus_daemon_fit_below_the_usual_state_directory() -> None:
    mps = make(Path("/"), state_dir="").mps
    assert mps is not None
    for name in ("0a5b2c3d-1111-4222-8333-444455556666", GPU):
        mps.edits(name)
