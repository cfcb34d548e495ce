"""Records on disk: `<directory>/<uid>.json`, one per claim, with a quarantine per record.

All instances of the driver on a node share the directory (rolling update), so the disk is the truth: callers hold
`lock` and call `refresh()` before they look. Only changed files are read again. Nothing here is async: it runs on
the engine's own thread.

- `quarantine/<uid>.<n>.json` holds the bytes of records that could not be read, until somebody settles them: a new
  record for the claim, an unprepare, another boot, or a person who removes the file. Then they are `….settled`.
- `boot` holds the id of the boot in which the driver ran last.
- `spare/` has removed records that the next ones are written over (`driver.files.Spares`).
- `lock` is the lock file, and holds the moments of the last unprepares (`claims.lockfile`).
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from driver import files
from driver.claims import record as codec
from driver.claims.lockfile import LockFile
from driver.errors import InvalidValueError, RecordError, StorageError
from driver.model import names
from driver.model.wording import counted, cut

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from driver.claims.record import Record

log = logging.getLogger(__name__)

_FRESH_NS = 100_000_000
"""A directory changed more recently than this may change again within one tick of the kernel's clock: look again."""

_SETTLED = ".settled"
_LONGEST_REASON = 200  # bytes; it may quote what is in the file, and an Event has room for 1024

_NOT_ITS_FAULT = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
"""What says something about this process or node, nothing about the record: no reason to put it aside."""

