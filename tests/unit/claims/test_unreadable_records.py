"""Records that can't be read: kept, told, and in the way of their GPUs until that is settled."""

from __future__ import annotations

import os
import resource
import shutil
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from driver.claims.record import Record
from driver.claims.store import Quarantined
from driver.errors import DeviceHeldError, DeviceNotReadyError, RecordError
from tests.unit.claims.bench import MPS, SLICING_LONG, Bench, config, part, share
from tests.unit.claims.harness import SHARE, Harness, devices, instance
from tests.unit.claims.helpers import Claims, Node, claim, ref, result, uid

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

EMPTY_RECORD = Record(claim=ref(1), boot_id="boot-1", devices=())


def flip(data: bytes) -> bytes:
    position = data.index(b'"sha256": "') + 11
    return data[:position] + (b"0" if data[position : position + 1] != b"0" else b"1") + data[position + 1 :]


async def test_S1_a_bad_checksum_is_quarantined_alone_and_its_gpu_is_not_given_away(node: Node, claims: Claims) -> None:
    for number in (1, 2):
        claims.add(claim(number, result(f"gpu-{number - 1}")))
    claims.add(claim(3, result("gpu-0")))
    async with instance(node, claims) as before:
        await before.prepare(1, 2)
    path = node.claims_dir / f"{uid(1)}.json"
    broken = flip(path.read_bytes())
    path.write_bytes(broken)
    async with instance(node, claims) as after:
        assert node.quarantined == [uid(1)]
        (kept,) = (node.claims_dir / "quarantine").iterdir()
        assert kept.read_bytes() == broken
        assert isinstance(await after.prepare(3), DeviceHeldError)
        assert devices(await after.prepare(2)) == ["gpu-1"]
        assert devices(await after.prepare(1)) == ["gpu-0"]  # its own claim gets it back, with a new record
        assert await after.unprepare(1) is None
        assert devices(await after.prepare(3)) == ["gpu-0"]
    assert len(list((node.claims_dir / "quarantine").iterdir())) == 1  # the bytes are still kept


async def test_S1_an_unreadable_record_is_reported_once_and_defends_its_gpu_after_a_restart(
    node: Node, claims: Claims
) -> None:
    claims.add(claim(1, result("gpu-0")))
    claims.add(claim(2, result("gpu-0")))
    async with instance(node, claims) as before:
        await before.prepare(1)
    (node.claims_dir / f"{uid(1)}.json").write_bytes(b"")
    for _ in range(2):
        async with instance(node, claims) as after:
            assert isinstance(await after.prepare(2), DeviceHeldError)  # known from the CDI file
    assert node.quarantined == [uid(1)]


async def test_S7_an_unreadable_record_whose_bytes_name_a_claim_that_is_gone_is_given_up(
    node: Node, claims: Claims
) -> None:
    for number in (1, 2):
        claims.add(claim(number, result(f"gpu-{number - 1}")))
    claims.add(claim(3, result("gpu-0")))
    async with instance(node, claims) as one:
        await one.prepare(1, 2)
        path = node.claims_dir / f"{uid(1)}.json"
        path.write_bytes(flip(path.read_bytes()))
        assert await one.engine.reconcile() == 0  # its claim is there
        del claims.objects["claim-1"]
        one.used = frozenset({ref(1).key})
        assert await one.engine.reconcile() == 0  # its pod runs
        assert isinstance(await one.prepare(3), DeviceNotReadyError)
        one.used = frozenset()
        assert await one.engine.reconcile() == 1
        assert devices(await one.prepare(3)) == ["gpu-0"]
        assert sorted(node.cdi.claim_uids()) == [uid(2), uid(3)]
    (kept,) = (node.claims_dir / "quarantine").iterdir()
    assert kept.name.endswith(".settled")


