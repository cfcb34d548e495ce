"""What fails costs what it must and no more: an attribute, a GPU, or the reading."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import pytest

from driver.errors import InventoryError
from driver.model.device import UNKNOWN
from tests.nvml.inventories import assert_same

if TYPE_CHECKING:
    from driver.inventory.nvml import NvmlInventory
    from tests.nvml.fake_nvml import FakeNvml

NO_PERMISSION, NOT_SUPPORTED, FUNCTION_NOT_FOUND, GPU_IS_LOST, UNINITIALIZED, UNKNOWN_ERROR = 4, 3, 13, 15, 1, 999
MISMATCH, NOT_LOADED = 18, 9

# The function, and what a GPU is without it.
ATTRIBUTES: list[tuple[str, dict[str, Any]]] = [
    ("nvmlDeviceGetMinorNumber", {"minor": None}),
    ("nvmlDeviceGetName", {"product": UNKNOWN}),
    ("nvmlDeviceGetBrand", {"brand": UNKNOWN}),
    ("nvmlDeviceGetArchitecture", {"architecture": UNKNOWN}),
    ("nvmlDeviceGetCudaComputeCapability", {"compute_capability": (0, 0)}),
    ("nvmlDeviceGetMemoryInfo_v2", {}),  # the older query answers
    ("nvmlDeviceGetAddressingMode", {"addressing_mode": UNKNOWN}),
    ("nvmlDeviceGetPciInfo_v3", {"pci_bus_id": None, "pcie_root": None, "numa_node": None}),
    ("nvmlDeviceGetGpuFabricInfoV", {"fabric": None}),
    ("nvmlDeviceGetMigMode", {"mig": None}),
    ("nvmlDeviceGetAttributes_v2", {}),
]
OLDER: list[tuple[str, dict[str, Any]]] = [*ATTRIBUTES, ("nvmlDeviceGetGpuInstanceProfileInfoV", {})]
STRICT = [
    "nvmlDeviceGetUUID",
    *(name for name, _ in OLDER),
    "nvmlDeviceGetNvLinkState",
    "nvmlDeviceGetNvLinkRemoteDeviceType",
    "nvmlDeviceGetNvLinkRemotePciInfo_v2",
    "nvmlDeviceGetGpuInstancePossiblePlacements_v2",
    "nvmlDeviceGetMaxMigDeviceCount",
    "nvmlDeviceGetMigDeviceHandleByIndex",
    "nvmlDeviceGetGpuInstanceId",
    "nvmlDeviceGetGpuInstanceById",
    "nvmlGpuInstanceGetInfo",
    "nvmlDeviceGetComputeInstanceId",
]
GB200 = "gb200@mig=1g.23gb+3g.93gb:4,gb200@mig=1g.23gb"


def without(gpu: Any, function: str, lost: dict[str, Any]) -> Any:
    changed = dataclasses.replace(gpu, **lost)
    if function == "nvmlDeviceGetArchitecture":  # then nothing says that it is a Hopper or later
        changed = dataclasses.replace(changed, mig=dataclasses.replace(changed.mig, switches_at_once=False))
    return changed


@pytest.mark.parametrize(("function", "lost"), ATTRIBUTES)
async def test_A4_an_unsupported_query_costs_its_attribute_on_that_gpu(
    nvml: FakeNvml, inventory: NvmlInventory, function: str, lost: dict[str, Any]
) -> None:
    nvml.install(GB200).control(f"fail {function} {NOT_SUPPORTED} 1")
    reading = await inventory.read()
    assert reading.problems == ()
    assert_same(reading.gpus, (nvml.gpus[0], without(nvml.gpus[1], function, lost)))


@pytest.mark.parametrize(("function", "lost"), OLDER)
async def test_a_symbol_that_the_library_lacks_costs_its_attribute(
    nvml: FakeNvml, inventory: NvmlInventory, function: str, lost: dict[str, Any]
) -> None:
    nvml.install(GB200, without=(function,))
    reading = await inventory.read()
    assert reading.problems == ()
    assert_same(reading.gpus, tuple(without(gpu, function, lost) for gpu in nvml.gpus))


async def test_A4_no_memory_query_works(nvml: FakeNvml, inventory: NvmlInventory) -> None:
    nvml.install("h100").control(
        f"fail nvmlDeviceGetMemoryInfo {NOT_SUPPORTED} *", f"fail nvmlDeviceGetMemoryInfo_v2 {NOT_SUPPORTED} *"
    )
    (gpu,) = (await inventory.read()).gpus
    assert gpu.memory is None
    assert gpu.mig is not None
    assert [profile.name for profile in gpu.mig.profiles][:2] == ["1g.10gb", "2g.20gb"]


async def test_P1_a_gpu_without_minor_number_is_named_by_its_uuid(nvml: FakeNvml, inventory: NvmlInventory) -> None:
    nvml.install("l4").edit("minor 0", "minor -1")
    (gpu,) = (await inventory.read()).gpus
    assert gpu.minor is None
    assert gpu.name == gpu.uuid.lower()


@pytest.mark.parametrize("code", [GPU_IS_LOST, UNKNOWN_ERROR])
@pytest.mark.parametrize("function", STRICT)
async def test_A11_a_query_that_fails_midway_costs_the_whole_gpu(
    nvml: FakeNvml, inventory: NvmlInventory, function: str, code: int
) -> None:
    nvml.install(GB200).control(f"fail {function} {code} 0")
    reading = await inventory.read()
    assert_same(reading.gpus, nvml.gpus[1:])
    (problem,) = reading.problems
    assert problem.object == ("GPU 0" if function == "nvmlDeviceGetUUID" else nvml.gpus[0].uuid)
    assert function.partition("_")[0].removesuffix("V") in problem.message


async def test_A11_a_gpu_that_shows_its_neighbours_identity_is_refused(
    nvml: FakeNvml, inventory: NvmlInventory
) -> None:
    nvml.install("l4:3").control(f"alias 1 {nvml.gpus[0].uuid} 1")
    reading = await inventory.read()
    assert_same(reading.gpus, (nvml.gpus[0], nvml.gpus[2]))
    (problem,) = reading.problems
    assert problem.object == nvml.gpus[1].uuid
    assert "changed" in problem.message


async def test_A11_two_gpus_of_one_identity_are_both_refused(nvml: FakeNvml, inventory: NvmlInventory) -> None:
    nvml.install("l4:3").edit(nvml.gpus[1].uuid, nvml.gpus[0].uuid)
    reading = await inventory.read()
    assert_same(reading.gpus, nvml.gpus[2:])
    assert [problem.object for problem in reading.problems] == [nvml.gpus[0].uuid] * 2


async def test_text_that_is_no_utf8_costs_its_gpu(nvml: FakeNvml, inventory: NvmlInventory) -> None:
    nvml.install("l4,t4")
    config = nvml.config.read_bytes()
    nvml.config.write_bytes(config.replace(b"NVIDIA L4", b"NVIDIA \xff\xfe").replace(b"driver 580", b"driver \xff80"))
    reading = await inventory.read()
    assert_same(reading.gpus, nvml.gpus[1:])
    assert "nvmlDeviceGetName" in reading.problems[0].message
    assert reading.versions.driver == ""


async def test_A16_a_completed_fabric_with_a_zero_uuid_is_none(nvml: FakeNvml, inventory: NvmlInventory) -> None:
    nvml.install("h100").edit(f"fabric 3 0 {'0' * 32}", f"fabric 3 7 {'0' * 32}")
    assert (await inventory.read()).gpus[0].fabric is None


@pytest.mark.parametrize("state", [0, 1, 2])
async def test_A16_a_fabric_that_is_not_completed_is_none(nvml: FakeNvml, inventory: NvmlInventory, state: int) -> None:
    nvml.install("gb200").edit("fabric 3", f"fabric {state}")
    assert (await inventory.read()).gpus[0].fabric is None


async def test_H5_one_lost_gpu_leaves_the_others(nvml: FakeNvml, inventory: NvmlInventory) -> None:
    nvml.install("h100:4")
    await inventory.read()
    nvml.control(f"fail * {GPU_IS_LOST} 2")
    reading = await inventory.read()
    assert_same(reading.gpus, (*nvml.gpus[:2], nvml.gpus[3]))
    (problem,) = reading.problems
    assert problem.object == nvml.gpus[2].uuid  # known from before, although it says nothing now
    assert "GPU is lost" in problem.message
    nvml.control()
    assert_same((await inventory.read()).gpus, nvml.gpus)


async def test_H5_a_bridge_to_a_lost_gpu_names_no_peer(nvml: FakeNvml, inventory: NvmlInventory) -> None:
    nvml.install("a100-80:2@pairs").control(f"fail * {GPU_IS_LOST} 0")
    (gpu,) = (await inventory.read()).gpus
    assert gpu.nvlink.peers == ()
    assert gpu.nvlink.active_links == 12


@pytest.mark.parametrize(
    ("code", "hint"), [(NOT_LOADED, "kernel module"), (MISMATCH, "reload"), (NO_PERMISSION, "nvidiactl"), (999, "")]
)
async def test_a_failing_initialisation_is_told_with_a_hint(
    nvml: FakeNvml, inventory: NvmlInventory, code: int, hint: str
) -> None:
    nvml.install("l4").control(f"fail nvmlInitWithFlags {code} *")
    with pytest.raises(InventoryError, match=f"can't be initialised.*{hint}"):
        await inventory.read()
    nvml.control()
    assert_same((await inventory.read()).gpus, nvml.gpus)


@pytest.mark.parametrize("function", ["nvmlDeviceGetCount_v2", "nvmlDeviceGetName"])
async def test_H6_a_session_that_ended_and_does_not_come_back_is_an_error_not_an_empty_node(
    nvml: FakeNvml, inventory: NvmlInventory, function: str
) -> None:
    nvml.install("l4:2")
    await inventory.read()
    nvml.control(f"fail {function} {UNINITIALIZED} * 1", "fail nvmlInitWithFlags 999 *")
    for _ in range(2):
        with pytest.raises(InventoryError):
            await inventory.read()
    nvml.control()
    assert_same((await inventory.read()).gpus, nvml.gpus)


async def test_no_gpu_at_all_is_no_error(nvml: FakeNvml, inventory: NvmlInventory) -> None:
    nvml.install("l4").write("driver 580.105.08\ncuda 13000")
    reading = await inventory.read()
    assert (reading.gpus, reading.problems) == ((), ())
    assert (reading.versions.driver, reading.versions.cuda) == ("580.105.08", "13.0")


async def test_the_versions_are_unknown(nvml: FakeNvml, inventory: NvmlInventory) -> None:
    nvml.install("l4").control("fail nvmlSystemGetDriverVersion 3 *", "fail nvmlSystemGetCudaDriverVersion 3 *")
    reading = await inventory.read()
    assert (reading.versions.driver, reading.versions.cuda) == ("", "")
    assert_same(reading.gpus, nvml.gpus)


async def test_A3_a_gpu_on_an_unusual_pci_path_has_no_root(nvml: FakeNvml, inventory: NvmlInventory) -> None:
    nvml.install("l4")
    link = nvml.sys / "bus/pci/devices" / str(nvml.gpus[0].pci_bus_id)
    elsewhere = nvml.sys / "devices/LNXSYSTM:00/VMBUS:00/47505500"
    elsewhere.mkdir(parents=True)
    (elsewhere / "numa_node").write_text("-1\n")
    link.unlink()
    link.symlink_to(elsewhere)
    reading = await inventory.read()
    assert_same(reading.gpus, (dataclasses.replace(nvml.gpus[0], pcie_root=None, numa_node=None),))
    assert reading.problems == ()
