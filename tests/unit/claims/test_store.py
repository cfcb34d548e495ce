from __future__ import annotations

import errno
import shutil
import threading
from typing import TYPE_CHECKING

import pytest

from driver.claims.holding import Holding
from driver.claims.record import Record, RecordedDevice
from driver.claims.store import RecordStore
from driver.errors import InvalidValueError, StorageError
from tests.unit.claims.helpers import ref, uid

if TYPE_CHECKING:
    from pathlib import Path


def record(number: int) -> Record:
    device = RecordedDevice(request="r", pool="p", kind="gpu", holding=Holding(device="gpu-0", gpu_uuid="GPU-0"))
    return Record(claim=ref(number), boot_id="b", devices=(device,))


@pytest.fixture
def store(tmp_path: Path) -> RecordStore:
    store = RecordStore(tmp_path / "claims")
    store.prepare_directories()
    return store


def test_what_one_instance_writes_another_sees(store: RecordStore) -> None:
    other = RecordStore(store.directory)
    assert store.put([record(1), record(2)]) == {}
    other.refresh()
    assert other.records == {uid(1): record(1), uid(2): record(2)}
    assert other.drop([uid(1), uid(7)]) == {}
    store.refresh()
    assert store.records == {uid(2): record(2)}


def test_files_are_private(store: RecordStore) -> None:
    store.put([record(1)])
    assert store.directory.stat().st_mode & 0o777 == 0o700
    assert (store.directory / f"{uid(1)}.json").stat().st_mode & 0o777 == 0o600


def test_what_can_not_be_read_as_a_file_is_quarantined_and_costs_itself_only(store: RecordStore) -> None:
    store.put([record(1)])
    (store.directory / f"{uid(2)}.json").mkdir()
    (store.directory / f"{uid(3)}.json").symlink_to("/nowhere")
    (store.directory / ("x" * 200 + ".json")).write_text("{}")
    store.refresh()
    assert set(store.records) == {uid(1)}
    assert set(store.quarantined) == {uid(2), uid(3), "x" * 200}
    store.refresh()
    assert set(store.records) == {uid(1)}


def test_a_record_that_can_not_be_written_is_named_and_the_others_are_written(store: RecordStore) -> None:
    (store.directory / f"{uid(2)}.json").mkdir()
    failed = store.put([record(1), record(2)])
    assert set(failed) == {uid(2)}
    assert isinstance(failed[uid(2)], StorageError)
    assert set(store.records) == {uid(1)}
    assert not list(store.directory.glob(".*.tmp"))


def test_a_missing_directory_is_a_storage_error(tmp_path: Path) -> None:
    store = RecordStore(tmp_path / "nowhere")
    with pytest.raises(StorageError, match="nowhere"):
        store.refresh()
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="cannot make"):
        RecordStore(tmp_path / "file" / "claims").prepare_directories()


def test_a_directory_that_is_removed_under_the_driver_is_made_again_with_all_that_is_known(store: RecordStore) -> None:
    with store.lock:
        store.put([record(1), record(2)])
    shutil.rmtree(store.directory)
    with store.lock:
        store.refresh()
        assert set(store.records) == {uid(1), uid(2)}
        store.drop([uid(1)])
    other = RecordStore(store.directory)
    with other.lock:
        other.refresh()
        assert set(other.records) == {uid(2)}
        store.refresh()
        assert set(store.records) == {uid(2)}


def test_a_directory_that_another_took_the_place_of_gets_all_that_is_known(store: RecordStore, tmp_path: Path) -> None:
    with store.lock:
        store.put([record(1)])
    store.directory.rename(tmp_path / "moved")
    other = RecordStore(store.directory)
    with other.lock:
        other.prepare_directories()
        other.put([record(2)])
    with store.lock:
        store.refresh()
        assert set(store.records) == {uid(1), uid(2)}
    with other.lock:
        other.refresh()
        assert set(other.records) == {uid(1), uid(2)}


def test_what_another_instance_unprepared_is_not_written_again(store: RecordStore) -> None:
    other = RecordStore(store.directory)
    for one in (store, other):
        with one.lock:
            one.refresh()
            one.put([] if one.records else [record(1), record(2)])
    shutil.rmtree(store.directory)
    with store.lock:
        store.refresh()
        store.lock.bury(uid(1))
        store.drop([uid(1)])
    with other.lock:
        other.refresh()
        assert set(other.records) == {uid(2)}


def test_what_can_not_be_written_again_is_not_forgotten(store: RecordStore, monkeypatch: pytest.MonkeyPatch) -> None:
    with store.lock:
        store.put([record(1)])
    shutil.rmtree(store.directory)
    full = StorageError("no space left on device")
    monkeypatch.setattr("driver.files.write_all", lambda contents, **_: dict.fromkeys(contents, full))
    with store.lock, pytest.raises(StorageError, match="no space left"):
        store.refresh()
    monkeypatch.undo()
    with store.lock:
        store.refresh()
        assert set(store.records) == {uid(1)}


def test_a_process_without_file_handles_left_does_not_put_records_aside(
    store: RecordStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    with store.lock:
        store.put([record(1)])
    other = RecordStore(store.directory)
    with other.lock:
        monkeypatch.setattr("os.open", _no_handles)
        with pytest.raises(StorageError, match="Too many open files"):
            other.refresh()
        monkeypatch.undo()
        other.refresh()
        assert set(other.records) == {uid(1)}
        assert not other.quarantined


def _no_handles(path: str, flags: int) -> int:
    raise OSError(errno.EMFILE, "Too many open files")


def test_a_uid_never_becomes_another_path(store: RecordStore) -> None:
    with pytest.raises(InvalidValueError):
        store.drop(["../../x"])


def test_the_lock_excludes_other_instances(store: RecordStore) -> None:
    other = RecordStore(store.directory)
    entered = threading.Event()

    def enter() -> None:
        with other.lock:
            entered.set()

    thread = threading.Thread(target=enter)
    with store.lock:
        thread.start()
        assert not entered.wait(0.05)
    assert entered.wait(10)
    thread.join()
