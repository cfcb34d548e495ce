"""From a claim's parameters to what MPS reads."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from driver.config.parameters import Mps
from driver.errors import InvalidValueError
from driver.sharing.base import MpsSpec
from driver.sharing.daemons import tag_of
from driver.sharing.limits import client_env, control_commands, mps_spec, whole_mib
from tests.unit.sharing.conftest import GPU, OTHER

MI = 1 << 20


@pytest.mark.parametrize(
    ("size", "rendered"),
    [
        (MI, "1M"),
        (MI + 1, "1M"),
        (2 * MI - 1, "1M"),
        (10 * 1024 * MI, "10240M"),
        (10_000_000_000, "9536M"),  # 10G, not 10Gi
        (143771 * MI, "143771M"),
    ],
)
def test_limits_are_whole_mib_rounded_down(size: int, rendered: str) -> None:
    assert whole_mib(size) == rendered


@pytest.mark.parametrize("size", [0, 1, MI - 1, -MI])
def test_a_limit_that_would_be_none_is_refused(size: int) -> None:
    with pytest.raises(InvalidValueError, match="at least 1Mi"):
        whole_mib(size)


@pytest.mark.parametrize(
    ("limit", "by_device", "expected"),
    [
        (None, {}, {}),
        (MI, {}, {GPU: MI, OTHER: MI}),
        (MI, {"1": 2 * MI}, {GPU: MI, OTHER: 2 * MI}),
        (None, {"0": 3 * MI}, {GPU: 3 * MI}),
        (MI, {OTHER: 2 * MI, "0": 4 * MI}, {GPU: 4 * MI, OTHER: 2 * MI}),
    ],
)
def test_limits_by_device(limit: int | None, by_device: dict[str, int], expected: dict[str, int]) -> None:
    spec = mps_spec(Mps(memory_limit=limit, memory_limit_by_device=by_device), [GPU, OTHER])
    assert dict(spec.memory_limits) == expected
    assert spec.devices == (GPU, OTHER)


@pytest.mark.parametrize(
    ("by_device", "message"),
    [
        ({"2": MI}, r"x\.defaultPerDevicePinnedMemoryLimit\[2\].*an index below 2"),
        ({"GPU-33333333-3333-4333-8333-333333333333": MI}, "an index below 2 or one of GPU-1111"),
        ({"0": MI, GPU: 2 * MI}, "names the same device as key '0'"),
    ],
)
def test_a_limit_for_no_device_or_twice_for_one_is_refused(by_device: dict[str, int], message: str) -> None:
    with pytest.raises(InvalidValueError, match=message):
        mps_spec(Mps(memory_limit_by_device=by_device), [GPU, OTHER], "x")


def test_commands_name_devices_by_uuid() -> None:
    spec = MpsSpec(devices=(GPU, OTHER), active_thread_percentage=0, memory_limits={OTHER: 512 * MI})
    assert control_commands(spec) == (
        "set_default_active_thread_percentage 0",
        f"set_default_device_pinned_mem_limit {OTHER} 512M",
    )
    assert control_commands(MpsSpec(devices=(GPU,))) == ()


def test_the_environment_of_a_share() -> None:
    assert client_env(None) == {}
    assert client_env(20 * MI + 5, 30) == {
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=20M",
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "30",
    }


@pytest.mark.parametrize(
    "change",
    [{"devices": (GPU,)}, {"active_thread_percentage": 6}, {"memory_limits": {GPU: 2 * MI}}, {"multi_user": False}],
)
def test_a_change_of_any_setting_makes_another_daemon(change: dict[str, Any]) -> None:
    spec = MpsSpec(devices=(GPU, OTHER), active_thread_percentage=5, memory_limits={GPU: MI}, multi_user=True)
    assert tag_of(spec) != tag_of(replace(spec, **change))
