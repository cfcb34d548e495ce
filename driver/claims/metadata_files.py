"""The files with devices' metadata, `<directory>/<uid>/<request>.json` on the node's disk.

They live and go with the claim's CDI file, by which containers get them mounted.
"""

from __future__ import annotations

import logging
import shutil
from typing import TYPE_CHECKING

from driver import files
from driver.cdi import spec as cdi
from driver.cdi.store import CdiStore
from driver.claims.metadata import container_path, documents, generation_of
from driver.errors import StorageError
from driver.model import names

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from driver.claims.record import Record
    from driver.model.device import Device
    from driver.model.snapshot import Snapshot

log = logging.getLogger(__name__)

_FILE, _DIRECTORY = 0o644, 0o755  # any user of a container may read it


class MetadataFiles:
    """Writes and removes the files of claims below `directory`, whose path is the same on the host."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def write(self, record: Record, devices: Mapping[int, Device], snapshot: Snapshot) -> dict[str, cdi.ContainerEdits]:
        """Make the claim's files current; return what mounts them, by request. A changed one has a new generation.

        :raises StorageError: one can't be written.
        """
        directory = self._of(record.claim.uid)
        try:
            directory.mkdir(mode=_DIRECTORY, parents=True, exist_ok=True)
        except OSError as exc:
            raise StorageError.of("make", directory, exc) from exc
        mounts = {}
        for request in dict.fromkeys(one.request.partition("/")[0] for one in record.devices):
            path = directory / f"{request}.json"
            self._keep(path, request, record, devices, snapshot)
            mount = cdi.Mount(host_path=str(path), container_path=container_path(record, request))
            mounts[request] = cdi.ContainerEdits(mounts=(mount,))
        return mounts

    def _keep(
        self, path: Path, request: str, record: Record, devices: Mapping[int, Device], snapshot: Snapshot
    ) -> None:
        try:
            there = path.read_bytes()
        except OSError:
            there = b""
        generation = generation_of(there)
        if generation and documents(record, devices, snapshot, generation)[request] == there:
            return
        data = documents(record, devices, snapshot, generation + 1)[request]
        files.write_atomic(path, data, mode=_FILE, durable=False)

    def remove(self, claim_uid: str) -> None:
        """Remove a claim's files. What can't be removed is a leftover that nobody mounts."""
        directory = self._of(claim_uid)
        if directory.is_dir():
            shutil.rmtree(directory, ignore_errors=True)

    def sweep(self, keep: set[str]) -> None:
        """Remove the files of all claims but those in `keep`."""
        if self._directory.is_dir():
            for path in self._directory.iterdir():
                if path.name not in keep:
                    log.info("Removing metadata of claim %s, which is not prepared", path.name)
                    shutil.rmtree(path, ignore_errors=True)

    def _of(self, claim_uid: str) -> Path:
        return self._directory / names.check_uid(claim_uid, "claim UID")


class CdiStoreWithMetadata(CdiStore):
    """The claims' CDI files, whose removal takes the files that they mount along."""

    def __init__(self, directory: Path, metadata: MetadataFiles) -> None:
        super().__init__(directory)
        self._metadata = metadata

    def remove(self, claim_uid: str) -> bool:
        """See `CdiStore`."""
        removed = super().remove(claim_uid)
        self._metadata.remove(claim_uid)
        return removed

    def sweep(self) -> int:
        """See `CdiStore`."""
        self._metadata.sweep(self.claim_uids())
        return super().sweep()
