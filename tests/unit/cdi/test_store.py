from __future__ import annotations

import resource
import stat
from pathlib import Path

import pytest

from driver.cdi.store import CdiStore
from driver.errors import InvalidValueError, StorageError

UID = "3f0c5a2e-11aa-4b0a-9d7e-0a1b2c3d4e5f"
FILE = f"k8s.gpu.nvidia.com-claim_{UID}.json"


@pytest.fixture
def directory(tmp_path):
    return tmp_path / "run/cdi"


@pytest.fixture
def store(directory):
    return CdiStore(directory)


def test_write_makes_the_directory_and_a_world_readable_file(store, directory):
    store.write(UID, b"{}\n")
    assert [path.name for path in directory.iterdir()] == [FILE]
    assert (directory / FILE).read_bytes() == b"{}\n"
    assert stat.S_IMODE((directory / FILE).stat().st_mode) == 0o644


def test_write_replaces(store, directory):
    store.write(UID, b"old")
    store.write(UID, b"new")
    assert [path.read_bytes() for path in directory.iterdir()] == [b"new"]


def test_holds_exactly_these_bytes(store, directory):
    assert not store.holds(UID, b"a")
    store.write(UID, b"a")
    assert store.holds(UID, b"a")
    assert not store.holds(UID, b"ab")


def test_C1_an_emptied_directory_is_noticed_and_rebuilt(store, directory):
    store.write(UID, b"a")
    (directory / FILE).unlink()
    directory.rmdir()
    assert not store.holds(UID, b"a")
    assert store.claim_uids() == set()
    store.write(UID, b"a")
    assert store.holds(UID, b"a")


def test_remove_says_whether_it_was_there(store):
    assert store.remove(UID) is False
    store.write(UID, b"a")
    assert store.remove(UID) is True
    assert store.claim_uids() == set()


def test_claim_uids_are_those_of_our_files_only(store, directory):
    store.write(UID, b"a")
    store.write("a.b_c", b"a")
    for name in ("nvidia.json", f"k8s.gpu.nvidia.com-claim_{UID[:-1]}0.yaml", "k8s.gpu.nvidia.com-claim_.json"):
        (directory / name).write_text("{}")
    (directory / "k8s.gpu.nvidia.com-claim_a..b.json").write_text("{}")
    assert store.claim_uids() == {UID, "a.b_c"}


@pytest.mark.parametrize("uid", ["", "..", "../../etc/passwd", "a/b", "a\0b", "-x", "x" * 129])
def test_a_bad_uid_never_becomes_a_path(store, directory, uid):
    for call in (lambda: store.write(uid, b""), lambda: store.remove(uid), lambda: store.holds(uid, b"")):
        with pytest.raises(InvalidValueError, match="claim UID"):
            call()
    assert not directory.exists()


def test_the_peers_file_for_the_same_claim_is_a_conflict_and_is_left_alone(store, directory):
    store.write(UID, b"a")
    peers = directory / FILE.replace(".json", ".yaml")
    peers.write_text("theirs")
    with pytest.raises(StorageError, match=r"defines the same devices.*remove .*\.yaml"):
        store.write(UID, b"b")
    assert peers.read_text() == "theirs"
    assert store.holds(UID, b"a")


def test_the_peers_file_for_another_claim_is_no_conflict(store, directory):
    store.write(UID, b"a")
    (directory / "k8s.gpu.nvidia.com-claim_0.yaml").write_text("theirs")
    store.write(UID, b"b")
    assert store.holds(UID, b"b")


def test_sweep_removes_our_temporary_files_only(store, directory):
    store.write(UID, b"a")
    (directory / f".{FILE}.01234567.tmp").write_text("half")
    (directory / ".nvidia.json.tmp").write_text("theirs")
    assert store.sweep() == 1
    assert sorted(path.name for path in directory.iterdir()) == [".nvidia.json.tmp", FILE]


def test_sweep_of_a_missing_directory_is_nothing(store):
    assert store.sweep() == 0


def test_a_directory_that_may_not_be_written_is_said(tmp_path):
    # sysfs takes no new files, whoever asks.
    with pytest.raises(StorageError, match=r"cannot write /sys/kernel/.*claim_"):
        CdiStore(Path("/sys/kernel")).write(UID, b"a")
    with pytest.raises(StorageError, match="cannot make the CDI directory"):
        CdiStore(Path("/sys/kernel/cdi")).write(UID, b"a")


def test_a_path_that_is_no_directory_is_said(tmp_path):
    (tmp_path / "cdi").write_text("a file")
    store = CdiStore(tmp_path / "cdi")
    with pytest.raises(StorageError, match=f"cannot make the CDI directory {tmp_path}/cdi"):
        store.write(UID, b"a")
    with pytest.raises(StorageError, match="cannot read the CDI directory"):
        store.claim_uids()
    assert not store.holds(UID, b"a")


def test_a_full_file_system_leaves_the_old_file_and_no_other(store, directory):
    store.write(UID, b"old")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1, hard))
    try:
        with pytest.raises(StorageError, match=f"cannot write {directory}/{FILE}"):
            store.write(UID, b"new and longer")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [path.read_bytes() for path in directory.iterdir()] == [b"old"]
