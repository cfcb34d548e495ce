"""Which MIG devices this driver made: what is left to tell when a claim's record is lost (removed by hand, or garbage).

One file for each placement in use, `<directory>/<gpu uuid>_<start>_<size>.json`: written before the device is made,
again when its UUID is known, and removed after it. The records stay the truth of what is to be undone; an entry only
says "this is ours", so that `claims.strays` may remove what no record owns, and leaves what somebody else made.

Nothing is synced: a power cut takes the devices with it, and an entry of another boot says nothing (S6). What an entry
does not know is what was found before: MIG mode of a GPU whose only record was lost stays on.

Callers hold the GPU's lock to write. Not async: the files are few, small and unsynced.
"""

from __future__ import annotations

import json
import logging
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from driver import files
from driver.errors import InvalidValueError, StorageError
from driver.model import names
from driver.model.json_object import parse_json
from driver.model.mig import Placement

if TYPE_CHECKING:
    from pathlib import Path

    from driver.claims.effect import Partition

log = logging.getLogger(__name__)

_MAX_BYTES = 64 << 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """A MIG device of ours. `claims` are the UIDs of all that had it since, `uuid` is empty until it was made."""

    gpu: str
    placement: Placement
    profile_id: int
    uuid: str
    claims: frozenset[str]


class Ledger:
    """The entries of this boot. Several instances of the driver share the directory (rolling update)."""

    def __init__(self, directory: Path, boot_id: str) -> None:
        self._directory = directory
        self._boot_id = boot_id
        self._clean_gpus: set[str] = set()

    def note(self, partition: Partition, claim_uid: str) -> None:
        """Note that a partition is being made for a claim, was made for it, or is shared with it.

        :raises StorageError: it can't be written: then nothing should be made.
        """
        path = self._path(partition.gpu, partition.placement)
        claims = {claim_uid} | (self._claims(path) if partition.uuid else frozenset())
        entry = {
            "boot": self._boot_id,
            "gpu": partition.gpu,
            "start": partition.placement.start,
            "size": partition.placement.size,
            "profile": partition.profile_id,
            "uuid": partition.uuid,
            "claims": sorted(claims),
        }
        self._clean(partition.gpu)
        files.write_atomic(path, json.dumps(entry).encode() + b"\n", durable=False)

    def forget(self, gpu: str, placement: Placement) -> None:
        """Remove the entry of what is gone, if there is one.

        :raises StorageError: it is still there.
        """
        files.remove(self._path(gpu, placement), durable=False)

    def entries(self) -> tuple[Made, ...]:
        """Return all entries of this boot, and remove those of another.

        One that can't be read is left out, with a warning: what it stood for is not removed by this driver.
        """
        found = []
        for path in sorted(self._directory.glob("*.json")):
            try:
                made = self._read(path)
            except StorageError as exc:
                log.warning("%s; the MIG device that it stands for, if there is one, is left", exc)
                continue
            if made is not None:
                found.append(made)
                continue
            with suppress(StorageError):
                files.remove(path, durable=False)
        return tuple(found)

    def _path(self, gpu: str, placement: Placement) -> Path:
        return self._directory / f"{names.check_uid(gpu)}_{placement.start}_{placement.size}.json"

    def _claims(self, path: Path) -> frozenset[str]:
        with suppress(StorageError):
            before = self._read(path)
            return before.claims if before is not None else frozenset()
        return frozenset()

    def _clean(self, gpu: str) -> None:
        """Make the directory; once, remove what a crash left of writing a GPU's entries: we alone write them now."""
        if gpu in self._clean_gpus and self._directory.exists():
            return
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            for temporary in self._directory.glob(f".{gpu}_*.tmp"):
                temporary.unlink()
        except OSError as exc:
            raise StorageError.of("use", self._directory, exc) from exc
        self._clean_gpus.add(gpu)

    def _read(self, path: Path) -> Made | None:
        """Return an entry; None if there is none of this boot.

        :raises StorageError: it is unreadable.
        """
        try:
            with path.open("rb") as file:
                entry = parse_json(file.read(_MAX_BYTES))
            made = _decode(entry)
            if path != self._path(made.gpu, made.placement):
                raise StorageError(f"{path} is of another placement: {made.placement} of {made.gpu}")
            return made if entry["boot"] == self._boot_id else None
        except FileNotFoundError:
            return None
        except OSError as exc:
            raise StorageError.of("read", path, exc) from exc
        except (InvalidValueError, ValueError, LookupError, TypeError) as exc:
            raise StorageError(f"{path} is no entry of this driver: {exc!r}") from exc


def _decode(entry: dict[str, Any]) -> Made:
    return Made(
        gpu=names.check_uid(entry["gpu"]),
        placement=Placement(int(entry["start"]), int(entry["size"])),
        profile_id=int(entry["profile"]),
        uuid=str(entry["uuid"]),
        claims=frozenset(map(str, entry["claims"])),
    )
