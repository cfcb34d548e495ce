"""The lock file that all instances of the driver on a node share, and the tombstones in it.

The lock is flock(2): the kernel frees it when its holder dies. The file's content is a ring of the last unprepares: a
prepare that began earlier must not finish after the unprepare of the same claim (S10), in whichever instance it runs.
They live here since the file is open anyway: a tombstone costs one small write, no file of its own.
"""

from __future__ import annotations

import fcntl
import logging
import os
import time
from typing import TYPE_CHECKING, Final

from driver.errors import StorageError
from driver.model import names

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

log = logging.getLogger(__name__)

SLOTS: Final = 256
"""Unprepares that are remembered: far more than a node has within one call's deadline (45 s)."""

_SLOT: Final = 160  # bytes: a UID of at most 128, a moment of at most 20 digits, a space, a newline


class LockFile:
    """A context manager that excludes the node's other instances while it is entered.

    One per instance, used from one thread. All else may only be called while it is held, except `waiting`.
    `lost` is set when the file was removed or replaced under us, maybe with its directory; whoever deals with that
    resets it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lost = False
        self.waiting = False
        self._handle = -1
        self._file = (0, 0)  # device and inode
        self._tombs: bytes | None = None  # as read since the lock was taken
        self._turn = -1
        self._unwritten: dict[str, int] = {}  # moments that the disk had no room for

    def __enter__(self) -> LockFile:
        """Wait for the lock; its directory is made if it is missing.

        :raises StorageError: the file can't be opened or locked.
        """
        while True:
            if self._handle < 0:
                self._handle = self._open()
                self._file = _identity(os.fstat(self._handle))
            self._take()
            if self._is_in_place():
                return self
            self.lost = True  # others lock another file by now
            os.close(self._handle)
            self._handle = -1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._tombs = None
        fcntl.flock(self._handle, fcntl.LOCK_UN)

    def bury(self, uid: str) -> None:
        """Note that a claim is unprepared now.

        What can't be written (a full disk) is remembered in this process: an unprepare is what makes room again.

        :raises StorageError: the file can't be read.
        """
        now = time.monotonic_ns()
        entry = f"{names.check_uid(uid)} {now}".encode()
        tombs = self._read()
        position = _find(tombs, uid)
        if position < 0:
            position = self._next_slot(tombs)
        self._tombs = None
        try:
            whole = os.pwrite(self._handle, entry.ljust(_SLOT - 1) + b"\n", position) == _SLOT
            why = "no room for a whole entry"
        except OSError as exc:
            whole, why = False, exc.strerror or str(exc)
        if not whole:
            log.warning("Cannot write %s: %s. Other instances do not learn of this unprepare", self.path, why)
            self._remember(uid, now)

    def buried_at(self, uid: str) -> int:
        """Return the moment of the claim's last unprepare (CLOCK_MONOTONIC, ns), 0 if it is not remembered.

        :raises StorageError: the file can't be read.
        """
        tombs = self._read()
        position = _find(tombs, uid)
        written = _moment(tombs[position : position + _SLOT]) if position >= 0 else 0
        return max(written, self._unwritten.get(uid, 0))

    def forget_other_boots(self) -> None:
        """Forget all if a moment is yet to come: the clock starts anew at each boot, so these are of a former one.

        To be called before any unprepare of this process: entries of a shorter boot are older than all its calls.

        :raises StorageError: the file can't be read or written.
        """
        tombs, now = self._read(), time.monotonic_ns()
        if all(_moment(tombs[start : start + _SLOT]) <= now for start in range(0, len(tombs), _SLOT)):
            return
        self._tombs = None
        try:
            os.ftruncate(self._handle, 0)
        except OSError as exc:
            raise StorageError.of("write", self.path, exc) from exc

    def _remember(self, uid: str, moment: int) -> None:
        self._unwritten.pop(uid, None)
        self._unwritten[uid] = moment
        if len(self._unwritten) > SLOTS:
            del self._unwritten[next(iter(self._unwritten))]

    def _next_slot(self, tombs: bytes) -> int:
        """Return where the next entry goes: at the end, or over an old one, in turn from the oldest on."""
        if len(tombs) < SLOTS * _SLOT:
            return len(tombs) - len(tombs) % _SLOT
        if self._turn < 0:
            self._turn = min(range(SLOTS), key=lambda slot: _moment(tombs[slot * _SLOT : (slot + 1) * _SLOT]))
        slot, self._turn = self._turn, (self._turn + 1) % SLOTS
        return slot * _SLOT

    def _is_in_place(self) -> bool:
        """Say whether the file is still what its path leads to; its directory may have been moved, or mounted over."""
        try:
            return _identity(os.lstat(self.path)) == self._file
        except OSError:
            return False

    def _take(self) -> None:
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._wait()
        except OSError as exc:
            raise self._cannot_lock(exc) from exc

    def _wait(self) -> None:
        self.waiting = True
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX)
        except OSError as exc:
            raise self._cannot_lock(exc) from exc
        finally:
            self.waiting = False

    def _cannot_lock(self, error: OSError) -> StorageError:
        why = error.strerror or error
        return StorageError(f"cannot lock {self.path}: {why}; is it on a file system without locks, such as some NFS?")

    def _read(self) -> bytes:
        if self._tombs is None:
            try:
                self._tombs = os.pread(self._handle, SLOTS * _SLOT, 0)
            except OSError as exc:
                raise StorageError.of("read", self.path, exc) from exc
        return self._tombs

    def _open(self) -> int:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            return os.open(self.path, flags, 0o600)
        except OSError as exc:
            raise StorageError.of("open", self.path, exc) from exc


def _identity(stat: os.stat_result) -> tuple[int, int]:
    return stat.st_dev, stat.st_ino


def _find(tombs: bytes, uid: str) -> int:
    """Return where a claim's entry begins, or -1. Another UID may end like this one."""
    key = uid.encode() + b" "
    position = tombs.find(key)
    while position % _SLOT and position >= 0:
        position = tombs.find(key, position + 1)
    return position


def _moment(slot: bytes) -> int:
    try:
        return int(slot.split()[1])
    except (LookupError, ValueError):
        return 0
