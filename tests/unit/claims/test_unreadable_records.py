"""Records that can't be read: kept, told, and in the way of their GPUs until that is settled."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

import pytest

from driver.errors import DeviceHeldError, DeviceNotReadyError, RecordError
from tests.unit.claims.bench import MPS, Bench, config, share
from tests.unit.claims.harness import devices, instance
from tests.unit.claims.helpers import Claims, Node, claim, result, uid

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


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
        one.used = frozenset({uid(1)})
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
        assert str(kept) in str(broken)
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


async def test_S1_what_a_claim_shares_with_one_whose_record_is_broken_is_not_undone(bench: Bench) -> None:
    for number in (1, 2):
        bench.claims.add(claim(number, share(number), config=config(MPS)))
    await bench.prepare(1, 2)
    before = bench.hardware.picture()
    path = bench.node.claims_dir / f"{uid(1)}.json"
    path.write_bytes(flip(path.read_bytes()))
    assert await bench.unprepare(2) is None
    assert bench.hardware.picture() == before


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
