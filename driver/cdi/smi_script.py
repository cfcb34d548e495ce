"""The fake `nvidia-smi` of fake GPUs, as a file on the host that containers mount."""

from __future__ import annotations

import logging
import os
import stat
from importlib import resources
from typing import TYPE_CHECKING

from driver import files
from driver.errors import DeviceNotReadyError, StorageError

if TYPE_CHECKING:
    from pathlib import Path

log = logging.getLogger(__name__)

_SCRIPT = "nvidia-smi.sh"


class SmiScript:
    """Is put there whole, and again whenever it was changed or vanished."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._content: bytes | None = None
        self._good: tuple[int, ...] | None = None  # what stat said of the file when its bytes were compared

    def ensure(self) -> None:
        """Make sure that the script is there. Costs one stat where nothing happened to it.

        :raises DeviceNotReadyError: it can't be put there.
        """
        try:
            found = self._identity()
            if found is None or found != self._good:
                self._repair()
        except (OSError, StorageError) as exc:
            raise DeviceNotReadyError(f"cannot put the fake nvidia-smi at {self._path}: {exc}") from exc

    def _repair(self) -> None:
        if self._content is None:
            self._content = resources.files("driver.cdi").joinpath(_SCRIPT).read_bytes()
        if not self._sound():
            self._path.parent.mkdir(parents=True, exist_ok=True)
            files.write_atomic(self._path, self._content, mode=0o755, durable=False)
            log.info("put the fake nvidia-smi at %s", self._path)
        self._good = self._identity()

    def _sound(self) -> bool:
        status = self._status()
        return (
            status is not None
            and stat.S_ISREG(status.st_mode)
            and stat.S_IMODE(status.st_mode) == 0o755
            and self._path.read_bytes() == self._content
        )

    def _identity(self) -> tuple[int, ...] | None:
        status = self._status()
        if status is None:
            return None
        return status.st_ino, status.st_size, status.st_mtime_ns, status.st_mode

    def _status(self) -> os.stat_result | None:
        try:
            return os.lstat(self._path)
        except FileNotFoundError:
            return None
