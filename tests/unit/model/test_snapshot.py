from __future__ import annotations

from driver.model.health import HEALTHY, LOST
from driver.model.snapshot import Snapshot
from tests.unit.claims.helpers import gpus, mig_gpu


def test_a_gpu_in_mig_mode_offers_its_mig_devices_and_not_itself() -> None:
    snapshot = Snapshot(gpus=(*gpus(1), mig_gpu(1, (2, 0)), mig_gpu(2, ())))
    assert [device.name for device in snapshot.devices()] == [
        "gpu-0",
        "gpu-1-mig-1g10gb-19-0",
        "gpu-1-mig-1g10gb-19-2",
    ]


def test_devices_are_found_by_name() -> None:
    snapshot = Snapshot(gpus=gpus(2))
    found = snapshot.device("gpu-1")
    assert found is not None
    assert found.gpu.uuid == "GPU-1"
    assert snapshot.device("gpu-2") is None


def test_a_gpu_is_healthy_unless_said_otherwise() -> None:
    snapshot = Snapshot(gpus=gpus(2), health={"GPU-1": LOST})
    assert snapshot.health_of("GPU-0") is HEALTHY
    assert snapshot.health_of("GPU-1") is LOST
