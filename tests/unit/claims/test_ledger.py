"""The ledger of MIG devices that this driver made."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from driver.claims.effect import Partition
from driver.claims.ledger import Ledger, Made
from driver.errors import StorageError
from driver.model.mig import Placement

if TYPE_CHECKING:
    from pathlib import Path

PLANNED = Partition(gpu="GPU-0", device="gpu-0-mig-1g10gb-19-2", profile_id=19, placement=Placement(2, 1))
DONE = replace(PLANNED, uuid="MIG-1", gpu_instance_id=9, compute_instance_id=0)
NAME = "GPU-0_2_1.json"


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path / "partitions", "boot-1")


def made(uuid: str, *claims: str) -> Made:
    return Made(gpu="GPU-0", placement=Placement(2, 1), profile_id=19, uuid=uuid, claims=frozenset(claims))


def test_an_entry_is_there_from_before_the_device_until_after_it(ledger: Ledger, tmp_path: Path) -> None:
    assert ledger.entries() == ()
    ledger.note(PLANNED, "a")
    assert ledger.entries() == (made("", "a"),)
    ledger.note(DONE, "a")
    assert ledger.entries() == (made("MIG-1", "a"),)
    ledger.forget("GPU-0", Placement(2, 1))
    ledger.forget("GPU-0", Placement(2, 1))
    assert list((tmp_path / "partitions").iterdir()) == []


def test_all_claims_that_share_a_device_are_noted_and_a_new_device_begins_anew(ledger: Ledger) -> None:
    ledger.note(DONE, "a")
    ledger.note(DONE, "b")
    assert ledger.entries() == (made("MIG-1", "a", "b"),)
    ledger.note(PLANNED, "c")
    assert ledger.entries() == (made("", "c"),)


def test_S6_what_was_made_before_a_reboot_is_gone(ledger: Ledger, tmp_path: Path) -> None:
    ledger.note(DONE, "a")
    assert Ledger(tmp_path / "partitions", "boot-2").entries() == ()
    assert ledger.entries() == ()


@pytest.mark.parametrize("data", [b"", b"{", b"7", b"[]", b"\xff", b"{}", b'{"boot": "boot-1", "gpu": 3}'])
def test_an_unreadable_entry_is_left_and_costs_itself_only(
    ledger: Ledger, tmp_path: Path, data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    ledger.note(replace(DONE, placement=Placement(0, 1)), "a")
    file = tmp_path / "partitions" / NAME
    file.write_bytes(data)
    assert [one.placement for one in ledger.entries()] == [Placement(0, 1)]
    assert NAME in caplog.text
    assert file.exists()
    ledger.note(DONE, "b")
    assert made("MIG-1", "b") in ledger.entries()


def test_an_entry_under_another_name_is_not_believed(ledger: Ledger, tmp_path: Path) -> None:
    ledger.note(DONE, "a")
    file = tmp_path / "partitions" / NAME
    entry = json.loads(file.read_bytes())
    file.write_text(json.dumps({**entry, "gpu": "GPU-1"}))
    assert ledger.entries() == ()


def test_what_a_crash_left_of_writing_an_entry_goes_with_the_next_lifes_first(ledger: Ledger, tmp_path: Path) -> None:
    ledger.note(DONE, "a")
    left = tmp_path / "partitions" / f".{NAME}.abc.tmp"
    others = tmp_path / "partitions" / ".GPU-1_2_1.json.abc.tmp"  # another instance may be writing it
    left.touch()
    others.touch()
    again = Ledger(tmp_path / "partitions", "boot-1")
    assert again.entries() == (made("MIG-1", "a"),)
    again.note(PLANNED, "b")
    assert not left.exists()
    assert others.exists()


def test_a_directory_that_was_removed_is_made_again(ledger: Ledger, tmp_path: Path) -> None:
    ledger.note(DONE, "a")
    shutil.rmtree(tmp_path / "partitions")
    ledger.note(DONE, "a")
    assert ledger.entries() == (made("MIG-1", "a"),)


def test_a_directory_that_can_t_be_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="file"):
        Ledger(tmp_path / "file" / "partitions", "b").note(PLANNED, "a")
