"""Durable files: the one place that writes state to disk.

A file is replaced atomically: temporary file in the same directory, fsync, rename, fsync of the directory. Whoever
reads sees the old bytes or the new ones, after a power cut too; inode, size and mtime (of a nanosecond of its own) tell
one from the other. Temporary files are named `.<name>.<random>.tmp`; `sweep` removes what a crash left. `Spares` makes
all that several times cheaper for a directory that one lock guards.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import time
from typing import TYPE_CHECKING

from driver.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

_TEMP_SUFFIX = ".tmp"
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_SPARES_AT_FIRST = 8
_MOST_SPARES = 16
_SPARE_SIZE = 4096  # bytes: one block of most file systems
_SIDE_BY_SIDE = 32  # files that are open at once: a process may have no more than 1024, and has others


def write_atomic(path: Path, data: bytes, *, mode: int = 0o600, durable: bool = True) -> None:
    """Replace `path` by `data`.

    With `durable=False` nothing is synced: right for files that are rebuilt when they vanish.

    :raises StorageError: the file is as it was, no temporary file is left.
    """
    draft = _Draft(path, data, mode)
    try:
        draft.write()
        if durable:
            draft.sync()
        draft.place()
        if durable:
            sync_directory(path.parent)
    except OSError as exc:
        raise StorageError.of("write", path, exc) from exc
    finally:
        draft.discard()


def write_all(
    contents: Mapping[Path, bytes], *, mode: int = 0o600, spares: Spares | None = None
) -> dict[Path, StorageError]:
    """Replace several files durably, where there are spares by these; return what failed, those files are as they were.

    All are on their way to the disk before the first is waited for, so that they travel side by side and one commit of
    the file system's journal serves them all; then one sync per directory. If a directory can't be synced, its files
    count as failed, though they may be replaced.
    """
    failed: dict[Path, StorageError] = {}
    items = list(contents.items())
    for start in range(0, len(items), _SIDE_BY_SIDE):
        some = items[start : start + _SIDE_BY_SIDE]
        failed.update(_place([_Draft(path, data, mode, spares.take(path) if spares else "") for path, data in some]))
    failed.update(_sync_parents([path for path in contents if path not in failed]))
    return failed


def _place(drafts: Sequence[_Draft]) -> dict[Path, StorageError]:
    """Write some files side by side, and put them in their places; return what failed."""
    failed: dict[Path, StorageError] = {}
    try:
        for step in (_Draft.write, _Draft.start, _Draft.sync, _Draft.place):
            for draft in drafts:
                if draft.path not in failed:
                    try:
                        step(draft)
                    except OSError as exc:
                        failed[draft.path] = StorageError.of("write", draft.path, exc)
    finally:
        for draft in drafts:
            draft.discard()
    return failed


def remove_all(paths: Iterable[Path], *, spares: Spares | None = None) -> dict[Path, StorageError]:
    """Remove several files durably, with one sync per directory; missing ones are fine. Return what failed.

    Where there is room for spares, they become such.
    """
    removed: list[Path] = []
    failed: dict[Path, StorageError] = {}
    take_away = spares.set_aside if spares else os.unlink
    for path in paths:
        try:
            take_away(path)
            removed.append(path)
        except OSError as exc:
            if not _is_absent(path, exc):
                failed[path] = StorageError.of("remove", path, exc)
    failed.update(_sync_parents(removed))
    if spares:
        spares.settle(failed)
    return failed


def remove(path: Path, *, durable: bool = True) -> bool:
    """Remove `path`; say whether it was there.

    :raises StorageError: it is still there, or may be after a power cut.
    """
    try:
        os.unlink(path)  # noqa: PTH108 (hot path)
    except OSError as exc:
        if _is_absent(path, exc):
            return False
        raise StorageError.of("remove", path, exc) from exc
    if durable:
        for error in _sync_parents([path]).values():
            raise error
    return True


def _is_absent(path: Path, why: OSError) -> bool:
    """Say whether what could not be removed is not there: a read-only file system refuses before it looks."""
    if isinstance(why, FileNotFoundError):
        return True
    try:
        os.lstat(path)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return False


def sync_directory(path: Path) -> None:
    """Make renames and removals in `path` survive a power cut.

    :raises OSError: it is not there, or can't be synced.
    """
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a lock that other processes honour, on a file made for it; the kernel frees it when its holder dies. Blocks.

    :raises StorageError: the file can't be opened or locked.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as exc:
        raise StorageError.of("open", path, exc) from exc
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
        except OSError as exc:
            raise StorageError.of("lock", path, exc) from exc
        yield
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


class Spares:
    """Removed files, kept in a directory to be written over: a new file would need an inode and blocks first.

    With them a durable write costs about half, several in one go a third, and some are possible on a full disk: `take`
    leaves the last one to what replaces a file, so that who has to note that something is given up can do so.

    Only for files that are changed under one lock, and that nobody reads without it: who still had a removed one open
    would see another's bytes in it. The directory is on the same file system. Spares are named like temporary files, so
    that `sweep` removes what a former process kept; one that somebody else removed is done without.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._paths: list[str] = []
        self._aside: dict[Path, str] = {}

    def refill(self) -> None:
        """Make some anew, all old ones being gone; without those that can't be made."""
        self._paths.clear()
        with contextlib.suppress(OSError):
            for _ in range(_SPARES_AT_FIRST):
                path = _temporary(self.directory, "spare")
                handle = os.open(path, _CREATE, 0o600)
                self._paths.append(path)
                try:
                    os.write(handle, bytes(_SPARE_SIZE))
                finally:
                    os.close(handle)

    def take(self, path: Path) -> str:
        """Return the path of one to write over for `path`, which is the caller's now; empty if there is none."""
        if len(self._paths) > 1 or (self._paths and os.path.lexists(path)):
            return self._paths.pop()
        return ""

    def set_aside(self, path: Path) -> None:
        """Remove a file; it becomes a spare with the next `settle`, if there are not enough.

        :raises OSError: it is still there, or was not there.
        """
        if len(self._paths) + len(self._aside) < _MOST_SPARES:
            aside = _temporary(self.directory, "spare")
            with contextlib.suppress(OSError):  # the spares' directory may be gone
                os.rename(path, aside)  # noqa: PTH104 (hot path)
                self._aside[path] = aside
                return
        os.unlink(path)  # noqa: PTH108 (hot path)

    def settle(self, failed: Collection[Path]) -> None:
        """Take over what was set aside, but not what may have its name again after a power cut: it keeps its bytes."""
        self._paths.extend(aside for path, aside in self._aside.items() if path not in failed)
        self._aside.clear()


