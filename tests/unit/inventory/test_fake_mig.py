"""Fake MIG devices are kept as a GPU keeps them: across agents, not across boots; and fail as the faults file says."""

from __future__ import annotations

import asyncio
import json
import os
import sys

import pytest

from driver.errors import DeviceNotReadyError, InventoryError, MigError
from driver.inventory.choose import make_inventory
from driver.inventory.fake import FakeInventory
from driver.model.mig import Placement
from driver.settings import load_settings

HIGH, LOW = Placement(4, 4), Placement(0, 4)
GPU0 = "GPU-c71cd755-c90e-5996-9917-a0d81b6f8166"

RACER = """
import asyncio, contextlib, sys
from pathlib import Path
from driver.errors import MigError
from driver.inventory.fake import FakeInventory
from driver.model.mig import Placement

async def main():
    fake = FakeInventory.from_spec("h100@mig", node_name="n", mig_file=Path(sys.argv[1]))
    uuid = (await fake.read()).gpus[0].uuid
    print("ready", flush=True)
    sys.stdin.readline()
    for _ in range(40):
        made = []
        for start in range(7):
            with contextlib.suppress(MigError):
                made.append(await fake.create_mig(uuid, 19, Placement(start, 1)))
        for one in made:
            print(one.uuid)
            assert await fake.destroy_mig(uuid, one.placement)

asyncio.run(main())
"""


@pytest.fixture
def agent(tmp_path):
    """Makes inventories that share the node's files."""

    def make(gpus: str = "h100@mig", **settings) -> FakeInventory:
        files = {"faults_file": tmp_path / "faults.yaml", "mig_file": tmp_path / "fake-mig.json"}
        return FakeInventory.from_spec(gpus, node_name="n", **{**files, **settings})

    return make


@pytest.fixture
def faults(tmp_path):
    def write(text: str) -> None:
        new = tmp_path / "new"
        new.write_text(text)
        new.replace(tmp_path / "faults.yaml")

    return write


async def until(condition):
    async with asyncio.timeout(30):
        while not await condition():
            await asyncio.sleep(0)


async def test_devices_and_mode_outlive_the_agent(agent):
    first = agent("h100")
    await first.set_mig_mode(GPU0, True)
    made = await first.create_mig(GPU0, 9, HIGH)
    second = agent("h100")
    assert (await second.mig_state(GPU0)).instances == (made,)
    assert await second.destroy_mig(GPU0, HIGH)
    assert (await first.read()).gpus[0].mig == await second.mig_state(GPU0)
    assert (await first.mig_state(GPU0)).instances == ()


async def test_without_a_file_they_end_with_the_inventory(agent):
    first = agent(mig_file=None)
    await first.create_mig(GPU0, 9, HIGH)
    assert len((await first.mig_state(GPU0)).instances) == 1
    assert (await agent(mig_file=None).mig_state(GPU0)).instances == ()


@pytest.mark.parametrize("change", [{"boot_id": "next"}, {"gpus": "h100@mig=1g.10gb"}, {"gpus": "h200@mig"}])
async def test_after_a_reboot_or_with_other_gpus_all_is_as_specified(agent, change):
    made = await agent(boot_id="this").create_mig(GPU0, 9, HIGH)
    other = agent(**{"boot_id": "this", **change})
    assert (await other.mig_state(GPU0)).instances == (await agent(mig_file=None, **change).mig_state(GPU0)).instances
    profile = (await other.mig_state(GPU0)).profiles[4]
    assert (await other.create_mig(GPU0, profile.id, HIGH)).uuid != made.uuid  # new, though the GPU began anew


async def test_gpus_of_another_node_in_the_same_file_are_left_alone(agent, tmp_path):
    one, other = agent(), FakeInventory.from_spec("h100@mig", node_name="m", mig_file=tmp_path / "fake-mig.json")
    made = await one.create_mig(GPU0, 9, HIGH)
    await other.create_mig((await other.read()).gpus[0].uuid, 9, LOW)
    assert (await agent().mig_state(GPU0)).instances == (made,)


