"""MIG through NVML: names, placements, devices cut further, what may not be read, and the fake's own rules."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from driver.model.mig import Placement
from tests.nvml.inventories import assert_same

if TYPE_CHECKING:
    from driver.inventory.nvml import NvmlInventory
    from tests.nvml.fake_nvml import FakeNvml

# NVIDIA's tables: name: (profile id, NVML's index, at most, starts, size).
TABLES = {
    "h100": {
        "1g.10gb": (19, 0, 7, (0, 1, 2, 3, 4, 5, 6), 1),
        "1g.10gb+me": (20, 7, 1, (0, 1, 2, 3, 4, 5, 6), 1),
        "1g.20gb": (15, 9, 4, (0, 2, 4, 6), 2),
        "2g.20gb": (14, 1, 3, (0, 2, 4), 2),
        "3g.40gb": (9, 2, 2, (0, 4), 4),
        "4g.40gb": (5, 3, 1, (0,), 4),
        "7g.80gb": (0, 4, 1, (0,), 8),
    },
    "a30": {
        "1g.6gb": (14, 0, 4, (0, 1, 2, 3), 1),
        "1g.6gb+me": (21, 7, 1, (0, 1, 2, 3), 1),
        "2g.12gb": (5, 1, 2, (0, 2), 2),
        "2g.12gb+me": (6, 8, 1, (0, 2), 2),
        "4g.24gb": (0, 3, 1, (0,), 4),
    },
    "rtx-pro-6000": {
        "1g.24gb": (14, 0, 4, (0, 3, 6, 9), 3),
        "2g.48gb": (5, 1, 2, (0, 6), 6),
        "4g.96gb": (0, 3, 1, (0,), 12),
    },
}


@pytest.mark.parametrize("without", [(), ("nvmlDeviceGetGpuInstanceProfileInfoV",)], ids=["named", "older library"])
@pytest.mark.parametrize("product", TABLES)
async def test_profiles_and_placements_are_nvidias(
    nvml: FakeNvml, inventory: NvmlInventory, product: str, without: tuple[str, ...]
) -> None:
    nvml.install(product, without=without)
    mig = (await inventory.read()).gpus[0].mig
    assert mig is not None
    assert {
        one.name: (one.id, one.index, one.max_instances, tuple(p.start for p in one.placements), one.placements[0].size)
        for one in mig.profiles
    } == TABLES[product]
    assert mig.memory_slices == {"h100": 8, "a30": 4, "rtx-pro-6000": 12}[product]
    assert (mig.enabled, mig.pending, mig.instances) == (False, False, ())


async def test_M4_a_board_without_mig_has_none(nvml: FakeNvml, inventory: NvmlInventory) -> None:
    nvml.install("l4,h100")
    first, second = (await inventory.read()).gpus
    assert first.mig is None
    assert second.mig is not None


async def test_M5_names_that_differ_in_their_suffix_only_stay_apart(nvml: FakeNvml, inventory: NvmlInventory) -> None:
    nvml.install("rtx-pro-6000")
    nvml.edit("place 9 3", "place 9 3\nprofile 13 67 1 4 24192 46 1 0 0 0 0 1g.24gb-me\nplace 0 3")
    mig = (await inventory.read()).gpus[0].mig
    assert mig is not None
    assert {one.id: one.name for one in mig.profiles} == {14: "1g.24gb", 67: "1g.24gb-me", 5: "2g.48gb", 0: "4g.96gb"}


async def test_M5_a_library_that_names_nothing_gets_the_same_names(nvml: FakeNvml, inventory: NvmlInventory) -> None:
    nvml.install("rtx-pro-6000", without=("nvmlDeviceGetGpuInstanceProfileInfoV",))
    nvml.edit("place 9 3", "place 9 3\nprofile 13 67 1 4 24192 46 1 0 0 0 0 unnamed\nplace 0 3")
    mig = (await inventory.read()).gpus[0].mig
    assert mig is not None
    assert {one.id: one.name for one in mig.profiles} == {14: "1g.24gb", 67: "1g.24gb-me", 5: "2g.48gb", 0: "4g.96gb"}


async def test_compute_instances_that_share_a_gpu_instance(nvml: FakeNvml, inventory: NvmlInventory) -> None:
    nvml.install("h100@mig")
    nvml.edit("place 0 8", "place 0 8\ninstance 2 9 4 4 0 0 1 MIG-first\ninstance 2 9 4 4 1 1 2 MIG-second")
    mig = (await inventory.read()).gpus[0].mig
    assert mig is not None
    assert [(one.uuid, one.name, one.gpu_instance_id, one.compute_instance_id) for one in mig.instances] == [
        ("MIG-first", "1c.3g.40gb", 2, 0),
        ("MIG-second", "2c.3g.40gb", 2, 1),
    ]
    assert {one.placement for one in mig.instances} == {Placement(4, 4)}


async def test_a_mode_that_waits_for_a_reset(nvml: FakeNvml, inventory: NvmlInventory) -> None:
    nvml.install("a100-80").edit("mig 0 0 0", "mig 0 1 0")
    mig = (await inventory.read()).gpus[0].mig
    assert mig is not None
    assert (mig.enabled, mig.pending, mig.switches_at_once) == (False, True, False)


async def test_without_permission_the_gpu_stays_and_the_reading_says_what_is_missing(
    nvml: FakeNvml, inventory: NvmlInventory
) -> None:
    nvml.install("h100@mig=1g.10gb").control("fail nvmlDeviceGetGpuInstanceById 4 *")
    reading = await inventory.read()
    (gpu,) = nvml.gpus
    assert gpu.mig is not None
    assert_same(reading.gpus, (replace(gpu, mig=replace(gpu.mig, instances=())),))
    (problem,) = reading.problems
    assert problem.object == gpu.name
    assert "nvmlDeviceGetGpuInstanceById" in problem.message
    assert "CAP_SYS_ADMIN" in problem.message  # root in a container has none by default


async def test_without_permission_for_placements_profiles_have_their_names(
    nvml: FakeNvml, inventory: NvmlInventory
) -> None:
    """As in overlays/nvidia, on every GPU that could do MIG: nothing is missing there, so nothing is told."""
    nvml.install("h100").control("fail nvmlDeviceGetGpuInstancePossiblePlacements_v2 4 *")
    reading = await inventory.read()
    (gpu,) = nvml.gpus
    assert gpu.mig is not None
    named = tuple(replace(profile, placements=()) for profile in gpu.mig.profiles)
    assert_same(reading.gpus, (replace(gpu, mig=replace(gpu.mig, profiles=named, memory_slices=0)),))
    assert reading.problems == ()


async def test_a_gpu_instance_of_an_unknown_profile_costs_the_gpu(nvml: FakeNvml, inventory: NvmlInventory) -> None:
    nvml.install("h100@mig=1g.10gb,l4").control("fail nvmlDeviceGetGpuInstanceProfileInfoV 3 0 1")
    reading = await inventory.read()
    assert_same(reading.gpus, nvml.gpus[1:])
    assert "profile 19" in reading.problems[0].message


def create(api: Any, profile: int, start: int, size: int) -> tuple[Any, Any]:
    device = api.nvmlDeviceGetHandleByIndex(0)
    placement = api.c_nvmlGpuInstancePlacement_t(start, size)
    instance = api.nvmlDeviceCreateGpuInstanceWithPlacement(device, profile, ctypes.byref(placement))
    slices = {19: 0, 14: 1, 9: 2}[profile]
    return instance, api.nvmlGpuInstanceCreateComputeInstance(instance, slices)


async def test_a_mig_device_made_and_removed_is_seen(nvml: FakeNvml, inventory: NvmlInventory) -> None:
    nvml.install("h100@mig")
    instance, compute = await inventory.use(lambda api: create(api, 9, 4, 4), "creating")
    mig = (await inventory.read()).gpus[0].mig
    assert mig is not None
    (found,) = mig.instances
    assert (found.name, found.placement) == ("3g.40gb", Placement(4, 4))

    def destroy(api: Any) -> None:
        with pytest.raises(api.NVMLError_InUse):
            api.nvmlGpuInstanceDestroy(instance)
        api.nvmlComputeInstanceDestroy(compute)
        api.nvmlGpuInstanceDestroy(instance)

    await inventory.use(destroy, "destroying")
    await inventory.use(lambda api: create(api, 9, 4, 4), "creating")
    mig = (await inventory.read()).gpus[0].mig
    assert mig is not None
    assert [one.uuid for one in mig.instances] != [found.uuid]  # new at every creation


async def test_the_fake_refuses_what_nvml_refuses(nvml: FakeNvml, inventory: NvmlInventory) -> None:
    nvml.install("h100@mig,a100-80")

    def refused(api: Any) -> None:
        create(api, 19, 1, 1)
        with pytest.raises(api.NVMLError_InsufficientResources):
            create(api, 9, 0, 4)
        with pytest.raises(api.NVMLError_InvalidArgument):
            create(api, 9, 2, 4)
        ampere = api.nvmlDeviceGetHandleByIndex(1)
        with pytest.raises(api.NVMLError_NotSupported):
            api.nvmlDeviceCreateGpuInstance(ampere, 19)
        assert api.nvmlDeviceSetMigMode(ampere, 1) == api.NVML_ERROR_RESET_REQUIRED
        assert api.nvmlDeviceGetMigMode(ampere) == [0, 1]
        with pytest.raises(api.NVMLError_InUse):
            api.nvmlDeviceSetMigMode(api.nvmlDeviceGetHandleByIndex(0), 0)

    await inventory.use(refused, "trying")
