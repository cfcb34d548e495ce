"""What GPUs and MIG devices do, asked of the fake library through nvidia-ml-py."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from driver.errors import InventoryError
from driver.inventory.nvml_usage import UsageReader
from driver.model.usage import Usage

if TYPE_CHECKING:
    from collections.abc import Callable

    from driver.inventory.nvml import NvmlInventory
    from tests.nvml.fake_nvml import FakeNvml

GI = 1 << 30


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(inventory: NvmlInventory) -> Clock:
    """The clock of the inventory's reader."""
    made = Clock()
    inventory._usage = UsageReader(made)
    return made


async def test_an_idle_gpu(nvml: FakeNvml, inventory: NvmlInventory) -> None:
    nvml.install("h100:1")
    found = await inventory.usage()
    assert [*found] == [nvml.gpus[0].uuid]
    whole = found[nvml.gpus[0].uuid].whole
    assert whole.utilization == 0
    assert whole.memory_total == nvml.gpus[0].memory
    assert whole.memory_used == 0
    assert whole.power == 70.0
    assert whole.temperature == 40
    assert (whole.sm_clock, whole.memory_clock) == (1980, 2619)
    assert whole.pcie_replays == 0
    assert whole.remap_failed is False
    assert found[nvml.gpus[0].uuid].mig == {}


async def test_a_busy_gpu(nvml: FakeNvml, inventory: NvmlInventory) -> None:
    nvml.install("h100:2")
    nvml.control(
        "set 1 load 80", "set 1 used 1024", "set 1 power 512500", "set 1 temperature 66", "set 1 encoder 5",
        "set 1 energy 123456", "set 1 ecc_corrected 3", "set 1 ecc 1", "set 1 memory_temperature 70",
    )  # fmt: skip
    whole = (await inventory.usage())[nvml.gpus[1].uuid].whole
    assert (whole.utilization, whole.copy_utilization, whole.encoder) == (80, 40, 5)
    assert whole.memory_used == GI
    assert whole.memory_total is not None
    assert whole.memory_free == whole.memory_total - GI
    assert whole.power == 512.5
    assert (whole.temperature, whole.memory_temperature) == (66, 70)
    assert whole.energy == 123456
    assert (whole.ecc_corrected, whole.ecc_uncorrected, whole.ecc_corrected_ever) == (3, 1, None)


async def test_traffic_is_what_was_counted_since_the_look_before(
    nvml: FakeNvml, inventory: NvmlInventory, clock: Clock
) -> None:
    nvml.install("l4:1")  # no performance counters before Hopper
    uuid = nvml.gpus[0].uuid
    nvml.control("set 0 pcie_sent 1000", "set 0 nvlink_received 10")
    first = (await inventory.usage())[uuid].whole
    assert (first.pcie_sent, first.nvlink_received) == (None, None)
    clock.now = 10.0
    nvml.control("set 0 pcie_sent 6000", "set 0 nvlink_received 110")
    second = (await inventory.usage())[uuid].whole
    assert second.pcie_sent == 500.0
    assert second.nvlink_received == 10 * 1024
    assert second.pcie_received is None


@pytest.mark.parametrize(("seconds", "count"), [(10.0, 5), (0.0, 6000), (-10.0, 6000)])
async def test_a_counter_or_clock_that_went_back_says_nothing(
    nvml: FakeNvml, inventory: NvmlInventory, clock: Clock, seconds: float, count: int
) -> None:
    nvml.install("l4:1")
    nvml.control("set 0 pcie_sent 1000")
    await inventory.usage()
    clock.now = seconds
    nvml.control(f"set 0 pcie_sent {count}")
    assert (await inventory.usage())[nvml.gpus[0].uuid].whole.pcie_sent is None


async def test_mig_devices_tell_memory_and_load(nvml: FakeNvml, inventory: NvmlInventory) -> None:
    nvml.install("h100@mig=1g.10gb*2+3g.40gb")
    nvml.control("set 0 active 30", "set 0 mig_used 512")
    gpu = nvml.gpus[0]
    assert gpu.mig is not None
    first = (await inventory.usage())[gpu.uuid]
    assert first.whole.utilization is None  # NVML has none while MIG is on
    assert {*first.mig} == {one.uuid for one in gpu.mig.instances}
    assert all(one.utilization is None for one in first.mig.values())  # it takes two samples
    second = (await inventory.usage())[gpu.uuid]
    for instance in gpu.mig.instances:
        part = second.mig[instance.uuid]
        assert part.memory_total == instance.profile.memory
        assert part.memory_used == 512 << 20
        assert part.utilization == pytest.approx(30)
        assert part.graphics_active == pytest.approx(0.3)
        assert part.pcie_sent is None  # of the whole board only
    assert second.whole.graphics_active == pytest.approx(0.3)
    assert second.whole.pcie_sent == 3 << 20


