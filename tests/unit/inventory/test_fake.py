from __future__ import annotations

import asyncio
import logging
from contextlib import aclosing
from dataclasses import replace

import pytest

from driver.errors import InventoryError
from driver.inventory.base import Changed, Inventory, InventoryEvent, Xid
from driver.inventory.fake import FakeInventory
from driver.inventory.faults import ATTRIBUTES, NO_FAULTS, Faults, GpuFaults, MigXid, save_faults


@pytest.fixture
def file(tmp_path):
    return tmp_path / "state" / "faults.yaml"


@pytest.fixture
def inventory(file):
    file.parent.mkdir()
    return FakeInventory.from_spec("h100:4", node_name="n1", faults_file=file)


def write(file, text):
    """As `save_faults` does it, for text that it would not write."""
    temp = file.with_name("new")
    temp.write_text(text)
    temp.replace(file)


async def test_a_healthy_node(inventory):
    seam: Inventory = inventory
    assert seam.fake
    reading = await seam.read()
    assert [gpu.index for gpu in reading.gpus] == [0, 1, 2, 3]
    assert reading.problems == ()
    assert (reading.versions.driver, reading.versions.cuda) == ("580.105.08", "13.0")
    assert await seam.read() == reading


async def test_H5_a_lost_gpu_costs_itself_only(inventory, file):
    before = await inventory.read()
    write(file, "gpus: {gpu-1: {lost: true}}")
    after = await inventory.read()
    assert after.gpus == (before.gpus[0], *before.gpus[2:])
    assert [problem.object for problem in after.problems] == ["gpu-1"]
    assert "lost" in after.problems[0].message


async def test_A10_names_follow_identity_when_a_gpu_is_lost(inventory, file):
    before = {gpu.uuid: gpu.name for gpu in (await inventory.read()).gpus}
    write(file, "gpus: {gpu-1: {lost: true}}")
    after = {gpu.uuid: gpu.name for gpu in (await inventory.read()).gpus}
    assert sorted(after.values()) == ["gpu-0", "gpu-2", "gpu-3"]
    assert after.items() <= before.items()


async def test_A11_a_gpu_that_fails_midway_is_refused_as_a_whole(inventory, file):
    write(file, "gpus: {gpu-2: {fails: memory}}")
    reading = await inventory.read()
    assert [gpu.name for gpu in reading.gpus] == ["gpu-0", "gpu-1", "gpu-3"]
    assert "memory" in reading.problems[0].message


async def test_A4_an_unsupported_memory_query_costs_that_field_only(inventory, file):
    before = (await inventory.read()).gpus[0]
    write(file, "gpus: {gpu-0: {not_supported: [memory]}}")
    reading = await inventory.read()
    assert reading.gpus[0] == replace(before, memory=None)
    assert reading.problems == ()


async def test_P1_without_a_minor_number_the_uuid_names_the_gpu(inventory, file):
    write(file, "gpus: {gpu-0: {not_supported: [minor]}}")
    gpu = (await inventory.read()).gpus[0]
    assert gpu.minor is None
    assert gpu.name == f"gpu-{gpu.uuid.removeprefix('GPU-')}"


async def test_H4_a_gpu_without_events_is_there_and_healthy(inventory, file):
    write(file, "gpus: {gpu-0: {xid: 79, not_supported: [events]}}")
    assert len((await inventory.read()).gpus) == 4


@pytest.mark.parametrize("attribute", sorted(ATTRIBUTES))
async def test_any_attribute_may_be_unsupported(inventory, file, attribute):
    before = (await inventory.read()).gpus
    write(file, f"gpus: {{gpu-0: {{not_supported: [{attribute}]}}}}")
    reading = await inventory.read()
    assert (reading.gpus[0] == before[0]) == (attribute in ("events", "fabric"))
    assert reading.gpus[1:] == before[1:]
    assert reading.problems == ()


async def test_nvml_down_and_back(inventory, file):
    write(file, "nvml: down")
    with pytest.raises(InventoryError, match="NVML"):
        await inventory.read()
    file.unlink()
    assert len((await inventory.read()).gpus) == 4


@pytest.mark.parametrize("text", ["nvml: {slow: 60}", "gpus: {gpu-1: {slow: 60}}"])
async def test_H8_a_slow_call_ends_at_its_time_limit(file, text):
    file.parent.mkdir()
    write(file, text)
    inventory = FakeInventory.from_spec("h100:4", node_name="n1", faults_file=file, timeout=0.01)
    async with asyncio.timeout(30):
        with pytest.raises(InventoryError, match=r"did not return within 0.01 s"):
            await inventory.read()


