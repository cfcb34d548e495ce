"""nvidia-smi as it is, missing, failing, hanging: what the claim's author gets to read."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

import pytest

from driver.errors import DeviceNotReadyError, GpuLostError, GpuToolError, PermanentError, SettingNotSupportedError
from driver.sharing.compute_mode import ComputeModes
from driver.sharing.nvidia_smi import NvidiaSmi
from driver.sharing.timeslice import TimeSlices, parse_level
from tests.unit.sharing.conftest import GPU, OTHER

if TYPE_CHECKING:
    from tests.fakes.install import FakeDriver


async def test_a_time_slice_is_set_read_and_restored(driver: FakeDriver) -> None:
    slices = TimeSlices(NvidiaSmi(driver.tools()))
    found = await slices.get(GPU)
    await slices.set(GPU, 3)
    assert (found, await slices.get(GPU), await slices.get(OTHER)) == (0, 3, 0)
    await slices.set(GPU, found or 0)
    assert await slices.get(GPU) == 0
    assert driver.calls()[1]["argv"] == ["compute-policy", "-i", GPU, "--set-timeslice", "3"]


async def test_M8_the_compute_mode_is_set_read_and_restored(driver: FakeDriver) -> None:
    modes = ComputeModes(NvidiaSmi(driver.tools()))
    await modes.set(GPU, "PROHIBITED")
    found = await modes.get(GPU)
    await modes.set(GPU, "EXCLUSIVE_PROCESS")
    assert (found, await modes.get(GPU), await modes.get(OTHER)) == ("PROHIBITED", "EXCLUSIVE_PROCESS", "DEFAULT")
    await modes.set(GPU, found)
    assert await modes.get(GPU) == "PROHIBITED"


@pytest.mark.parametrize("warn", [False, True])
async def test_M7_what_a_gpu_does_not_support_is_permanent(driver: FakeDriver, warn: bool) -> None:
    driver.control(nvidia_smi={"unsupported": [GPU], "warn": warn})
    slices = TimeSlices(NvidiaSmi(driver.tools()))
    with pytest.raises(SettingNotSupportedError, match=rf"GPU {GPU}: nvidia-smi compute-policy .* not supported"):
        await slices.set(GPU, 1)
    with pytest.raises(SettingNotSupportedError):
        await slices.get(GPU)
    assert await slices.get(OTHER) == 0


async def test_a_failure_says_gpu_command_status_and_last_words(driver: FakeDriver) -> None:
    driver.control(nvidia_smi={"status": 9, "say": "first\nNVIDIA-SMI has failed\n\n"})
    with pytest.raises(
        GpuToolError, match=rf"GPU {GPU}: nvidia-smi -i {GPU} -c DEFAULT: exit status 9: NVIDIA-SMI has"
    ):
        await ComputeModes(NvidiaSmi(driver.tools())).set(GPU, "DEFAULT")


@pytest.mark.parametrize(("status", "say"), [(4, ""), (1, "Insufficient Permissions")])
async def test_a_lack_of_permission_is_permanent(driver: FakeDriver, status: int, say: str) -> None:
    driver.control(nvidia_smi={"status": status, "say": say})
    with pytest.raises(PermanentError, match="not permitted"):
        await TimeSlices(NvidiaSmi(driver.tools())).set(GPU, 1)


@pytest.mark.parametrize("status", [6, 15])
async def test_a_gpu_that_is_not_there_any_more_is_lost(driver: FakeDriver, status: int) -> None:
    driver.control(nvidia_smi={"status": status, "say": "No devices were found"})
    with pytest.raises(GpuLostError, match=rf"GPU {GPU}: .* is not there any more: No devices were found"):
        await TimeSlices(NvidiaSmi(driver.tools())).set(GPU, 1)


async def test_a_missing_tool_may_come(driver: FakeDriver) -> None:
    driver.uninstall()
    run = NvidiaSmi(driver.tools())
    with pytest.raises(DeviceNotReadyError, match=f"no nvidia-smi under the driver root {driver.root}"):
        await run(GPU, "-L")


async def test_one_that_can_not_be_executed_is_an_error(driver: FakeDriver) -> None:
    (driver.bin / "nvidia-smi").write_text("#!/no/such/interpreter\n")
    with pytest.raises(GpuToolError, match="cannot run nvidia-smi"):
        await NvidiaSmi(driver.tools())(GPU, "-L")


async def test_a_hanging_one_is_killed_with_its_children(driver: FakeDriver) -> None:
    script = driver.bin / "nvidia-smi"
    script.write_text(f"#!/bin/sh\nsleep 600 &\necho $$ $! >{driver.state}/pids\nwait\n")
    with pytest.raises(GpuToolError, match=r"did not end within 0\.5 s and was killed"):
        await NvidiaSmi(driver.tools(), limit=0.5)(GPU, "-L")
    leader, child = (int(pid) for pid in (driver.state / "pids").read_text().split())
    assert not _runs(leader)
    async with asyncio.timeout(20):
        while _runs(child):  # it has no parent of ours to reap it
            await asyncio.sleep(0.01)


def _runs(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as stream:
            return stream.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


async def test_a_cancelled_call_leaves_no_process(driver: FakeDriver) -> None:
    script = driver.bin / "nvidia-smi"
    script.write_text(f"#!/bin/sh\necho $$ >{driver.state}/pid\nexec sleep 600\n")
    task = asyncio.create_task(NvidiaSmi(driver.tools())(GPU, "-L"))
    async with asyncio.timeout(20):
        while not (driver.state / "pid").exists() or not (driver.state / "pid").read_text():
            await asyncio.sleep(0.01)
        pid = int((driver.state / "pid").read_text())
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        while os.path.exists(f"/proc/{pid}"):  # reaped, too
            await asyncio.sleep(0.01)


async def test_calls_do_not_wait_for_each_other(driver: FakeDriver) -> None:
    run = NvidiaSmi(driver.tools())
    await asyncio.gather(*(TimeSlices(run).get(GPU) for _ in range(8)))
    assert len(driver.calls()) == 8


@pytest.mark.parametrize("uuid", ["", "0", "GPU-0;rm", "-i", "GPU-\n"])
async def test_only_a_uuid_becomes_an_argument(driver: FakeDriver, uuid: str) -> None:
    with pytest.raises(GpuToolError, match="no GPU's UUID"):
        await NvidiaSmi(driver.tools())(uuid, "-L")
    assert driver.calls() == []


@pytest.mark.parametrize(
    ("text", "level"),
    [
        ("|   0     Timeslice       Default     |", 0),
        ("|   0     Timeslice       Short       |", 1),
        ("|   0     timeslice       MEDIUM      |", 2),
        ("GPU  0: Timeslice: Long", 3),
        ("Timeslice 2", 2),
        ("| 0  Timeslice  Long |\n| 1  Timeslice  Long |", 3),
        ("| 0  Timeslice  Long |\n| 1  Timeslice  Short |", None),
        ("| 0  Preemption  Default |", None),
        ("Timeslice  Eternal", None),
        ("", None),
    ],
)
def test_the_list_is_read_with_care(text: str, level: int | None) -> None:
    assert parse_level(text) == level


@pytest.mark.parametrize(
    ("say", "error"), [("[N/A]", SettingNotSupportedError), ("Sometimes", GpuToolError), ("", GpuToolError)]
)
async def test_an_answer_that_is_no_mode(driver: FakeDriver, say: str, error: type[Exception]) -> None:
    (driver.bin / "nvidia-smi").write_text(f"#!/bin/sh\necho '{say}'\n")
    with pytest.raises(error):
        await ComputeModes(NvidiaSmi(driver.tools())).get(GPU)


async def test_values_that_there_are_not_are_not_asked_for(driver: FakeDriver) -> None:
    with pytest.raises(PermanentError, match="0 to 3"):
        await TimeSlices(NvidiaSmi(driver.tools())).set(GPU, 4)
    with pytest.raises(PermanentError, match="one of DEFAULT"):
        await ComputeModes(NvidiaSmi(driver.tools())).set(GPU, "exclusive")
    assert driver.calls() == []