async def test_S11_a_claim_gets_the_gpu_of_an_unreadable_record_whose_claim_is_gone(node: Node, claims: Claims) -> None:
    claims.add(claim(1, result("gpu-0")))
    claims.add(claim(2, result("gpu-0")))
    async with instance(node, claims) as one:
        await one.prepare(1)
        path = node.claims_dir / f"{uid(1)}.json"
        path.write_bytes(flip(path.read_bytes()))
        assert isinstance(await one.prepare(2), DeviceHeldError)
        del claims.objects["claim-1"]
        assert devices(await one.prepare(2)) == ["gpu-0"]


@pytest.mark.parametrize("content", [b"", b"garbage", b"\x00" * 100])
async def test_S2_unprepare_with_an_unreadable_record_is_an_error_and_keeps_the_bytes(
    node: Node, claims: Claims, content: bytes
) -> None:
    claims.add(claim(1, result("gpu-0")))
    claims.add(claim(2, result("gpu-1")))
    async with instance(node, claims) as one:
        await one.prepare(1, 2)
        (node.claims_dir / f"{uid(1)}.json").write_bytes(content)
        broken, fine = await one.unprepare(1, 2)
        assert isinstance(broken, RecordError)
        assert fine is None
        (kept,) = (node.claims_dir / "quarantine").iterdir()
        assert kept.read_bytes() == content
        assert str(broken).endswith(f"when no container uses the claim's GPUs: rm {kept}")
        kept.unlink()  # what the message says to do
        assert await one.unprepare(1) is None
    assert node.leftovers() == []


@pytest.mark.parametrize("content", [b"[" * 100_000 + b"\n{}\n", b"{}\n" + b'{"a":' * 100_000 + b"\n"])
async def test_S1_a_record_nested_without_end_costs_its_own_claim_only(
    node: Node, claims: Claims, content: bytes
) -> None:
    for number in (1, 2):
        claims.add(claim(number, result(f"gpu-{number - 1}")))
    async with instance(node, claims) as before:
        await before.prepare(1)
    (node.claims_dir / f"{uid(1)}.json").write_bytes(content)
    (node.cdi.path(uid(1))).write_bytes(content)
    async with instance(node, claims) as after:  # which is also that an agent starts
        assert node.quarantined == [uid(1)]
        assert devices(await after.prepare(2)) == ["gpu-1"]


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: path.symlink_to("/dev/zero")])
async def test_S1_what_is_no_file_is_put_aside_unread(
    node: Node, claims: Claims, make: Callable[[Path], object]
) -> None:
    claims.add(claim(2, result("gpu-1")))
    async with instance(node, claims) as one:
        make(node.claims_dir / f"{uid(1)}.json")
        assert devices(await one.prepare(2, within=5)) == ["gpu-1"]
        assert node.quarantined == [uid(1)]


@pytest.mark.parametrize("content", [b"", b"garbage", b"\x00" * 100])
async def test_S6_what_a_power_cut_left_unreadable_keeps_nothing_in_the_next_boot(
    node: Node, claims: Claims, content: bytes
) -> None:
    for number in (1, 2):
        claims.add(claim(number, result("gpu-0")))
    async with instance(node, claims) as before:
        await before.prepare(1)
    (node.claims_dir / f"{uid(1)}.json").write_bytes(content)
    node.boot_id = "boot-2"
    async with instance(node, claims) as after:
        assert node.quarantined == [uid(1)]
        assert devices(await after.prepare(2)) == ["gpu-0"]
        assert await after.unprepare(1) is None
        assert await after.unprepare(2) is None
    (kept,) = (node.claims_dir / "quarantine").iterdir()
    assert kept.read_bytes() == content
    assert node.leftovers() == []


async def test_S6_what_was_put_aside_in_a_former_boot_is_settled(node: Node, claims: Claims) -> None:
    claims.add(claim(1, result("gpu-0")))
    async with instance(node, claims) as before:
        await before.prepare(1)
        (node.claims_dir / f"{uid(1)}.json").write_bytes(b"")
        assert isinstance(await before.unprepare(1), RecordError)
    node.boot_id = "boot-2"
    async with instance(node, claims) as after:
        assert await after.unprepare(1) is None


