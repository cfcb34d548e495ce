"""Health as NVML tells it: what each query becomes, what an unsupported and a failing one cost."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from driver.errors import InventoryError
from driver.model.health_facts import Fabric, HealthReport, Recovery
from tests.nvml.inventories import LIMIT, read_again

if TYPE_CHECKING:
    from driver.inventory.nvml import NvmlInventory
    from tests.nvml.fake_nvml import FakeNvml

NOT_SUPPORTED, INVALID, GPU_IS_LOST, RESET_REQUIRED, UNKNOWN, UNINITIALIZED = 3, 2, 15, 16, 999, 1
WELL = HealthReport(
    recovery=Recovery.NONE,
    remap_pending=False,
    remap_failed=False,
    ecc_uncorrected=0,
    fabric=Fabric.READY,
    nvlink_active=18,
    nvlink_errors=0,
    temperature=40,
    margin=50,
)


async def checked(nvml: FakeNvml, inventory: NvmlInventory, *lines: str, gpus: str = "h100:2") -> HealthReport:
    """The report on the second GPU; the first must be well."""
    nvml.install(gpus).control(*lines)
    reports = await inventory.health_facts()
    first, second = (reports[gpu.uuid] for gpu in nvml.gpus)
    if gpus == "h100:2":
        assert first == WELL
    return second


async def test_well_gpus(nvml: FakeNvml, inventory: NvmlInventory) -> None:
    assert await checked(nvml, inventory) == WELL


@pytest.mark.parametrize(
    ("line", "change"),
    [
        ("remap_pending 1", {"remap_pending": True}),
        ("remap_failed 1", {"remap_failed": True}),
        ("ecc 3", {"ecc_uncorrected": 3}),
        ("temperature 93", {"temperature": 93, "margin": -3}),
        ("margin 7", {"margin": 7}),
        ("nvlink_recoveries 2", {"nvlink_errors": 36}),
        ("nvlink_replays 1", {"nvlink_errors": 18}),
        ("fabric_state 2", {"fabric": Fabric.NOT_READY}),
        ("fabric_state 1", {"fabric": Fabric.NOT_READY}),
        ("fabric_state 0", {"fabric": None}),
        ("fabric_status 999", {"fabric": Fabric.FAILED}),
        (f"fabric_health {1 << 0}", {"fabric": Fabric.DEGRADED}),
        (f"fabric_health {2 << 0}", {}),
        (f"fabric_health {1 << 2}", {"fabric": Fabric.FAILED}),
        (f"fabric_health {1 << 4}", {"fabric": Fabric.FAILED}),
        (f"fabric_health {1 << 6}", {"fabric": Fabric.FAILED}),
        *((f"recovery {number}", {"recovery": action}) for number, action in enumerate(Recovery)),
        ("recovery 99", {"recovery": Recovery.RESET}),
        (f"recovery_result {NOT_SUPPORTED}", {"recovery": None}),
        (f"recovery_result {INVALID}", {"recovery": None}),
        (f"recovery_result {UNKNOWN}", {"recovery": None, "failed": ("recovery",)}),
        (f"recovery_result {RESET_REQUIRED}", {"recovery": Recovery.RESET}),
    ],
)
async def test_what_a_check_finds(nvml: FakeNvml, inventory: NvmlInventory, line: str, change: dict[str, Any]) -> None:
    assert await checked(nvml, inventory, f"set 1 {line}") == replace(WELL, **change)


QUERIES: list[tuple[str, dict[str, Any]]] = [
    ("nvmlDeviceGetRemappedRows", {"remap_pending": None, "remap_failed": None}),
    ("nvmlDeviceGetTotalEccErrors", {"ecc_uncorrected": None}),
    ("nvmlDeviceGetTemperatureV", {}),  # the older query answers
    ("nvmlDeviceGetMarginTemperature", {}),  # the threshold tells
    ("nvmlDeviceGetNvLinkErrorCounter", {"nvlink_errors": None}),
    ("nvmlDeviceGetNvLinkState", {"nvlink_active": None, "nvlink_errors": None}),
    ("nvmlDeviceGetGpuFabricInfoV", {"fabric": None}),
    ("nvmlDeviceGetFieldValues", {"recovery": None}),
]


@pytest.mark.parametrize(("function", "lost"), QUERIES)
async def test_an_unsupported_query_costs_its_fact(
    nvml: FakeNvml, inventory: NvmlInventory, function: str, lost: dict[str, Any]
) -> None:
    assert await checked(nvml, inventory, f"fail {function} {NOT_SUPPORTED} 1") == replace(WELL, **lost)


@pytest.mark.parametrize(("function", "lost"), QUERIES)
async def test_a_symbol_that_the_library_lacks_costs_its_fact(
    nvml: FakeNvml, inventory: NvmlInventory, function: str, lost: dict[str, Any]
) -> None:
    nvml.install("h100:2", without=(function,))
    assert await inventory.health_facts() == {gpu.uuid: replace(WELL, **lost) for gpu in nvml.gpus}


@pytest.mark.parametrize(
    ("function", "failed"),
    [
        ("nvmlDeviceGetRemappedRows", ("remap_pending", "remap_failed")),
        ("nvmlDeviceGetTotalEccErrors", ("ecc_uncorrected",)),
        ("nvmlDeviceGetTemperatureV", ("temperature", "margin")),
        ("nvmlDeviceGetMarginTemperature", ("temperature", "margin")),
        ("nvmlDeviceGetNvLinkErrorCounter", ("nvlink_errors",)),
        ("nvmlDeviceGetGpuFabricInfoV", ("fabric",)),
        ("nvmlDeviceGetFieldValues", ("recovery",)),
    ],
)
@pytest.mark.parametrize("code", [UNKNOWN, GPU_IS_LOST])
async def test_a_failing_query_is_named(
    nvml: FakeNvml, inventory: NvmlInventory, function: str, failed: tuple[str, ...], code: int
) -> None:
    report = await checked(nvml, inventory, f"fail {function} {code} 1")
    assert report == replace(WELL, failed=failed, **dict.fromkeys(failed))


async def test_H2_a_gpu_that_answers_reset_required_needs_one(nvml: FakeNvml, inventory: NvmlInventory) -> None:
    report = await checked(nvml, inventory, f"fail nvmlDeviceGetTotalEccErrors {RESET_REQUIRED} 1")
    assert (report.recovery, report.failed) == (Recovery.RESET, ("ecc_uncorrected",))


async def test_older_boards_retire_pages(nvml: FakeNvml, inventory: NvmlInventory) -> None:
    report = await checked(nvml, inventory, "set 1 retired_pending 1", gpus="t4:2")
    assert report == HealthReport(
        recovery=Recovery.NONE,
        remap_pending=True,
        remap_failed=False,
        ecc_uncorrected=0,
        temperature=40,
        margin=50,
    )


async def test_H5_a_lost_gpu_has_no_report_and_disturbs_no_other(nvml: FakeNvml, inventory: NvmlInventory) -> None:
    nvml.install("h100:3").control(f"fail * {GPU_IS_LOST} 1")
    assert await inventory.health_facts() == {nvml.gpus[0].uuid: WELL, nvml.gpus[2].uuid: WELL}


async def test_a_session_that_ended_is_an_error(nvml: FakeNvml, inventory: NvmlInventory) -> None:
    nvml.install("h100:2").control(f"fail nvmlDeviceGetTotalEccErrors {UNINITIALIZED} * 1")
    with pytest.raises(InventoryError, match="ended in a health check"):
        await inventory.health_facts()
    assert len(await inventory.health_facts()) == 2


async def test_H4_whether_it_is_monitored_is_not_known_before_it_listens(
    nvml: FakeNvml, inventory: NvmlInventory
) -> None:
    nvml.install("l4")
    await inventory.read()
    assert inventory.monitored is None


async def test_H8_a_query_that_hangs_ends_in_time_and_is_asked_again_once_it_came_back(
    nvml: FakeNvml, open_inventory: Any
) -> None:
    nvml.install("l4:2")
    inventory = open_inventory(time_limit=LIMIT)
    await read_again(inventory)
    nvml.control("hang nvmlDeviceGetTotalEccErrors 1")
    with pytest.raises(InventoryError, match="checking the GPUs' health"):
        await inventory.health_facts()
    with pytest.raises(InventoryError, match="stuck"):
        await inventory.health_facts()
    nvml.control()
    async with asyncio.timeout(20):
        while True:
            with contextlib.suppress(InventoryError):
                assert len(await inventory.health_facts()) == 2
                break
            await asyncio.sleep(0.01)