class _Draft:
    """A new content of `path` in a temporary file beside it, which `discard` removes unless it was placed."""

    def __init__(self, path: Path, data: bytes, mode: int, spare: str = "") -> None:
        self.path = path
        self._data = data
        self._mode = mode
        self._temp = spare
        self._handle = -1

    def write(self) -> None:
        """Make the temporary file, of a spare if there is one."""
        written_over = self._open_spare()
        if not written_over:
            self._temp = _temporary(self.path.parent, self.path.name)
            self._handle = os.open(self._temp, _CREATE, self._mode)
        os.fchmod(self._handle, self._mode)
        view = memoryview(self._data)
        while view:
            view = view[os.write(self._handle, view) :]
        if written_over:
            os.ftruncate(self._handle, len(self._data))
        # By the kernel's clock, which ticks every few ms, a successor that gets this inode again could look the same.
        now = time.time_ns()
        os.utime(self._handle, ns=(now, now))

    def _open_spare(self) -> bool:
        if not self._temp:
            return False
        try:
            self._handle = os.open(self._temp, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            self.discard()  # whatever it has become
            return False
        return True

    def start(self) -> None:
        """Have the kernel begin to write: what Linux does first when told that a file's pages won't be needed.

        Not every file system and sandbox takes advice; `sync` does all of it then.
        """
        with contextlib.suppress(OSError):
            os.posix_fadvise(self._handle, 0, 0, os.POSIX_FADV_DONTNEED)

    def sync(self) -> None:
        """Wait until it is on the disk."""
        os.fsync(self._handle)

    def place(self) -> None:
        """Give it its name."""
        os.replace(self._temp, self.path)  # noqa: PTH105 (hot path)
        self._temp = ""

    def discard(self) -> None:
        """Close it, and remove it if it has not got its name."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1
        if self._temp:
            with contextlib.suppress(OSError):
                os.unlink(self._temp)  # noqa: PTH108 (hot path)


def _temporary(directory: Path, name: str) -> str:
    return f"{directory}/.{name}.{secrets.token_hex(4)}{_TEMP_SUFFIX}"


def _sync_parents(paths: Sequence[Path]) -> dict[Path, StorageError]:
    failed: dict[Path, StorageError] = {}
    for directory in {path.parent for path in paths}:
        try:
            sync_directory(directory)
        except OSError as exc:
            error = StorageError.of("sync", directory, exc)
            failed.update((path, error) for path in paths if path.parent == directory)
    return failed
