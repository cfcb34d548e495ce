"""Changing MIG through nvidia-ml-py: what is NVML's own about it. The contract is in tests/unit/inventory."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from driver.errors import DeviceNotReadyError, InventoryError, MigError
from driver.model.mig import Placement
from tests.nvml.inventories import read_again

if TYPE_CHECKING:
    from collections.abc import Callable

    from driver.inventory.nvml import NvmlInventory
    from driver.model.mig import MigState
    from tests.nvml.fake_nvml import FakeNvml

HIGH = Placement(4, 4)
OTHER_PROCESS = """
import ctypes, os, sys
import pynvml as api
api.nvmlLib = ctypes.CDLL(sys.argv[1])
api._nvmlLib_refcount = 0
api.nvmlInit()
gpu = api.nvmlDeviceGetHandleByIndex(0)
place = api.c_nvmlGpuInstancePlacement_t(4, 4)
"""
MAKES_BARE = "api.nvmlDeviceCreateGpuInstanceWithPlacement(gpu, 9, ctypes.byref(place))\nos.kill(os.getpid(), 9)\n"
LISTS = """
for index in range(7):
    try:
        print(api.nvmlDeviceGetUUID(api.nvmlDeviceGetMigDeviceHandleByIndex(gpu, index)))
    except api.NVMLError_NotFound:
        pass
