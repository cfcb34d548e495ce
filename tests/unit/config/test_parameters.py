from __future__ import annotations

from typing import Any

import pytest

from driver.config.parameters import GpuConfig, Interval, MigDeviceConfig, Mps, TimeSlicing, decode
from driver.errors import InvalidValueError

API = "resource.nvidia.com/v1beta1"


def gpu(sharing: Any = None) -> dict[str, Any]:
    return {"apiVersion": API, "kind": "GpuConfig"} | ({} if sharing is None else {"sharing": sharing})


def mig(sharing: Any = None) -> dict[str, Any]:
    return gpu(sharing) | {"kind": "MigDeviceConfig"}


def slicing(config: Any) -> dict[str, Any]:
    return {"strategy": "TimeSlicing", "timeSlicingConfig": config}


def mps(**config: Any) -> dict[str, Any]:
    return {"strategy": "MPS", "mpsConfig": config}


DECODES: list[tuple[dict[str, Any], Any]] = [
    (gpu(), GpuConfig()),
    (mig(), MigDeviceConfig()),
    (gpu({"strategy": "TimeSlicing"}), GpuConfig(sharing=TimeSlicing(interval=Interval.DEFAULT))),
    # The peer's plugin crashes on this one.
    (
        gpu(slicing({})),
        GpuConfig(sharing=TimeSlicing(interval=Interval.DEFAULT)),
    ),
    (
        gpu(slicing({"interval": "Long"})),
        GpuConfig(sharing=TimeSlicing(interval=Interval.LONG)),
    ),
    (mig({"strategy": "TimeSlicing"}), MigDeviceConfig(sharing=TimeSlicing())),
    (gpu({"strategy": "MPS"}), GpuConfig(sharing=Mps())),
    (gpu(mps()), GpuConfig(sharing=Mps())),
    (
        mig(
            mps(
                defaultActiveThreadPercentage=50,
                defaultPinnedDeviceMemoryLimit="10Gi",
                defaultPerDevicePinnedMemoryLimit={"0": "5Gi", "GPU-5f3c8a1e-0000-4000-8000-abcdef012345": "1500M"},
                multiUser=True,
            )
        ),
        MigDeviceConfig(
            sharing=Mps(
                active_thread_percentage=50,
                memory_limit=10 << 30,
                memory_limit_by_device={"0": 5 << 30, "GPU-5f3c8a1e-0000-4000-8000-abcdef012345": 1500 * 10**6},
                multi_user=True,
            )
        ),
    ),
]
DECODED = [parameters for parameters, _ in DECODES]


@pytest.mark.parametrize(("parameters", "decoded"), DECODES)
def test_decodes_and_normalizes(parameters: dict[str, Any], decoded: Any) -> None:
    assert decode(parameters, "p") == decoded


REFUSALS: list[tuple[dict[str, Any], str]] = [
    ({}, "p.apiVersion"),
    (gpu() | {"apiVersion": "resource.nvidia.com/v1"}, "p.apiVersion"),
    (gpu() | {"kind": "VfioDeviceConfig"}, "p.kind"),
    (gpu() | {"kind": None}, "p.kind"),
    (gpu() | {"sharin": {}}, "p.sharin"),
    (gpu([]), "p.sharing"),
    (gpu({}), "p.sharing.strategy"),
    (gpu({"strategy": "timeslicing"}), "p.sharing.strategy"),
    (gpu({"strategy": "TimeSlicing", "x": 1}), "p.sharing.x"),
    (
        gpu(slicing({"interval": "long"})),
        "p.sharing.timeSlicingConfig.interval",
    ),
    (gpu(slicing({"x": 1})), "p.sharing.timeSlicingConfig.x"),
    (gpu(slicing([])), "p.sharing.timeSlicingConfig"),
    (gpu({"strategy": "TimeSlicing", "mpsConfig": {}}), "p.sharing.mpsConfig"),
    (gpu({"strategy": "MPS", "timeSlicingConfig": {}}), "p.sharing.timeSlicingConfig"),
    (mig(slicing({})), "p.sharing.timeSlicingConfig"),
    (gpu(mps(defaultActiveThreadPercentage=101)), "p.sharing.mpsConfig.defaultActiveThreadPercentage"),
    (gpu(mps(defaultActiveThreadPercentage=-1)), "p.sharing.mpsConfig.defaultActiveThreadPercentage"),
    (gpu(mps(defaultActiveThreadPercentage=True)), "p.sharing.mpsConfig.defaultActiveThreadPercentage"),
    (gpu(mps(defaultActiveThreadPercentage="50")), "p.sharing.mpsConfig.defaultActiveThreadPercentage"),
    (gpu(mps(defaultPinnedDeviceMemoryLimit="1023Ki")), "p.sharing.mpsConfig.defaultPinnedDeviceMemoryLimit"),
    (gpu(mps(defaultPinnedDeviceMemoryLimit="10GiB")), "p.sharing.mpsConfig.defaultPinnedDeviceMemoryLimit"),
    (gpu(mps(defaultPinnedDeviceMemoryLimit=1.5)), "p.sharing.mpsConfig.defaultPinnedDeviceMemoryLimit"),
    (gpu(mps(defaultPerDevicePinnedMemoryLimit=[])), "p.sharing.mpsConfig.defaultPerDevicePinnedMemoryLimit"),
    (
        gpu(mps(defaultPerDevicePinnedMemoryLimit={"gpu-0": "1Gi"})),
        "p.sharing.mpsConfig.defaultPerDevicePinnedMemoryLimit[gpu-0]",
    ),
    (
        gpu(mps(defaultPerDevicePinnedMemoryLimit={"0": "1"})),
        "p.sharing.mpsConfig.defaultPerDevicePinnedMemoryLimit[0]",
    ),
    (gpu(mps(multiUser="yes")), "p.sharing.mpsConfig.multiUser"),
    (gpu(mps(multiuser=True)), "p.sharing.mpsConfig.multiuser"),
]
REFUSED = [parameters for parameters, _ in REFUSALS]


@pytest.mark.parametrize(("parameters", "path"), REFUSALS)
def test_refuses_with_the_fields_path(parameters: dict[str, Any], path: str) -> None:
    with pytest.raises(InvalidValueError) as caught:
        decode(parameters, "p")
    assert caught.value.path == path


def test_intervals_have_nvidia_smis_levels() -> None:
    assert [interval.level for interval in Interval] == [0, 1, 2, 3]
