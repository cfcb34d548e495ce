"""The static CDI file of the device-plugin API: every GPU and MIG device of the node, by UUID, kept current.

It has a kind of its own, so it can't conflict with the claims' files or those of NVIDIA's toolkit; its name is the
peer's, whose file it replaces.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from driver import files
from driver.cdi import spec
from driver.cdi.spec import NO_EDITS, ContainerEdits
from driver.cdi.spec_file import write_spec
from driver.errors import DriverError, StorageError
from driver.file_watch import stamp
from driver.model.json_object import parse_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from driver.cdi.edits import EditsSource
    from driver.model.device import Device

log = logging.getLogger(__name__)

KIND = "k8s.device-plugin.nvidia.com/gpu"
_STEM = KIND.replace("/", "-")
_FILE = f"{_STEM}.json"


def qualified(uuid: str) -> str:
    """Return the CDI name of a device."""
    return f"{KIND}={uuid}"


class StaticSpec:
    """One file in `directory`. `refresh` looks at the node and takes a while; the rest is cheap."""

    def __init__(self, directory: Path, edits: EditsSource) -> None:
        self._path = directory / _FILE
        self._edits = edits
        self._data = b""
        self._stamp: tuple[int, ...] | None = None
        self.error = ""
        """Why the file is not current; empty if it is."""
        self.common: ContainerEdits = NO_EDITS
        self.devices: Mapping[str, ContainerEdits] = {}
        self.left_out: Mapping[str, str] = {}
        """Why devices are not in it, by UUID."""

    def refresh(self, devices: Mapping[str, Device]) -> None:
        """Make the file say what containers need for `devices`, by UUID; one that is not ready costs itself only.

        Where nothing can be said now, the file stays as it is: running pods restart their containers by it.

        :raises DriverError: it could not be made current; `error` says so too.
        """
        try:
            self._refresh(devices)
        except DriverError as exc:
            self.error = str(exc)
            raise
        self.error = ""

    def ensure(self) -> None:
        """Write the file again if it vanished or was changed. One stat where it is as it was.

        :raises StorageError: it can't be written.
        """
        if self._data and stamp(self._path) != self._stamp:
            self._write()

    def remove(self) -> None:
        """Remove the file.

        :raises StorageError: it is still there.
        """
        self._data, self.devices = b"", {}
        files.remove(self._path, durable=False)

    def _refresh(self, devices: Mapping[str, Device]) -> None:
        if not devices:
            return
        self.common = self._edits.common()
        found: dict[str, ContainerEdits] = {}
        left_out: dict[str, str] = {}
        for uuid, device in devices.items():
            try:
                found[uuid] = self._edits.device(device)
            except DriverError as exc:
                left_out[uuid] = str(exc)
                if self.left_out.get(uuid) != str(exc):
                    log.warning("%s is left out of %s: %s", device.name, self._path, exc)
        self.devices, self.left_out = found, left_out
        if not found:
            raise StorageError(f"no device is ready to be in {self._path}")  # C4: never an empty file
        data = spec.encode(spec.kind_spec(KIND, common=self.common, devices=found))
        if data != self._data or stamp(self._path) != self._stamp:
            self._data = data
            self._adopt_or_write()

    def _adopt_or_write(self) -> None:
        try:
            same = self._path.read_bytes() == self._data
        except OSError:
            same = False
        if same:
            self._stamp = stamp(self._path)
        else:
            self._write()

    def _write(self) -> None:
        self._refuse_twins()
        write_spec(self._path, self._data)
        self._stamp = stamp(self._path)
        log.info("wrote %s", self._path)

    def _refuse_twins(self) -> None:
        """Refuse to define devices that another file defines: the runtime would resolve neither."""
        for twin in _twins(self._path.parent):
            raise StorageError(
                f"cannot write {self._path}: {twin} defines devices of kind {KIND} too, and the container runtime "
                f"would resolve neither; remove {twin.name}, which another device plugin left"
            )


def _twins(directory: Path) -> Iterable[Path]:
    try:
        entries = sorted(directory.iterdir())
    except OSError:
        return
    for path in entries:
        if path.name != _FILE and path.name.startswith(_STEM) and path.suffix in (".json", ".yaml") and _is_twin(path):
            yield path


def _is_twin(path: Path) -> bool:
    if path.suffix == ".yaml":
        return path.is_file()  # not ours to parse; by its name it is of this kind
    try:
        return bool(parse_json(path.read_bytes()).get("kind") == KIND)
    except (OSError, ValueError, AttributeError):
        return False
