from __future__ import annotations

import errno
import fcntl
import os
import resource
import threading
import time
from typing import TYPE_CHECKING

import pytest

from driver.claims.lockfile import SLOTS, LockFile
from driver.errors import InvalidValueError, StorageError

if TYPE_CHECKING:
    from pathlib import Path


def test_it_excludes_other_instances(tmp_path: Path) -> None:
    mine, theirs = LockFile(tmp_path / "lock"), LockFile(tmp_path / "lock")
    entered = threading.Event()

    def enter() -> None:
        with theirs:
            entered.set()

    thread = threading.Thread(target=enter)
    with mine:
        thread.start()
        assert not entered.wait(0.05)
    assert entered.wait(10)
    thread.join()


def test_tombstones_are_seen_by_other_instances_and_renewed(tmp_path: Path) -> None:
    mine, theirs = LockFile(tmp_path / "lock"), LockFile(tmp_path / "lock")
    before = time.monotonic_ns()
    with mine:
        mine.bury("a")
        first = mine.buried_at("a")
    with theirs:
        assert theirs.buried_at("a") == first >= before
        assert theirs.buried_at("b") == 0
        theirs.bury("a")
        assert theirs.buried_at("a") > first
    assert (tmp_path / "lock").stat().st_size == 160


def test_a_uid_that_ends_like_another_is_another(tmp_path: Path) -> None:
    with LockFile(tmp_path / "lock") as lock:
        lock.bury("xa")
        assert lock.buried_at("a") == 0
        lock.bury("a")
        assert lock.buried_at("a") > lock.buried_at("xa") > 0


def test_only_the_oldest_is_forgotten_when_the_ring_is_full(tmp_path: Path) -> None:
    with LockFile(tmp_path / "lock") as lock:
        for number in range(SLOTS + 1):
            lock.bury(f"uid-{number}")
        assert lock.buried_at("uid-0") == 0
        assert all(lock.buried_at(f"uid-{number}") for number in range(1, SLOTS + 1))
    assert (tmp_path / "lock").stat().st_size == SLOTS * 160


def test_a_full_ring_goes_round(tmp_path: Path) -> None:
    with LockFile(tmp_path / "lock") as lock:
        for number in range(3 * SLOTS):
            lock.bury(f"uid-{number}")
    with LockFile(tmp_path / "lock") as later:  # another instance goes on where the oldest is
        later.bury("last")
        assert later.buried_at(f"uid-{2 * SLOTS}") == 0
        assert all(later.buried_at(f"uid-{number}") for number in range(2 * SLOTS + 1, 3 * SLOTS))
    assert (tmp_path / "lock").stat().st_size == SLOTS * 160


@pytest.mark.parametrize("garbage", [b"x", b"\x00" * 500, b"a \n" * 100, b"a b\n"])
def test_garbage_in_the_file_is_no_tombstone_and_is_overwritten(tmp_path: Path, garbage: bytes) -> None:
    (tmp_path / "lock").write_bytes(garbage)
    with LockFile(tmp_path / "lock") as lock:
        assert lock.buried_at("a") == 0
        lock.bury("uid-1")
        assert lock.buried_at("uid-1") > 0


def test_a_file_that_was_removed_is_made_again_and_still_excludes(tmp_path: Path) -> None:
    lock = LockFile(tmp_path / "lock")
    with lock:
        lock.bury("a")
    (tmp_path / "lock").unlink()
    with lock:
        assert (tmp_path / "lock").exists()


@pytest.mark.parametrize("replaced", ["lock", "."])
def test_a_file_that_another_took_the_place_of_is_no_lock(tmp_path: Path, replaced: str) -> None:
    directory = tmp_path / "d"
    mine, theirs = LockFile(directory / "lock"), LockFile(directory / "lock")
    with mine:
        mine.bury("a")
    (directory / replaced).rename(tmp_path / "moved")
    with theirs:
        theirs.bury("b")
    with mine:
        assert mine.lost
        assert mine.buried_at("b") > mine.buried_at("a") == 0


def test_bad_paths_and_names_are_errors(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="cannot open"), LockFile(tmp_path / "file" / "lock"):
        pass
    with LockFile(tmp_path / "lock") as lock, pytest.raises(InvalidValueError):
        lock.bury("a b")


def test_a_file_that_is_removed_while_it_is_waited_for_is_no_lock(tmp_path: Path) -> None:
    mine, theirs = LockFile(tmp_path / "d" / "lock"), LockFile(tmp_path / "d" / "lock")
    entered, done = threading.Event(), threading.Event()

    def enter() -> None:
        with theirs:
            entered.set()
            done.wait(10)

    thread = threading.Thread(target=enter)
    with mine:
        thread.start()
        while not theirs.waiting:
            assert thread.is_alive()
        (tmp_path / "d" / "lock").unlink()
        (tmp_path / "d").rmdir()
    assert entered.wait(10)
    assert theirs.lost
    assert not theirs.waiting
    assert (tmp_path / "d" / "lock").stat().st_ino
    done.set()
    thread.join()


def test_a_lock_that_is_no_file_is_a_storage_error(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "lock")
    with LockFile(tmp_path / "lock") as lock:
        with pytest.raises(StorageError, match="cannot read"):
            lock.buried_at("a")
        with pytest.raises(StorageError, match="cannot read"):
            lock.bury("a")


def test_S6_unprepares_of_a_longer_boot_are_forgotten_those_of_this_one_are_not(tmp_path: Path) -> None:
    with LockFile(tmp_path / "lock") as lock:
        lock.bury("mine")
        lock.forget_other_boots()
        assert lock.buried_at("mine") > 0
    with (tmp_path / "lock").open("ab") as file:
        file.write(f"theirs {time.monotonic_ns() + 10**15}".encode().ljust(159) + b"\n")
    with LockFile(tmp_path / "lock") as lock:
        lock.forget_other_boots()
        assert lock.buried_at("theirs") == 0
        lock.bury("theirs")
        assert 0 < lock.buried_at("theirs") <= time.monotonic_ns()


@pytest.mark.parametrize("room", [160, 170])
def test_what_a_full_disk_has_no_room_for_is_remembered_by_this_instance(tmp_path: Path, room: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with LockFile(tmp_path / "lock") as lock:
        lock.bury("written")
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, hard))
        try:
            for number in range(SLOTS + 1):
                lock.bury(f"uid-{number}")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert lock.buried_at("uid-0") == 0
        assert all(lock.buried_at(f"uid-{number}") > 0 for number in range(1, SLOTS + 1))
        assert lock.buried_at("written") > 0
        lock.bury("uid-7")
        assert lock.buried_at("uid-7") > lock.buried_at(f"uid-{SLOTS}")


@pytest.mark.parametrize("refused", [fcntl.LOCK_EX | fcntl.LOCK_NB, fcntl.LOCK_EX])
def test_a_file_system_without_locks_is_a_storage_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: int
) -> None:
    def flock(_: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available") if operation == refused else BlockingIOError

    lock = LockFile(tmp_path / "lock")
    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(StorageError, match=r"cannot lock .*/lock: No locks available"), lock:
        pass
    assert not lock.waiting