@pytest.mark.parametrize("marker", ["boot-2", None])
async def test_S2_what_becomes_unreadable_in_this_boot_is_not_settled_by_a_restart(
    node: Node, claims: Claims, marker: str | None
) -> None:
    """Nor where the driver does not know which boot it ran in last, as after an upgrade."""
    claims.add(claim(1, result("gpu-0")))
    claims.add(claim(2, result("gpu-0")))
    node.boot_id = "boot-2"
    async with instance(node, claims) as before:
        await before.prepare(1)
    (node.claims_dir / f"{uid(1)}.json").write_bytes(b"")
    if marker is None:
        (node.claims_dir / "boot").unlink()
    async with instance(node, claims) as after:
        assert isinstance(await after.unprepare(1), RecordError)
        assert isinstance(await after.prepare(2), DeviceHeldError)


@contextmanager
def full_disk() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


async def test_a_boot_that_can_not_be_noted_settles_nothing(node: Node, claims: Claims) -> None:
    claims.add(claim(1, result("gpu-0")))
    async with instance(node, claims) as before:
        await before.prepare(1)
    (node.claims_dir / f"{uid(1)}.json").write_bytes(b"")
    node.boot_id = "boot-2"
    with full_disk():
        async with instance(node, claims) as after:
            assert isinstance(await after.unprepare(1), RecordError)


async def test_S2_a_boot_that_could_not_be_noted_is_not_taken_for_a_new_one_at_the_next_start(
    node: Node, claims: Claims
) -> None:
    claims.add(claim(1, result("gpu-0")))
    async with instance(node, claims):
        node.boot_id = "boot-2"
    with full_disk():
        before = Harness(node, claims)
    assert devices(await before.prepare(1)) == ["gpu-0"]
    await before.engine.aclose()
    (node.claims_dir / f"{uid(1)}.json").write_bytes(b"")
    async with instance(node, claims) as after:
        assert isinstance(await after.unprepare(1), RecordError)


@pytest.mark.parametrize(
    ("salvaged", "settled", "advice"),
    [
        (None, False, "until somebody runs, on this node and when no container uses the claim's GPUs: rm /q/u.1.json"),
        (EMPTY_RECORD, False, "Nothing is to be done: it is settled when its pods have ended"),
        (None, True, "Nothing is to be done: it is of a former boot, of which at most a GPU's MIG mode is left"),
    ],
)
def test_what_is_told_of_an_unreadable_record_fits_into_an_event_with_what_to_do(
    salvaged: Record | None, settled: bool, advice: str
) -> None:
    path = Path("/q/u.1.json")
    entry = Quarantined(uid="u", path=path, reason="x" * 100_000, salvaged=salvaged, settled=settled)
    assert str(entry).startswith("claim u: its record can't be read (xxx")
    assert str(entry).endswith(advice)
    assert len(str(entry)) < 1024


async def test_a_foreign_file_is_quarantined_and_other_names_are_left_alone(node: Node, claims: Claims) -> None:
    claims.add(claim(1, result("gpu-0")))
    async with instance(node, claims) as one:
        await one.prepare(1)
        other = node.claims_dir / f"{uid(2)}.json"
        shutil.copy(node.claims_dir / f"{uid(1)}.json", other)
        (node.claims_dir / "notes.txt").write_text("mine")
        (node.claims_dir / "..json").write_text("x")
        assert devices(await one.prepare(1)) == ["gpu-0"]
        assert await one.unprepare(1) is None
        assert node.quarantined == [uid(2)]
        assert (node.claims_dir / "notes.txt").read_text() == "mine"


