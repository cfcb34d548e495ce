"""The claims' CDI files, in the directory that the container runtime reads.

The files are rebuilt from the records when they vanish (C1: a reboot empties /var/run), so they are written atomically
but not synced. Names follow the peer's scheme with JSON inside: `k8s.gpu.nvidia.com-claim_<uid>.json`.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

from driver import files
from driver.cdi.spec_file import write_spec
from driver.errors import InvalidValueError, StorageError
from driver.file_watch import stamp
from driver.model import names
from driver.model.json_object import parse_json

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_PREFIX = f"{names.CDI_KIND.replace('/', '-')}_"
_SUFFIX = ".json"


class CdiStore:
    """Write, remove and list the CDI files of claims in one directory, which others use too."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._known: dict[str, tuple[int, ...]] = {}  # what stat said of files whose content was right

    def path(self, claim_uid: str) -> Path:
        """Return where the claim's file is or would be.

        :raises InvalidValueError: the UID is no UID.
        """
        return self.directory / f"{_PREFIX}{names.check_uid(claim_uid, 'claim UID')}{_SUFFIX}"

    def write(self, claim_uid: str, data: bytes) -> None:
        """Put the claim's file there, whole, and make the directory if it is missing.

        :raises StorageError: it is as it was; or another file defines the same devices, which would make them
            unresolvable.
        :raises InvalidValueError: the UID is no UID.
        """
        path = self.path(claim_uid)
        self._refuse_twin(path)
        write_spec(path, data)
        self._remember(claim_uid, path)

    def remove(self, claim_uid: str) -> bool:
        """Remove the claim's file; say whether it was there.

        :raises StorageError: it is still there.
        :raises InvalidValueError: the UID is no UID.
        """
        self._known.pop(claim_uid, None)
        return files.remove(self.path(claim_uid), durable=False)

    def holds(self, claim_uid: str, data: bytes) -> bool:
        """Say whether the claim's file is there with exactly these bytes; one that can't be read is not.

        :raises InvalidValueError: the UID is no UID.
        """
        path = self.path(claim_uid)
        try:
            same = path.read_bytes() == data
        except OSError:
            return False
        if same:
            self._remember(claim_uid, path)
        return same

    def intact(self, claim_uid: str) -> bool:
        """Say whether the file is still the very one that this object wrote or found right; one stat, any thread."""
        known = self._known.get(claim_uid)  # nothing is known of a UID that is none
        return known is not None and known == stamp(f"{self.directory}/{_PREFIX}{claim_uid}{_SUFFIX}")

    def exists(self, claim_uid: str) -> bool:
        """Say whether the claim has a file.

        :raises InvalidValueError: the UID is no UID.
        """
        return self.path(claim_uid).is_file()

    def devices(self, claim_uid: str) -> tuple[str, ...]:
        """Return the device names in the claim's file without the claim's UID; none if it can't be read.

        :raises InvalidValueError: the UID is no UID.
        """
        try:
            spec = parse_json(self.path(claim_uid).read_bytes())
            return tuple(str(device["name"]).removeprefix(f"{claim_uid}-") for device in spec["devices"])
        except (OSError, ValueError, LookupError, TypeError):
            return ()

    def claim_uids(self) -> set[str]:
        """Return the UIDs of the claims that have a file. Files of others, and the peer's, are not counted.

        :raises StorageError: the directory is there but can't be read.
        """
        found = set()
        for name in self._names():
            uid = name.removeprefix(_PREFIX).removesuffix(_SUFFIX)
            if name == f"{_PREFIX}{uid}{_SUFFIX}":
                with contextlib.suppress(InvalidValueError):
                    found.add(names.check_uid(uid))
        return found

    def sweep(self) -> int:
        """Remove temporary files of ours that a crash left; return how many. To be called under the state lock."""
        removed = 0
        for temp in self.directory.glob(f".{_PREFIX}*.tmp"):
            with contextlib.suppress(OSError):
                temp.unlink()
                removed += 1
        return removed

    def _refuse_twin(self, path: Path) -> None:
        twin = f"{str(path).removesuffix(_SUFFIX)}.yaml"
        if os.path.lexists(twin):
            raise StorageError(
                f"cannot write {path}: {twin} defines the same devices, and the container runtime would resolve"
                f" neither; remove {twin}, which another driver left"
            )

    def _remember(self, claim_uid: str, path: Path) -> None:
        found = stamp(path)
        if found is not None:
            self._known[claim_uid] = found

    def _names(self) -> Iterator[str]:
        try:
            with os.scandir(self.directory) as entries:
                yield from (entry.name for entry in entries)
        except FileNotFoundError:
            return
        except OSError as exc:
            raise StorageError.of("read the CDI directory", self.directory, exc) from exc
