"""What becomes of the files of records and of CDI: not writable, vanished, of another boot or version."""

from __future__ import annotations

import resource
import shutil
import time
from dataclasses import replace

import pytest

from driver.claims import record as codec
from driver.errors import DeviceHeldError, StorageError
from driver.model.snapshot import Snapshot
from tests.unit.claims.harness import Harness, devices, instance
from tests.unit.claims.helpers import Claims, Node, claim, result, uid


async def test_S13_a_cdi_directory_that_can_not_be_written_consumes_nothing(harness: Harness) -> None:
    harness.claims.add(claim(1, result("gpu-0")))
    harness.node.cdi.directory.write_text("a file where the directory should be")
    answer = await harness.prepare(1, within=0.3)
    assert isinstance(answer, StorageError)
    assert str(harness.node.cdi.directory) in str(answer)
    harness.node.cdi.directory.unlink()
    assert harness.node.leftovers() == []
    harness.claims.add(claim(2, result("gpu-0")))
    assert devices(await harness.prepare(2)) == ["gpu-0"]


async def test_a_claims_directory_that_vanished_is_made_again_and_no_device_is_forgotten(harness: Harness) -> None:
    for number in (1, 2, 3):
        harness.claims.add(claim(number, result("gpu-1" if number == 3 else "gpu-0")))
    await harness.prepare(1)
    shutil.rmtree(harness.node.claims_dir)
    assert isinstance(await harness.prepare(2), DeviceHeldError)
    assert devices(await harness.prepare(3)) == ["gpu-1"]
    assert await harness.unprepare(1, 3) == [None, None]
    assert harness.node.leftovers() == []


async def test_a_claims_directory_that_can_not_be_made_again_is_an_error_not_a_crash(harness: Harness) -> None:
    harness.claims.add(claim(1, result("gpu-0")))
    shutil.rmtree(harness.node.claims_dir)
    harness.node.claims_dir.write_text("in the way")
    assert isinstance(await harness.prepare(1, within=0.3), StorageError)
    harness.node.claims_dir.unlink()
    assert harness.node.leftovers() == []
    assert devices(await harness.prepare(1)) == ["gpu-0"]


async def test_C1_a_file_that_can_not_be_rebuilt_is_told_and_costs_no_other(harness: Harness) -> None:
    for number in (1, 2):
        harness.claims.add(claim(number, result(f"gpu-{number}")))
    await harness.prepare(1, 2)
    for number in (1, 2):
        harness.node.cdi.remove(uid(number))
    harness.node.cdi.path(uid(1)).mkdir()
    with pytest.raises(StorageError, match=uid(1)):
        await harness.engine.refresh_cdi()
    assert harness.node.cdi.exists(uid(2))
    harness.node.cdi.path(uid(1)).rmdir()
    await harness.engine.refresh_cdi()
    assert harness.node.cdi.exists(uid(1))


async def test_S6_a_record_of_another_boot_is_void_and_rebuilt(node: Node, claims: Claims) -> None:
    claims.add(claim(1, result("gpu-0")))
    claims.add(claim(2, result("gpu-0")))
    async with instance(node, claims) as before:
        await before.prepare(1)
    node.boot_id = "boot-2"
    shutil.rmtree(node.cdi.directory)
    async with instance(node, claims) as after:
        assert devices(await after.prepare(2)) == ["gpu-0"]  # the old record holds nothing
        assert isinstance(await after.prepare(1), DeviceHeldError)
        await after.unprepare(2)
        assert devices(await after.prepare(1)) == ["gpu-0"]
        assert node.cdi.exists(uid(1))


async def test_C1_a_vanished_cdi_file_is_rebuilt_by_a_repeat_and_by_refresh(harness: Harness) -> None:
    harness.claims.add(claim(1, result("gpu-0")))
    first = await harness.prepare(1)
    content = harness.node.cdi.path(uid(1)).read_bytes()
    harness.node.cdi.remove(uid(1))
    assert await harness.prepare(1) == first
    assert harness.node.cdi.path(uid(1)).read_bytes() == content
    harness.node.cdi.remove(uid(1))
    await harness.engine.refresh_cdi()
    assert harness.node.cdi.path(uid(1)).read_bytes() == content


async def test_a_driver_upgrade_refreshes_the_cdi_files(harness: Harness) -> None:
    harness.claims.add(claim(1, result("gpu-0")))
    await harness.prepare(1)
    harness.node.edits.version = "2"
    await harness.engine.refresh_cdi()
    assert b"DRIVER=2" in harness.node.cdi.path(uid(1)).read_bytes()


async def test_a_repeat_is_answered_though_the_device_is_in_trouble(harness: Harness) -> None:
    harness.claims.add(claim(1, result("gpu-0")))
    first = await harness.prepare(1)
    harness.node.snapshot = Snapshot()
    assert await harness.prepare(1) == first


async def test_K2_unprepare_needs_neither_the_api_server_nor_the_devices(harness: Harness) -> None:
    harness.claims.add(claim(1, result("gpu-0")))
    await harness.prepare(1)
    harness.node.snapshot = Snapshot()
    harness.claims.objects.clear()
    gets = harness.claims.gets
    assert await harness.unprepare(1) is None
    assert harness.claims.gets == gets
    assert harness.node.leftovers() == []


async def test_a_start_removes_cdi_files_without_a_record_and_temporary_files(node: Node, claims: Claims) -> None:
    async with instance(node, claims):
        pass
    node.cdi.write(uid(7), b"{}")
    (node.claims_dir / f".{uid(7)}.json.abcd.tmp").write_bytes(b"half")
    async with instance(node, claims):
        assert node.leftovers() == []


async def test_a_cdi_file_without_a_record_that_can_not_be_removed_costs_nobody_anything(
    node: Node, claims: Claims
) -> None:
    node.cdi.path(uid(7)).mkdir(parents=True)
    claims.add(claim(1, result("gpu-0")))
    async with instance(node, claims) as one:
        assert devices(await one.prepare(1)) == ["gpu-0"]
        assert await one.unprepare(1) is None
        assert node.cdi.claim_uids() == {uid(7)}
    node.cdi.path(uid(7)).rmdir()


async def test_S4_a_newer_records_extra_fields_survive_this_version(node: Node, claims: Claims) -> None:
    claims.add(claim(1, result("gpu-0")))
    async with instance(node, claims) as one:
        answer = await one.prepare(1)
        path = node.claims_dir / f"{uid(1)}.json"
        newer = replace(codec.decode(path.read_bytes(), uid(1)), unknown={"future": 1})
        path.write_bytes(codec.encode(newer))
        assert await one.prepare(1) == answer
        assert b'"future":1' in path.read_bytes()
        assert node.quarantined == []


async def test_S6_an_unprepare_of_a_longer_boot_does_not_refuse_the_claim(node: Node, claims: Claims) -> None:
    claims.add(claim(1, result("gpu-0")))
    async with instance(node, claims) as before:
        await before.prepare(1)
        await before.unprepare(1)
    moment = time.monotonic_ns() + 10**15  # the clock begins anew at each boot
    (node.claims_dir / "lock").write_bytes(f"{uid(1)} {moment}".encode().ljust(159) + b"\n")
    node.boot_id = "boot-2"
    async with instance(node, claims) as after:
        assert devices(await after.prepare(1)) == ["gpu-0"]


async def test_a_full_disk_keeps_nobody_from_unpreparing(node: Node, claims: Claims) -> None:
    claims.add(claim(1, result("gpu-0")))
    async with instance(node, claims) as one:
        await one.prepare(1)
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
        try:
            assert await one.unprepare(1) is None
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert node.leftovers() == []
