"""Durable files: the one place that writes state to disk.

A file is replaced atomically: temporary file in the same directory, fsync, rename, fsync of the directory. Whoever
reads sees the old bytes or the new ones, after a power cut too. Temporary files are named `.<name>.<random>.tmp`;
`sweep` removes what a crash left.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from typing import TYPE_CHECKING

from driver.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

_TEMP_SUFFIX = ".tmp"


def write_atomic(path: Path, data: bytes, *, mode: int = 0o600, durable: bool = True) -> None:
    """Replace `path` by `data`.

    With `durable=False` nothing is synced: right for files that are rebuilt when they vanish.

    :raises StorageError: the file is as it was, no temporary file is left.
    """
    _replace(path, data, mode, durable)
    if durable:
        with _storage_errors("write", path):
            sync_directory(path.parent)


def write_all(contents: Mapping[Path, bytes], *, mode: int = 0o600) -> dict[Path, StorageError]:
    """Replace several files durably, with one sync per directory; return what failed, those files are as they were.

    If a directory can't be synced, its files count as failed, though they may have been replaced.
    """
    failed: dict[Path, StorageError] = {}
    for path, data in contents.items():
        try:
            _replace(path, data, mode)
        except StorageError as exc:
            failed[path] = exc
    failed.update(_sync_parents(path for path in contents if path not in failed))
    return failed


def remove_all(paths: Iterable[Path]) -> dict[Path, StorageError]:
    """Remove several files durably, with one sync per directory; missing ones are fine. Return what failed."""
    removed: list[Path] = []
    failed: dict[Path, StorageError] = {}
    for path in paths:
        try:
            if remove(path, durable=False):
                removed.append(path)
        except StorageError as exc:
            failed[path] = exc
    failed.update(_sync_parents(removed))
    return failed


def remove(path: Path, *, durable: bool = True) -> bool:
    """Remove `path`; say whether it was there.

    :raises StorageError: it is still there.
    """
    with _storage_errors("remove", path):
        try:
            path.unlink()
        except FileNotFoundError:
            return False
        if durable:
            sync_directory(path.parent)
        return True


def sync_directory(path: Path) -> None:
    """Make renames and removals in `path` survive a power cut."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sweep(directory: Path) -> int:
    """Remove temporary files that a crash left in `directory`; return how many."""
    removed = 0
    if not directory.is_dir():
        return removed
    for temp in directory.glob(f".*{_TEMP_SUFFIX}"):
        with contextlib.suppress(OSError):
            temp.unlink()
            removed += 1
    return removed


def _replace(path: Path, data: bytes, mode: int, durable: bool = True) -> None:
    temp = path.with_name(f".{path.name}.{secrets.token_hex(4)}{_TEMP_SUFFIX}")
    with _storage_errors("write", path):
        try:
            _write_new(temp, data, mode, durable)
            temp.replace(path)
        except BaseException:
            with contextlib.suppress(OSError):
                temp.unlink()
            raise


def _sync_parents(paths: Iterable[Path]) -> dict[Path, StorageError]:
    failed: dict[Path, StorageError] = {}
    by_directory: dict[Path, list[Path]] = {}
    for path in paths:
        by_directory.setdefault(path.parent, []).append(path)
    for directory, members in by_directory.items():
        try:
            with _storage_errors("sync", directory):
                sync_directory(directory)
        except StorageError as exc:
            failed.update(dict.fromkeys(members, exc))
    return failed


def _write_new(path: Path, data: bytes, mode: int, durable: bool) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
    try:
        os.fchmod(handle, mode)
        view = memoryview(data)
        while view:
            view = view[os.write(handle, view) :]
        if durable:
            os.fsync(handle)
    finally:
        os.close(handle)


@contextlib.contextmanager
def _storage_errors(operation: str, path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as exc:
        raise StorageError(f"cannot {operation} {path}: {exc.strerror or exc}") from exc