async def test_agents_that_overlap_never_lose_or_share_a_device(agent, tmp_path):
    file, pipe = tmp_path / "fake-mig.json", asyncio.subprocess.PIPE
    racers = [
        await asyncio.create_subprocess_exec(sys.executable, "-c", RACER, file, stdin=pipe, stdout=pipe)
        for _ in range(3)
    ]
    for racer in racers:
        assert await racer.stdout.readline() == b"ready\n"
    outputs = await asyncio.gather(*(racer.communicate(b"go\n") for racer in racers))
    assert [racer.returncode for racer in racers] == [0, 0, 0]
    uuids = [line for output, _ in outputs for line in output.split()]
    assert len(uuids) == len(set(uuids)) > 100
    assert (await agent().mig_state(GPU0)).instances == ()


async def test_a_change_builds_on_what_the_file_says_now(agent, tmp_path):
    """Inode, size and time of a file may be as before though another agent changed it within one tick of the clock."""
    inventory, file = agent(), tmp_path / "fake-mig.json"
    await inventory.create_mig(GPU0, 9, HIGH)
    await inventory.read()
    before = file.stat()
    with file.open("r+") as content:
        text = content.read()
        content.seek(0)
        content.write(text.replace('"start": 4', '"start": 0'))
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    await inventory.create_mig(GPU0, 9, HIGH)
    assert [one.placement for one in (await inventory.mig_state(GPU0)).instances] == [LOW, HIGH]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "Expecting property name"),
        ("[]", "mapping"),
        ('{"version": 2, "gpus": {}}', "version"),
        ('{"version": 1, "gpus": []}', "must be a mapping"),
        (json.dumps({"version": 1, "gpus": {GPU0: {"base": "x"}}}), "generation"),
    ],
)
async def test_a_bad_state_file_is_told_and_kept(agent, tmp_path, content, message):
    file = tmp_path / "fake-mig.json"
    file.write_text(content)
    inventory = agent()
    with pytest.raises(InventoryError, match=message) as caught:
        await inventory.read()
    assert f"{file}" in str(caught.value)
    assert "remove the file" in str(caught.value)
    with pytest.raises(InventoryError):
        await inventory.create_mig(GPU0, 9, HIGH)
    assert file.read_text() == content
    file.unlink()
    assert len((await inventory.read()).gpus) == 1


@pytest.mark.parametrize(
    ("old", "new", "field"),
    [
        ('"profile": 9', '"profile": 99', "profile"),
        ('"start": 4', '"start": -1', "start"),
        ('"slices": 3', '"slices": true', "slices"),
        ('"size": 4', '"size": 4, "colour": 1', "colour"),
    ],
)
async def test_a_bad_instance_in_the_state_file_is_named(agent, tmp_path, old, new, field):
    await agent().create_mig(GPU0, 9, HIGH)
    file = tmp_path / "fake-mig.json"
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))
    with pytest.raises(InventoryError, match=rf"gpus.{GPU0}.instances\[0\].*{field}"):
        await agent().read()


async def test_a_state_that_cannot_be_kept_changes_nothing(agent, tmp_path):
    (tmp_path / "blocked").write_text("")
    inventory = agent(mig_file=tmp_path / "blocked" / "fake-mig.json")
    with pytest.raises(InventoryError, match="blocked"):
        await inventory.create_mig(GPU0, 9, HIGH)


