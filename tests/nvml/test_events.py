"""XIDs and other events, through nvmlEventSetWait on a thread of its own."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from driver.inventory.base import Changed, InventoryEvent, Xid
from tests.nvml.fake_nvml import WHOLE, FakeNvml
from tests.nvml.inventories import NEVER, assert_same, says, until_monitored

if TYPE_CHECKING:
    from tests.nvml.inventories import Listen, Open

XID, MIG_CHANGE = 0x8, 0x100


def is_xid(event: InventoryEvent) -> bool:
    return isinstance(event, Xid)


def event_threads() -> int:
    return sum(thread.name == "nvml-events" for thread in threading.enumerate())


async def test_xids_of_gpus_and_of_mig_devices(nvml: FakeNvml, open_inventory: Open, listen: Listen) -> None:
    nvml.install("h100:2@mig=1g.10gb")
    inventory = open_inventory(recheck=NEVER)
    listener = listen(inventory)
    await inventory.read()
    lines = [f"event 1 {XID} 79 {WHOLE} {WHOLE}", f"event 0 {XID} 31 7 0"]
    nvml.control(*lines)
    assert await listener.until(is_xid) == Xid(gpu_uuid=nvml.gpus[1].uuid, xid=79)
    second = await listener.until(is_xid)
    assert second == Xid(gpu_uuid=nvml.gpus[0].uuid, xid=31, gpu_instance_id=7, compute_instance_id=0)
    nvml.control(*lines, f"event 0 {XID} 999 {WHOLE} {WHOLE}")
    assert await listener.until(is_xid) == Xid(gpu_uuid=nvml.gpus[0].uuid, xid=999)


async def test_a_changed_mig_configuration_asks_for_a_new_reading(
    nvml: FakeNvml, open_inventory: Open, listen: Listen
) -> None:
    nvml.install("h100@mig").control(f"event 0 {MIG_CHANGE} 0 {WHOLE} {WHOLE}")
    listener = listen(open_inventory(recheck=NEVER))
    assert isinstance(await listener.until(says(nvml.gpus[0].uuid)), Changed)


@pytest.mark.parametrize(
    "fault", ["nvmlDeviceGetSupportedEventTypes 3", "nvmlDeviceRegisterEvents 3", "nvmlDeviceRegisterEvents 15"]
)
async def test_H4_a_gpu_without_events_is_read_and_does_not_disturb_others(
    nvml: FakeNvml, open_inventory: Open, listen: Listen, fault: str
) -> None:
    nvml.install("l4:2").control(
        f"fail {fault} 0", f"event 0 {XID} 48 {WHOLE} {WHOLE}", f"event 1 {XID} 79 {WHOLE} {WHOLE}"
    )
    inventory = open_inventory(recheck=NEVER)
    listener = listen(inventory)
    assert_same((await inventory.read()).gpus, nvml.gpus)
    assert await listener.until(is_xid) == Xid(gpu_uuid=nvml.gpus[1].uuid, xid=79)


@pytest.mark.parametrize("fault", ["nvmlDeviceGetSupportedEventTypes 3 *", "nvmlEventSetCreate 3 *"])
async def test_H4_no_gpu_has_events(nvml: FakeNvml, open_inventory: Open, listen: Listen, fault: str) -> None:
    nvml.install("l4:2").control(f"fail {fault}")
    inventory = open_inventory(recheck=NEVER)
    listener = listen(inventory)
    await listener.until(says("can be used now"))
    reading = await inventory.read()
    assert_same(reading.gpus, nvml.gpus)
    assert reading.problems == ()
    assert inventory.monitored == frozenset()
    assert event_threads() == 0


async def test_an_event_set_that_dies_is_told_and_made_anew(
    nvml: FakeNvml, open_inventory: Open, listen: Listen
) -> None:
    nvml.install("l4:2").control("fail nvmlEventSetWait_v2 15 *")
    inventory = open_inventory(recheck=0.02)
    listener = listen(inventory)
    await listener.until(says("events ended: GPU is lost"))
    nvml.control(f"event 1 {XID} 79 {WHOLE} {WHOLE}")
    assert await listener.until(is_xid) == Xid(gpu_uuid=nvml.gpus[1].uuid, xid=79)


async def test_H8_a_dead_event_set_does_not_spin(nvml: FakeNvml, open_inventory: Open, listen: Listen) -> None:
    nvml.install("l4").control("fail nvmlEventSetWait_v2 15 *")
    inventory = open_inventory(recheck=NEVER)
    listener = listen(inventory)
    await listener.until(says("events ended"))
    for _ in range(3):  # what a monitor does that reads whenever something changed
        await inventory.read()
    assert event_threads() == 0


async def test_a_gpu_that_was_lost_when_listening_began_is_listened_to_once_it_is_back(
    nvml: FakeNvml, open_inventory: Open, listen: Listen
) -> None:
    nvml.install("l4:2").control("fail * 15 1")
    first, second = (gpu.uuid for gpu in nvml.gpus)
    inventory = open_inventory(recheck=0.02)
    listener = listen(inventory)
    await until_monitored(inventory, {first})
    nvml.control()
    await until_monitored(inventory, {first, second})
    nvml.control(f"event 1 {XID} 79 {WHOLE} {WHOLE}")
    assert await listener.until(is_xid) == Xid(gpu_uuid=second, xid=79)


async def test_closing_ends_events_and_threads(nvml: FakeNvml, open_inventory: Open, listen: Listen) -> None:
    nvml.install("l4")
    inventory = open_inventory(recheck=NEVER)
    listener = listen(inventory)
    await listener.until(says("can be used now"))
    assert event_threads() == 1
    await inventory.aclose()
    await listener.ended()
    assert event_threads() == 0
    await inventory.aclose()  # again, for nothing


async def test_events_go_on_with_a_replaced_library(nvml: FakeNvml, open_inventory: Open, listen: Listen) -> None:
    nvml.install("h100")
    inventory = open_inventory(recheck=NEVER)
    listener = listen(inventory)
    await inventory.read()
    nvml.install("l4")
    await listener.until(says("replaced"))
    await inventory.read()
    nvml.control(f"event 0 {XID} 48 {WHOLE} {WHOLE}")
    assert await listener.until(is_xid) == Xid(gpu_uuid=nvml.gpus[0].uuid, xid=48)
    assert event_threads() == 1