_Signature = tuple[int, int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Quarantined:
    """A record that can't be read. `salvaged` is what its bytes still say, good for defence only."""

    uid: str
    path: Path
    reason: str
    salvaged: Record | None
    settled: bool = False

    @property
    def undoable(self) -> bool:
        """Whether giving up the claim takes nothing but the removal of files."""
        return self.salvaged is not None and not self.salvaged.effects

    @property
    def told(self) -> str:
        """What is wrong, where the bytes are, and what is to be done."""
        reason = cut(self.reason, _LONGEST_REASON)
        what = f"its record can't be read ({reason}); the bytes are kept as {self.path}. "
        if self.settled:
            return f"{what}Nothing is to be done: it is of a former boot, of which at most a GPU's MIG mode is left"
        what += "What it holds is kept from other claims. "
        if self.undoable:
            return f"{what}Nothing is to be done: it is settled when its pods have ended"
        return (
            f"{what}Nothing tells what was changed for it, so its pods stay Terminating until somebody runs, on this "
            f"node and when no container uses the claim's GPUs: rm {self.path}"
        )

    def __str__(self) -> str:
        """Name the claim, and tell."""
        return f"claim {self.uid}: {self.told}"


class RecordStore:
    """The records of this node. `on_quarantine` hears of each record that had to be put aside, once."""

    def __init__(self, directory: Path, on_quarantine: Callable[[Quarantined], None] = lambda _: None) -> None:
        self.directory = directory
        self._quarantine = directory / "quarantine"
        self._spares = files.Spares(directory / "spare")
        self.lock = LockFile(directory / "lock")
        self._on_quarantine = on_quarantine
        self._signatures: dict[str, _Signature] = {}
        self._records: dict[str, Record] = {}
        self._quarantined: dict[str, Quarantined] = {}
        self._quarantine_seen = 0
        self._refreshed = 0  # CLOCK_MONOTONIC, ns
        self._new_boot = False

    @property
    def records(self) -> Mapping[str, Record]:
        """The sound records by claim UID, as of the last `refresh`."""
        return self._records

    @property
    def quarantined(self) -> Mapping[str, Quarantined]:
        """The unsettled unreadable records by claim UID, as of the last `refresh`."""
        return self._quarantined

    def prepare_directories(self) -> None:
        """Make what is missing and clean up after a crash.

        :raises StorageError: the directory can't be used.
        """
        for directory in (self.directory, self._quarantine, self._spares.directory):
            try:
                directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            except OSError as exc:
                raise StorageError.of("make", directory, exc) from exc
            files.sweep(directory)
        self._spares.refill()

    def begin(self, boot_id: str) -> None:
        """Note that the driver runs in this boot. Of a former one nothing is left that a record could tell of (S6).

        If it is the first run in it, what the next `refresh` can't read is settled: after a power cut that may be some.
        """
        marker = self.directory / "boot"
        try:
            former = marker.read_text()
        except (OSError, ValueError):
            former = ""  # not known, so nothing is settled
        if former != boot_id:
            try:
                files.write_atomic(marker, boot_id.encode())
            except StorageError as exc:
                log.warning("%s; records that can't be read are taken for ones of this boot", exc)
                with contextlib.suppress(StorageError):  # or the next start in this boot would take it for a new one
                    files.remove(marker)
            else:
                self._new_boot = bool(former)

    def refresh(self) -> None:
        """Read what changed on disk since the last time; put unreadable records into quarantine.

        :raises StorageError: the directory can't be read.
        """
        if self.lock.lost:
            self._write_again()
        present = self._scan()
        for uid in self._signatures.keys() - present.keys():
            del self._signatures[uid]
            self._records.pop(uid, None)
        for uid, signature in present.items():
            if self._signatures.get(uid) != signature:
                self._load(uid)
                self._signatures[uid] = signature
        self._refresh_quarantine()
        if self._new_boot:
            for uid in tuple(self._quarantined):
                self.settle(uid)
            self._new_boot = False
        self._refreshed = time.monotonic_ns()

    def peek(self, uid: str) -> Record | None:
        """Return a record if it is known and its file is unchanged; one stat, no lock, any thread."""
        known = self._signatures.get(uid)  # before the record: it is set after it
        record = self._records.get(uid)
        try:
            same = known is not None and known == _signature(os.stat(f"{self.directory}/{uid}.json"))  # noqa: PTH116
        except OSError:
            return None
        return record if same else None

    def put(self, records: Sequence[Record]) -> dict[str, StorageError]:
        """Write records durably; return what failed, by UID."""
        paths = {self._path(record.claim.uid): record for record in records}
        failed = files.write_all({path: codec.encode(record) for path, record in paths.items()}, spares=self._spares)
        for path, record in paths.items():
            if path not in failed:
                self._remember(record, path)
                self.settle(record.claim.uid)
        return {paths[path].claim.uid: error for path, error in failed.items()}

    def drop(self, uids: Iterable[str]) -> dict[str, StorageError]:
        """Remove records durably; missing ones are fine. Return what failed, by UID."""
        paths = {self._path(uid): uid for uid in uids}
        failed = files.remove_all(paths, spares=self._spares)
        for path, uid in paths.items():
            if path not in failed:
                self._records.pop(uid, None)
                self._signatures.pop(uid, None)
        return {paths[path]: error for path, error in failed.items()}

    def settle(self, uid: str) -> None:
        """Take a claim out of quarantine; its unreadable bytes stay."""
        entry = self._quarantined.pop(uid, None)
        if entry is not None and entry.path.parent == self._quarantine:
            with contextlib.suppress(OSError):
                entry.path.rename(entry.path.with_name(f"{entry.path.name}{_SETTLED}"))

    def _write_again(self) -> None:
        """Write what we know after the directory was removed under us: its claims still hold their devices.

        Except those that another instance, which was here before us, has written again and unprepared since.
        """
        self.prepare_directories()
        lost = [
            record
            for uid, record in self._records.items()
            if not self._path(uid).exists() and self.lock.buried_at(uid) <= self._refreshed
        ]
        if lost:
            what = counted(len(lost), "claim record")
            log.error("%s was removed or replaced: writing %s again", self.directory, what)
        for error in self.put(lost).values():
            raise error
        self.lock.lost = False

    def _path(self, uid: str) -> Path:
        return self.directory / f"{names.check_uid(uid)}.json"

    def _scan(self) -> dict[str, _Signature]:
        found = {}
        try:
            with os.scandir(self.directory) as entries:
                for entry in entries:
                    name = entry.name
                    if name.endswith(".json") and not name.startswith("."):
                        found[name[:-5]] = _signature(entry.stat(follow_symlinks=False))
        except OSError as exc:
            raise StorageError.of("read", self.directory, exc) from exc
        return found

    def _load(self, uid: str) -> None:
        path = self.directory / f"{uid}.json"
        self._records.pop(uid, None)
        data = b""
        try:
            names.check_uid(uid, "file name")
            data = _read(path)
            self._records[uid] = codec.decode(data, uid)
        except (RecordError, InvalidValueError) as exc:
            self._put_aside(uid, path, str(exc), codec.salvage(data, uid))

    def _put_aside(self, uid: str, path: Path, reason: str, salvaged: Record | None) -> None:
        target = self._quarantine / f"{path.stem}.{time.time_ns()}.json{_SETTLED if self._new_boot else ''}"
        settled = self._new_boot
        try:
            path.rename(target)
        except OSError as exc:
            reason, target, settled = f"{reason}; it could not be moved: {exc.strerror or exc}", path, False
        entry = Quarantined(uid=uid, path=target, reason=reason, salvaged=salvaged, settled=settled)
        if not settled:
            self._quarantined[uid] = entry
        log.error("%s", entry)
        self._on_quarantine(entry)

    def _refresh_quarantine(self) -> None:
        try:
            changed = os.stat(self._quarantine).st_mtime_ns  # noqa: PTH116 (hot path)
        except OSError:
            changed = 0
        if changed == self._quarantine_seen and not self._quarantined:
            return
        self._quarantine_seen = changed if time.time_ns() - changed > _FRESH_NS else 0
        for uid, entry in list(self._quarantined.items()):
            if not entry.path.exists():
                del self._quarantined[uid]
        for path in sorted(self._quarantine.glob("*.json")):
            uid = path.name.rsplit(".", 2)[0]
            if uid not in self._quarantined and uid not in self._records:
                self._quarantined[uid] = _inspect(uid, path)

    def _remember(self, record: Record, path: Path) -> None:
        self._records[record.claim.uid] = record
        with contextlib.suppress(OSError):
            self._signatures[record.claim.uid] = _signature(os.stat(path))  # noqa: PTH116 (hot path)


def _signature(stat: os.stat_result) -> _Signature:
    return stat.st_ino, stat.st_mtime_ns, stat.st_size


def _read(path: Path) -> bytes:
    try:
        with open(path, "rb", opener=_open_warily) as file:
            return file.read(codec.MAX_BYTES + 1)
    except OSError as exc:
        if exc.errno in _NOT_ITS_FAULT:
            raise StorageError.of("read", path, exc) from exc
        raise RecordError(f"it can't be read: {exc.strerror or exc}") from exc


def _open_warily(path: str, flags: int) -> int:
    """Open what somebody may have left there: a pipe is not waited for, a link is not followed."""
    return os.open(path, flags | os.O_NONBLOCK | os.O_NOFOLLOW)


def _inspect(uid: str, path: Path) -> Quarantined:
    data = b""
    try:
        data = _read(path)
        codec.decode(data, uid)
        reason = "it was put aside earlier"
    except RecordError as exc:
        reason = str(exc)
    return Quarantined(uid=uid, path=path, reason=reason, salvaged=codec.salvage(data, uid))
