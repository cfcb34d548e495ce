from __future__ import annotations

import errno
import fcntl
import os
import resource
import threading
from typing import TYPE_CHECKING

import pytest

from driver import files
from driver.errors import StorageError
from tests.disk import full_disk

if TYPE_CHECKING:
    from pathlib import Path


def test_a_file_is_replaced_whole_with_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "a"
    files.write_atomic(path, b"one")
    files.write_atomic(path, b"two" * 100_000, mode=0o644)
    assert path.read_bytes() == b"two" * 100_000
    assert path.stat().st_mode & 0o777 == 0o644
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("durable", [True, False])
def test_a_failed_write_leaves_the_old_file_and_no_temporary_one(tmp_path: Path, durable: bool) -> None:
    target = tmp_path / "directory"
    target.mkdir()
    with pytest.raises(StorageError, match=f"cannot write {target}"):
        files.write_atomic(target, b"x", durable=durable)
    assert list(tmp_path.iterdir()) == [target]
    with pytest.raises(StorageError, match="No such file"):
        files.write_atomic(tmp_path / "missing" / "x", b"")


def test_a_disk_that_takes_no_more_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "a"
    files.write_atomic(path, b"old")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        with pytest.raises(StorageError, match="File too large"):
            files.write_atomic(path, b"x" * 10_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_several_files_succeed_and_fail_alone(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    failed = files.write_all({tmp_path / "a": b"1", tmp_path / "b": b"2", tmp_path / "c": b"3"})
    assert set(failed) == {tmp_path / "b"}
    assert (tmp_path / "c").read_bytes() == b"3"
    assert set(files.remove_all([tmp_path / "a", tmp_path / "b", tmp_path / "nothing"])) == {tmp_path / "b"}
    assert not (tmp_path / "a").exists()


def test_a_file_system_that_takes_no_advice_is_written_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: int) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(os, "posix_fadvise", refuse)
    assert files.write_all({tmp_path / "a": b"1"}) == {}
    assert (tmp_path / "a").read_bytes() == b"1"


def test_many_files_do_not_need_many_descriptors(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = set(map(int, os.listdir("/proc/self/fd")))
    free = [number for number in range(1024) if number not in used]
    resource.setrlimit(resource.RLIMIT_NOFILE, (free[50], hard))
    try:
        failed = files.write_all({tmp_path / str(number): b"x" for number in range(100)})
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert failed == {}
    assert len(list(tmp_path.iterdir())) == 100


def test_removing_says_whether_it_was_there(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    assert files.remove(tmp_path / "a")
    assert not files.remove(tmp_path / "a")


def test_what_is_not_there_is_removed_on_a_read_only_file_system_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").touch()

    def read_only(path: object) -> None:  # as the kernel does, which does not look whether it is there
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    monkeypatch.setattr(os, "unlink", read_only)
    assert not files.remove(tmp_path / "none")
    with pytest.raises(StorageError, match=f"cannot remove {tmp_path}/a: Read-only file system"):
        files.remove(tmp_path / "a")
    assert set(files.remove_all([tmp_path / "none", tmp_path / "a"])) == {tmp_path / "a"}


def test_a_removal_that_may_be_undone_by_a_power_cut_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").touch()

    def broken(path: Path) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(files, "sync_directory", broken)
    with pytest.raises(StorageError, match="cannot sync"):
        files.remove(tmp_path / "a")


def test_sweep_removes_only_temporary_files(tmp_path: Path) -> None:
    for name in (".a.json.12ab.tmp", "b.tmp", ".hidden"):
        (tmp_path / name).touch()
    assert files.sweep(tmp_path) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == [".hidden", "b.tmp"]
    assert files.sweep(tmp_path / "nowhere") == 0


@pytest.mark.parametrize(
    ("number", "says"),
    [
        (errno.ENOSPC, "cannot write /x/y: No space left on device; free space on that file system"),
        (errno.EROFS, "cannot write /x/y: Read-only file system; mount that file system writable"),
        (errno.EACCES, "cannot write /x/y: Permission denied; give the agent's user access to it"),
        (errno.ENOTDIR, "cannot write /x/y: Not a directory"),
    ],
)
def test_a_failure_says_what_to_do_where_that_can_be_told(number: int, says: str) -> None:
    assert str(StorageError.of("write", "/x/y", OSError(number, os.strerror(number)))) == says


def test_a_lock_lets_one_in_at_a_time_and_is_free_after(tmp_path: Path) -> None:
    path, order = tmp_path / "new" / "lock", []

    def other() -> None:
        with files.locked(path):
            order.append("other")

    with files.locked(path):
        thread = threading.Thread(target=other)
        thread.start()
        with path.open("a") as handle, pytest.raises(BlockingIOError):
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        order.append("first")
    thread.join(10)
    assert order == ["first", "other"]


def test_a_lock_that_can_not_be_had_says_where(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=f"cannot open {tmp_path}: Is a directory"), files.locked(tmp_path):
        pass


def test_no_two_files_have_the_same_date_however_fast_they_follow(tmp_path: Path) -> None:
    """The kernel gives freed inodes again, and dates files by a clock that ticks every few ms."""
    paths = [tmp_path / f"{number}" for number in range(100)]
    for path in paths[:50]:
        files.write_atomic(path, b"x", durable=False)
    files.write_all(dict.fromkeys(paths[50:], b"x"))
    assert len({path.stat().st_mtime_ns for path in paths}) == 100


@pytest.fixture
def spares(tmp_path: Path) -> files.Spares:
    (tmp_path / "spare").mkdir()
    return files.Spares(tmp_path / "spare")


def test_what_is_removed_is_written_over_by_the_next_one(tmp_path: Path, spares: files.Spares) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    files.write_all({tmp_path / "x": b"x", old: b"a long content"})
    inode, dated = old.stat().st_ino, old.stat().st_mtime_ns
    assert files.remove_all([tmp_path / "x", old], spares=spares) == {}
    assert list(tmp_path.iterdir()) == [spares.directory]
    assert files.write_all({new: b"short"}, mode=0o640, spares=spares) == {}
    assert new.read_bytes() == b"short"
    assert new.stat().st_ino == inode
    assert new.stat().st_mtime_ns != dated
    assert new.stat().st_mode & 0o777 == 0o640


def test_the_last_spare_is_for_what_replaces_a_file(tmp_path: Path, spares: files.Spares) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    files.write_all({old: b"1", tmp_path / "x": b"1"})
    files.remove_all([tmp_path / "x"], spares=spares)
    assert spares.take(new) == ""
    assert spares.take(old) != ""
    assert spares.take(old) == ""


def test_no_more_spares_are_kept_than_are_of_use(tmp_path: Path, spares: files.Spares) -> None:
    paths = [tmp_path / str(number) for number in range(100)]
    files.write_all(dict.fromkeys(paths, b"x"))
    assert files.remove_all([*paths, tmp_path / "nothing"], spares=spares) == {}
    assert len(list(spares.directory.iterdir())) == 16
    assert list(tmp_path.iterdir()) == [spares.directory]


def test_without_a_directory_for_spares_files_are_removed_all_the_same(tmp_path: Path, spares: files.Spares) -> None:
    path = tmp_path / "a"
    spares.directory.rmdir()
    spares.refill()
    assert files.write_all({path: b"1"}, spares=spares) == {}
    assert files.remove_all([path, tmp_path / "nothing"], spares=spares) == {}
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("becomes", ["nothing", "directory", "link"])
def test_a_spare_that_is_none_any_more_is_done_without(tmp_path: Path, spares: files.Spares, becomes: str) -> None:
    path, aim = tmp_path / "a", tmp_path / "aim"
    aim.write_bytes(b"untouched")
    spares.refill()
    for spare in list(spares.directory.iterdir()):
        spare.unlink()
        if becomes == "directory":
            spare.mkdir()
        elif becomes == "link":
            spare.symlink_to(aim)
    assert files.write_all({path: b"1"}, spares=spares) == {}
    assert path.read_bytes() == b"1"
    assert aim.read_bytes() == b"untouched"


def test_a_removal_that_may_not_last_keeps_its_bytes(
    tmp_path: Path, spares: files.Spares, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a power cut the name may be there again: with another's bytes it would be a lie."""
    path = tmp_path / "a"
    files.write_all({path: b"1"})

    def fail(_: Path) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as broken:
        broken.setattr(files, "sync_directory", fail)
        assert set(files.remove_all([path], spares=spares)) == {path}
    (aside,) = spares.directory.iterdir()
    files.write_all({path: b"2", tmp_path / "b": b"3"})
    assert files.write_all({path: b"4"}, spares=spares) == {}
    assert aside.read_bytes() == b"1"


def test_spares_make_writing_possible_on_a_full_disk(
    tmp_path: Path, spares: files.Spares, monkeypatch: pytest.MonkeyPatch
) -> None:
    spares.refill()
    monkeypatch.setattr(os, "open", full_disk(os.open))
    assert set(files.write_all({tmp_path / "a": b"1"})) == {tmp_path / "a"}
    assert files.write_all({tmp_path / "a": b"1"}, spares=spares) == {}
    assert (tmp_path / "a").read_bytes() == b"1"
    spares.refill()
    assert spares.take(tmp_path / "a") == ""