async def test_samples_are_given_back(nvml: FakeNvml, inventory: NvmlInventory) -> None:
    nvml.install("h100:8@mig=1g.10gb*7")
    for _ in range(12):  # 12 · 64 samples, of which the library has 256
        found = await inventory.usage()
    parts = [part for gpu in found.values() for part in gpu.mig.values()]
    assert len(parts) == 56
    assert all(part.graphics_active is not None for part in parts)


async def test_mig_devices_come_and_go(nvml: FakeNvml, inventory: NvmlInventory) -> None:
    nvml.install("h100@mig")
    gpu = (await inventory.read()).gpus[0]
    assert gpu.mig is not None
    profile = next(one for one in gpu.mig.profiles if one.name == "1g.10gb")
    for _ in range(20):
        made = await inventory.create_mig(gpu.uuid, profile.id, profile.placements[0])
        assert [*(await inventory.usage())[gpu.uuid].mig] == [made.uuid]
        await inventory.destroy_mig(gpu.uuid, profile.placements[0])
        assert (await inventory.usage())[gpu.uuid].mig == {}


NVML_UNKNOWN, GPU_IS_LOST, NOT_SUPPORTED, UNINITIALIZED = 999, 15, 3, 1


@pytest.mark.parametrize("code", [NVML_UNKNOWN, NOT_SUPPORTED])
@pytest.mark.parametrize(
    ("function", "lost"),
    [
        ("nvmlDeviceGetUtilizationRates", {"utilization", "copy_utilization"}),
        ("nvmlDeviceGetPowerUsage", {"power"}),
        ("nvmlDeviceGetEncoderUtilization", {"encoder"}),
        ("nvmlDeviceGetFieldValues", {"energy"}),
        ("nvmlDeviceGetRemappedRows", {"rows_corrected", "rows_uncorrected", "remap_failed"}),
        ("nvmlDeviceGetMemoryInfo_v2", {"memory_reserved"}),  # the old call knows the rest
        ("nvmlGpmQueryDeviceSupport", set()),
        ("nvmlGpmSampleGet", set()),
    ],
)
async def test_A4_a_failing_query_costs_its_figures_only(
    nvml: FakeNvml, inventory: NvmlInventory, function: str, lost: set[str], code: int
) -> None:
    nvml.install("h100:1")
    nvml.control("set 0 energy 5")
    uuid = nvml.gpus[0].uuid
    whole = known((await inventory.usage())[uuid].whole)
    nvml.control("set 0 energy 5", f"fail {function} {code} 0")
    broken = known((await inventory.usage())[uuid].whole)
    assert {name for name in whole if name not in broken} == lost


def known(usage: Usage) -> set[str]:
    """What was told, performance counters aside: they need two looks."""
    names = {name for name in Usage.__dataclass_fields__ if getattr(usage, name) is not None}
    return names - {"graphics_active", "pcie_sent"}


async def test_a_board_without_memory_figures(nvml: FakeNvml, inventory: NvmlInventory) -> None:
    nvml.install("h100:1")
    nvml.edit(f"memory {nvml.gpus[0].memory}", "memory 0")
    whole = (await inventory.usage())[nvml.gpus[0].uuid].whole
    assert whole.memory_total is None
    assert whole.power == 70.0


async def test_an_old_library(nvml: FakeNvml, inventory: NvmlInventory) -> None:
    absent = ("nvmlGpmQueryDeviceSupport", "nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetPowerUsage")
    nvml.install("h100:1", without=absent)
    whole = (await inventory.usage())[nvml.gpus[0].uuid].whole
    assert whole.power is None
    assert whole.memory_total == nvml.gpus[0].memory


async def test_H5_a_lost_gpu_costs_itself_only(nvml: FakeNvml, inventory: NvmlInventory) -> None:
    nvml.install("h100:2")
    nvml.control(f"fail * {GPU_IS_LOST} 0")
    found = await inventory.usage()
    assert nvml.gpus[0].uuid not in found
    assert found[nvml.gpus[1].uuid].whole.power == 70.0


async def test_the_end_of_the_session_is_the_end_of_the_look(nvml: FakeNvml, inventory: NvmlInventory) -> None:
    nvml.install("h100:1")
    await inventory.usage()
    nvml.control(f"fail nvmlDeviceGetPowerUsage {UNINITIALIZED} 0 1")
    with pytest.raises(InventoryError, match="NVML ended"):
        await inventory.usage()
    assert (await inventory.usage())[nvml.gpus[0].uuid].whole.graphics_active is None  # samples begin anew
    assert (await inventory.usage())[nvml.gpus[0].uuid].whole.graphics_active is not None


async def test_H8_a_query_that_hangs_ends_in_time(nvml: FakeNvml, open_inventory: Callable[..., NvmlInventory]) -> None:
    nvml.install("h100:1")
    inventory = open_inventory(time_limit=0.2)
    await inventory.usage()
    nvml.control("hang nvmlDeviceGetPowerUsage 0")
    with pytest.raises(InventoryError, match="did not answer"):
        await inventory.usage()
