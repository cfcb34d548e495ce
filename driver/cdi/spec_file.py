"""Writing a CDI file where container runtimes look for them: a directory that a reboot empties, and that others use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from driver import files
from driver.errors import StorageError

if TYPE_CHECKING:
    from pathlib import Path

_FILE, _DIRECTORY = 0o644, 0o755  # any runtime may read them


def write_spec(path: Path, data: bytes) -> None:
    """Put a CDI file there, whole but not synced, as it can be made anew; make the directory if it is missing.

    :raises StorageError: the file is as it was.
    """
    try:
        files.write_atomic(path, data, mode=_FILE, durable=False)
    except StorageError:
        if path.parent.is_dir():
            raise
        _make(path.parent)
        files.write_atomic(path, data, mode=_FILE, durable=False)


def _make(directory: Path) -> None:
    try:
        directory.mkdir(mode=_DIRECTORY, parents=True, exist_ok=True)
    except OSError as exc:
        raise StorageError.of("make the CDI directory", directory, exc) from exc