async def test_S1_the_mps_daemon_of_a_claim_whose_record_can_not_be_read_runs_on(bench: Bench) -> None:
    bench.claims.add(claim(1, result("gpu-2"), config=config(MPS)))
    for number in (2, 3):
        bench.claims.add(claim(number, share(number), config=config(MPS)))
    await bench.prepare(1, 2, 3)
    running = dict(bench.hardware.daemons)
    for number in (1, 2):
        (bench.node.claims_dir / f"{uid(number)}.json").write_bytes(b"")
    (bench.node.claims_dir / f"{uid(3)}.json").unlink()
    await bench.restart()
    assert await bench.engine.resume() == ()
    assert bench.hardware.daemons == running
    for path in (bench.node.claims_dir / "quarantine").iterdir():
        path.unlink()  # what the message of an unprepare says to do
    await bench.unprepare(1, 2)
    await bench.engine.resume()
    assert not bench.hardware.daemons


@pytest.mark.parametrize("content", [b"", b"garbage"])
async def test_S1_an_mps_daemon_or_a_partition_shared_with_one_whose_record_can_not_be_read_stays(
    bench: Bench, content: bytes
) -> None:
    for number in (1, 2):
        bench.claims.add(claim(number, share(number), config=config(MPS)))
    for number in (3, 4):
        bench.claims.add(claim(number, result(part(0), shareID=f"{SHARE}{number}")))
    await bench.prepare(1, 2, 3, 4)
    daemons, instances = dict(bench.hardware.daemons), dict(bench.hardware.instances["GPU-0"])
    for number in (1, 3):
        (bench.node.claims_dir / f"{uid(number)}.json").write_bytes(content)
    assert await bench.unprepare(2, 4) == [None, None]
    assert bench.hardware.daemons == daemons
    assert bench.hardware.instances["GPU-0"] == instances
    for path in (bench.node.claims_dir / "quarantine").iterdir():
        path.unlink()  # what the message of an unprepare says to do
    assert await bench.unprepare(1, 3) == [None, None]
    await bench.engine.reconcile()
    await bench.engine.resume()
    assert not bench.hardware.daemons
    assert not bench.hardware.instances["GPU-0"]


async def test_S1_what_a_claim_shares_with_one_whose_record_is_broken_is_not_undone(bench: Bench) -> None:
    for number in (1, 2):
        bench.claims.add(claim(number, share(number), config=config(MPS)))
    await bench.prepare(1, 2)
    before = bench.hardware.picture()
    path = bench.node.claims_dir / f"{uid(1)}.json"
    path.write_bytes(flip(path.read_bytes()))
    assert await bench.unprepare(2) is None
    assert bench.hardware.picture() == before


async def test_S1_a_broken_record_with_an_effect_on_what_is_no_gpu_costs_its_own_claim_only(bench: Bench) -> None:
    for number in (1, 2):
        bench.claims.add(claim(number, result(f"gpu-{number}"), config=config(SLICING_LONG)))
    await bench.prepare(1, 2)
    path = bench.node.claims_dir / f"{uid(1)}.json"
    path.write_bytes(path.read_bytes().replace(b'"TimeSlice","gpu":"GPU-1"', b'"TimeSlice","gpu":{}'))
    assert await bench.unprepare(2) is None
    assert bench.node.quarantined == [uid(1)]


@pytest.mark.parametrize("content", [b"", b"garbage"])
async def test_S1_a_share_whose_record_can_not_be_read_keeps_its_gpu_from_who_wants_the_whole(
    bench: Bench, content: bytes
) -> None:
    for number, wanted in ((1, share(1)), (2, share(2)), (3, result("gpu-1"))):
        bench.claims.add(claim(number, wanted))
    await bench.prepare(1)
    (bench.node.claims_dir / f"{uid(1)}.json").write_bytes(content)
    assert isinstance(await bench.prepare(3), DeviceHeldError)
    assert devices(await bench.prepare(2)) == ["gpu-1"]