async def test_a_fault_that_happens_once_is_spent_until_the_file_changes(agent, faults):
    inventory = agent("h100@mig,h100@mig")
    uuids = [gpu.uuid for gpu in (await inventory.read()).gpus]
    text = "gpus: {0: {mig: {create_ci: fail-once, destroy: in-use-once}}}"
    for attempt in range(2):
        faults(text + "\n" * attempt)
        await inventory.create_mig(uuids[1], 9, HIGH)  # not this GPU
        with pytest.raises(MigError, match="compute instance failed"):
            await inventory.create_mig(uuids[0], 9, HIGH)
        await inventory.create_mig(uuids[0], 9, HIGH)
        with pytest.raises(DeviceNotReadyError):
            await inventory.destroy_mig(uuids[0], HIGH)
        assert [await inventory.destroy_mig(uuid, HIGH) for uuid in uuids] == [True, True]


async def test_a_slow_creation_shows_its_half_made_state(agent, faults, tmp_path):
    """What a kill in between leaves behind: tests wait for the file to show it."""
    inventory = agent()
    faults("gpus: {0: {mig: {slow: 0.2}}}")
    under_way = asyncio.ensure_future(inventory.create_mig(GPU0, 9, HIGH))

    async def half_made() -> bool:
        return [one.mig.bare for one in (await agent(faults_file=None).read()).gpus] == [(HIGH,)]

    await until(half_made)
    ((instance,),) = [one["instances"] for one in json.loads((tmp_path / "fake-mig.json").read_text())["gpus"].values()]
    assert instance["compute"] == []
    await inventory.aclose()  # the process dies here
    with pytest.raises(InventoryError, match="was closed"):
        await under_way
    assert (await agent(faults_file=None).mig_state(GPU0)).bare == (HIGH,)
    assert await agent(faults_file=None).destroy_mig(GPU0, HIGH)


@pytest.mark.parametrize("cancelled", [False, True])
async def test_H8_a_creation_that_is_given_up_may_still_come(agent, faults, cancelled):
    inventory = agent(timeout=0.05)
    faults("gpus: {0: {mig: {slow: 60}}}")
    calling = asyncio.ensure_future(inventory.create_mig(GPU0, 9, HIGH))
    if cancelled:
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        calling.cancel()
    with pytest.raises(asyncio.CancelledError if cancelled else InventoryError):
        await calling

    async def made() -> bool:
        return bool((await agent(faults_file=None).mig_state(GPU0)).instances)

    await until(made)


async def test_changes_take_turns(agent, faults):
    inventory, watcher = agent(), agent(faults_file=None)
    faults("gpus: {0: {mig: {slow: 0.01}}}")
    calls = asyncio.gather(*(inventory.create_mig(GPU0, 9, one) for one in (HIGH, LOW, LOW)), return_exceptions=True)
    half_made: list[int] = []

    async def all_made() -> bool:
        half_made.append(len((await watcher.mig_state(GPU0)).bare))
        return calls.done()

    await until(all_made)
    assert [isinstance(one, MigError) for one in calls.result()] == [False, False, True]
    assert set(half_made) == {0, 1}


async def test_a_gpu_without_mig_support_has_none(agent, faults):
    inventory = agent()
    faults("gpus: {0: {not_supported: [mig]}}")
    with pytest.raises(MigError, match="has no MIG"):
        await inventory.create_mig(GPU0, 9, HIGH)


async def test_the_state_lies_beside_the_faults_file(tmp_path):
    boot = tmp_path / "boot"
    boot.write_text("one\n")
    flags = {"gpus": "h100@mig", "node_name": "n", "state_dir": str(tmp_path / "s"), "boot_id_file": str(boot)}
    settings = load_settings(flags, {})
    inventory = make_inventory(settings)
    made = await inventory.create_mig(GPU0, 9, HIGH)
    assert sorted(one.name for one in (tmp_path / "s").iterdir()) == ["fake-mig.json", "fake-mig.lock"]
    assert (await make_inventory(settings).mig_state(GPU0)).instances == (made,)
    boot.write_text("two\n")
    assert (await make_inventory(settings).mig_state(GPU0)).instances == ()
    assert (await make_inventory(settings, with_faults=False).mig_state(GPU0)).instances == ()