async def test_a_call_that_is_slow_but_within_its_limit_answers(inventory, file):
    write(file, "gpus: {gpu-1: {slow: 0.01}}")
    assert len((await inventory.read()).gpus) == 4


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "nvml: {slow: 0.01}\ngpus: {1: {xid: [31, 79], slow: 0.01}, gpu-0: {}, gpu-3: {not_supported: [memory]}}",
            "nvml-slow=0.01s; gpu-1: xid=31,79 slow=0.01s; gpu-3: not-supported=memory",
        ),
        ("gpus: {gpu-2: {lost: true}}", "gpu-2: lost"),
        ("", "none"),
    ],
)
async def test_faults_are_told_in_the_words_that_inject_them(inventory, file, caplog, text, words):
    write(file, text)
    with caplog.at_level(logging.INFO):
        await inventory.read()
    assert [record.message for record in caplog.records if "faults" in record.message] == [
        f"faults of fake GPUs: {words}"
    ]


async def test_a_bad_faults_file_is_told_and_changes_nothing(inventory, file, caplog):
    write(file, "gpus: {gpu-1: {lost: true}}")
    before = await inventory.read()
    write(file, "gpus: {gpu-1: {lsot: true}}")
    with caplog.at_level(logging.ERROR):
        assert await inventory.read() == before
        assert await inventory.read() == before
    assert [record.message for record in caplog.records if "lsot" in record.message][1:] == []
    assert "did you mean 'lost'" in caplog.text


async def next_event(events) -> InventoryEvent:
    async with asyncio.timeout(30):
        return await anext(events)


async def test_faults_are_events(inventory, file):
    uuids = [gpu.uuid for gpu in (await inventory.read()).gpus]
    async with aclosing(inventory.events()) as events:
        waiting = asyncio.ensure_future(next_event(events))
        save_faults(file, Faults(gpus={uuids[2]: GpuFaults(xids=(79,))}))
        assert await waiting == Xid(gpu_uuid=uuids[2], xid=79)
        assert isinstance(await next_event(events), Changed)
        save_faults(file, Faults(gpus={uuids[2]: GpuFaults(xids=(79,), lost=True)}))
        assert isinstance(await next_event(events), Changed)  # the XID is no news
        assert len((await inventory.read()).gpus) == 3
        file.unlink()
        assert isinstance(await next_event(events), Changed)
        assert len((await inventory.read()).gpus) == 4


async def test_a_read_in_between_takes_no_event_away(inventory, file):
    async with aclosing(inventory.events()) as events:
        write(file, "gpus: {gpu-0: {xid: 31}}")
        reading = await inventory.read()
        assert await next_event(events) == Xid(gpu_uuid=reading.gpus[0].uuid, xid=31)


async def test_a_bad_file_is_no_event(inventory, file):
    async with aclosing(inventory.events()) as events:
        waiting = asyncio.ensure_future(next_event(events))
        write(file, "gpus: 3")
        write(file, "gpus: {gpu-0: {lost: true}}")
        assert isinstance(await waiting, Changed)


async def test_the_state_directory_may_come_later(tmp_path):
    file = tmp_path / "a" / "b" / "faults.yaml"
    inventory = FakeInventory.from_spec("l4", node_name="n1", faults_file=file)
    async with aclosing(inventory.events()) as events:
        waiting = asyncio.ensure_future(next_event(events))
        while not file.parent.is_dir():
            await asyncio.sleep(0)
        save_faults(file, Faults(nvml_down=True))
        assert isinstance(await waiting, Changed)


async def test_a_directory_that_cannot_be_watched_is_told(tmp_path, caplog):
    (tmp_path / "file").write_text("")
    inventory = FakeInventory.from_spec("l4", node_name="n1", faults_file=tmp_path / "file" / "faults.yaml")
    await inventory.aclose()
    assert [event async for event in inventory.events()] == []
    assert len((await inventory.read()).gpus) == 1


@pytest.mark.parametrize("with_file", [True, False])
async def test_events_end_when_closed(file, with_file):
    inventory = FakeInventory.from_spec("l4", node_name="n1", faults_file=file if with_file else None)

    async def collect() -> list[InventoryEvent]:
        return [event async for event in inventory.events()]

    task = asyncio.ensure_future(collect())
    await asyncio.sleep(0)
    await inventory.aclose()
    async with asyncio.timeout(30):
        assert await task == []


def test_no_faults_can_be_saved(file):
    file.parent.mkdir()
    save_faults(file, NO_FAULTS)
    assert file.read_text().startswith("{")


async def test_an_xid_in_a_mig_device_names_its_instances(tmp_path, caplog):
    file = tmp_path / "faults.yaml"
    inventory = FakeInventory.from_spec("h100@mig=1g.10gb*2", node_name="n1", faults_file=file)
    (gpu,) = (await inventory.read()).gpus
    second = gpu.mig.instances[1]
    async with aclosing(inventory.events()) as events:
        waiting = asyncio.create_task(next_event(events))
        await asyncio.sleep(0)
        wrong = MigXid(31, "mig-7g80gb-0-0")
        save_faults(file, Faults(gpus={gpu.uuid: GpuFaults(mig_xids=(wrong, MigXid(31, "mig-1g10gb-19-1")))}))
        assert await waiting == Xid(
            gpu_uuid=gpu.uuid,
            xid=31,
            gpu_instance_id=second.gpu_instance_id,
            compute_instance_id=second.compute_instance_id,
        )
    assert "there is no MIG device gpu-0-mig-7g80gb-0-0 now" in caplog.text