"""


async def other_process(nvml: FakeNvml, program: str) -> subprocess.CompletedProcess[str]:
    """Run a program that uses the same GPUs."""
    arguments = [sys.executable, "-c", OTHER_PROCESS + program, str(nvml.library)]
    return await asyncio.to_thread(subprocess.run, arguments, capture_output=True, text=True, timeout=60)


async def test_M1_a_process_killed_between_gpu_and_compute_instance(nvml: FakeNvml, inventory: NvmlInventory) -> None:
    nvml.install("h100@mig").share()
    uuid = nvml.gpus[0].uuid
    assert (await inventory.mig_state(uuid)).bare == ()
    killed = await other_process(nvml, MAKES_BARE)
    assert killed.returncode == -9, killed.stderr
    assert (await inventory.mig_state(uuid)).bare == (HIGH,)
    with pytest.raises(MigError, match="taken: a GPU instance without a compute instance"):
        await inventory.create_mig(uuid, 9, HIGH)
    assert await inventory.destroy_mig(uuid, HIGH)
    made = await inventory.create_mig(uuid, 9, HIGH)
    seen = await other_process(nvml, LISTS)
    assert seen.stdout.split() == [made.uuid], seen.stderr


async def test_M1_what_was_made_is_there_after_the_library_was_opened_anew(
    nvml: FakeNvml, inventory: NvmlInventory
) -> None:
    nvml.install("h100@mig").share()
    uuid = nvml.gpus[0].uuid
    made = await inventory.create_mig(uuid, 9, HIGH)
    nvml.install()  # a new file: the driver was updated
    assert (await inventory.mig_state(uuid)).instances == (made,)
    assert await inventory.destroy_mig(uuid, HIGH)


@pytest.mark.parametrize(
    "without",
    [
        ("nvmlGpuInstanceGetComputeInstanceProfileInfoV",),
        ("nvmlDeviceGetGpuInstanceProfileInfoV", "nvmlGpuInstanceGetComputeInstanceProfileInfoV"),
    ],
)
async def test_an_older_library(nvml: FakeNvml, inventory: NvmlInventory, without: tuple[str, ...]) -> None:
    nvml.install("h100@mig", without=without)
    uuid = nvml.gpus[0].uuid
    made = await inventory.create_mig(uuid, 15, Placement(6, 2))
    assert (await inventory.mig_state(uuid)).instances == (made,)
    assert await inventory.destroy_mig(uuid, Placement(6, 2))


async def test_all_compute_instances_go_with_their_gpu_instance(nvml: FakeNvml, inventory: NvmlInventory) -> None:
    nvml.install("h100@mig")
    nvml.edit("place 0 8", "place 0 8\ninstance 2 9 4 4 0 0 1 MIG-first\ninstance 2 9 4 4 1 1 2 MIG-second")
    uuid = nvml.gpus[0].uuid
    assert len((await inventory.mig_state(uuid)).instances) == 2
    assert await inventory.destroy_mig(uuid, HIGH)
    state = await inventory.mig_state(uuid)
    assert (state.instances, state.bare) == ((), ())


@pytest.mark.parametrize("settings", [(), ("set 0 ci_tells_parent 1",)])
async def test_the_uuid_of_what_was_made_is_found_whatever_its_compute_instance_tells(
    nvml: FakeNvml, inventory: NvmlInventory, settings: tuple[str, ...]
) -> None:
    nvml.install("h100@mig=3g.40gb")
    uuid = nvml.gpus[0].uuid
    (there,) = (await inventory.mig_state(uuid)).instances
    nvml.control(*settings)
    made = await inventory.create_mig(uuid, 9, HIGH)
    nvml.control()
    assert (await inventory.mig_state(uuid)).instances == (there, made)


UNLISTED = ("set 0 ci_tells_parent 1", "fail nvmlDeviceGetMigDeviceHandleByIndex 6 *")


@pytest.mark.parametrize(
    ("faults", "message"),
    [
        (UNLISTED, "no MIG device has GPU instance 2, compute instance 0"),
        (("fail nvmlGpuInstanceGetComputeInstanceProfileInfoV 3 * 9",), "has no compute instance profile of 3 slices"),
        (("fail nvmlComputeInstanceGetInfo_v2 999 * 1",), "nvmlComputeInstanceGetInfo_v2"),
    ],
)
async def test_M1_any_failure_after_the_gpu_instance_takes_all_back(
    nvml: FakeNvml, inventory: NvmlInventory, faults: tuple[str, ...], message: str
) -> None:
    nvml.install("h100@mig")
    uuid = nvml.gpus[0].uuid
    nvml.control(*faults)
    with pytest.raises(MigError, match=rf"{message}.*; its GPU instance was removed again"):
        await inventory.create_mig(uuid, 9, HIGH)
    nvml.control()
    state = await inventory.mig_state(uuid)
    assert (state.instances, state.bare) == ((), ())


async def test_M1_a_compute_instance_in_use_while_it_is_taken_back(nvml: FakeNvml, inventory: NvmlInventory) -> None:
    nvml.install("h100@mig")
    uuid = nvml.gpus[0].uuid
    nvml.control(*UNLISTED, "fail nvmlComputeInstanceDestroy 19 *")
    with pytest.raises(MigError, match="could not be removed again: nvmlComputeInstanceDestroy"):
        await inventory.create_mig(uuid, 9, HIGH)
    nvml.control()
    assert [one.placement for one in (await inventory.mig_state(uuid)).instances] == [HIGH]
    assert await inventory.destroy_mig(uuid, HIGH)


@pytest.mark.parametrize(
    ("code", "error"), [(19, DeviceNotReadyError), (27, DeviceNotReadyError), (10, DeviceNotReadyError), (23, MigError)]
)
async def test_what_may_pass_is_told_from_what_may_not(
    nvml: FakeNvml, inventory: NvmlInventory, code: int, error: type[Exception]
) -> None:
    nvml.install("h100@mig")
    nvml.control(f"fail nvmlDeviceCreateGpuInstanceWithPlacement {code} *")
    with pytest.raises(error, match=r"creating a MIG device at 4:4 failed: nvmlDeviceCreateGpuInstanceWithPlacement"):
        await inventory.create_mig(nvml.gpus[0].uuid, 9, HIGH)


async def test_without_permission_the_error_says_what_to_do(nvml: FakeNvml, inventory: NvmlInventory) -> None:
    nvml.install("h100@mig")
    nvml.control("fail nvmlDeviceCreateGpuInstanceWithPlacement 4 *")
    with pytest.raises(MigError, match="run as root"):
        await inventory.create_mig(nvml.gpus[0].uuid, 9, HIGH)


async def test_an_unreadable_list_of_gpu_instances_costs_no_static_device(
    nvml: FakeNvml, inventory: NvmlInventory
) -> None:
    nvml.install("h100@mig=3g.40gb").control("fail nvmlDeviceGetGpuInstances 4 *")
    reading = await inventory.read()
    mig = reading.gpus[0].mig
    assert mig is not None
    assert len(mig.instances) == 1
    assert "nvmlDeviceGetGpuInstances" in reading.problems[0].message


async def test_M2_a_hopper_that_needs_a_reset_after_all(nvml: FakeNvml, inventory: NvmlInventory) -> None:
    """In a virtual machine NVML may not activate the mode, whatever the architecture (NVML API reference)."""
    nvml.install("h100").edit("mig 0 0 1", "mig 0 0 0")
    uuid = nvml.gpus[0].uuid
    with pytest.raises(MigError, match="needs a GPU reset"):
        await inventory.set_mig_mode(uuid, True)
    state = await inventory.mig_state(uuid)
    assert (state.enabled, state.pending) == (False, False)


@pytest.mark.parametrize("fault", ["fail nvmlDeviceSetMigMode 19 *", "fail activation 19 *"])
async def test_M2_a_gpu_in_use_keeps_its_mode(nvml: FakeNvml, inventory: NvmlInventory, fault: str) -> None:
    nvml.install("h100").control(fault)
    uuid = nvml.gpus[0].uuid
    with pytest.raises(DeviceNotReadyError, match="switching MIG mode on failed: nvmlDeviceSetMigMode"):
        await inventory.set_mig_mode(uuid, True)
    state = await inventory.mig_state(uuid)
    assert (state.enabled, state.pending) == (False, False)


async def test_an_ended_session_is_begun_anew(
    nvml: FakeNvml, inventory: NvmlInventory, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    nvml.install("h100@mig").share()
    uuid = nvml.gpus[0].uuid
    nvml.control("fail nvmlGpuInstanceCreateComputeInstance 1 *", "fail nvmlGpuInstanceDestroy 1 *")
    with pytest.raises(InventoryError, match="could not be removed again"):
        await inventory.create_mig(uuid, 9, HIGH)
    nvml.control()
    assert (await inventory.mig_state(uuid)).bare == (HIGH,)
    assert caplog.text.count("NVML opened") == 2
    assert await inventory.destroy_mig(uuid, HIGH)


async def test_H8_a_creation_that_hangs_is_given_up_and_may_still_come(
    nvml: FakeNvml, open_inventory: Callable[..., NvmlInventory]
) -> None:
    nvml.install("h100@mig")
    uuid = nvml.gpus[0].uuid
    inventory = open_inventory(time_limit=0.5, start_limit=0.5)
    await read_again(inventory)
    nvml.control("hang nvmlGpuInstanceCreateComputeInstance *")
    with pytest.raises(InventoryError, match=r"did not answer within 0.5 s: creating a MIG device at 4:4 of GPU-"):
        await inventory.create_mig(uuid, 9, HIGH)
    with pytest.raises(InventoryError, match=r"removing the MIG device at 4:4 .* was not tried"):
        await inventory.destroy_mig(uuid, HIGH)
    nvml.control()
    async with asyncio.timeout(30):
        while (state := await answer(inventory, uuid)) is None:
            await asyncio.sleep(0.01)
    assert [one.placement for one in state.instances] == [HIGH]


async def answer(inventory: NvmlInventory, uuid: str) -> MigState | None:
    try:
        return await inventory.mig_state(uuid)
    except InventoryError:
        return None


async def test_changes_take_turns(nvml: FakeNvml, inventory: NvmlInventory) -> None:
    nvml.install("h100@mig")
    uuid = nvml.gpus[0].uuid
    calls: list[Any] = [inventory.create_mig(uuid, 19, Placement(start, 1)) for start in (0, 1, 1, 2, 2, 2, 3)]
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert sum(isinstance(one, MigError) for one in results) == 3
    assert sorted(one.placement.start for one in (await inventory.mig_state(uuid)).instances) == [0, 1, 2, 3]
