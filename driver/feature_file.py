"""Our labels in a feature file of node-feature-discovery, whose worker puts them on the Node.

One `key=value` a line. Hidden files are not read there, so a half-written one never is.
"""

from __future__ import annotations

import time
from contextlib import aclosing
from typing import TYPE_CHECKING

from driver import files
from driver.errors import StorageError
from driver.file_watch import changes
from driver.labels import TIMESTAMP

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from driver.errors import DriverError


class FeatureFile:
    """One file. It is repaired when somebody changes or deletes it."""

    known = True

    def __init__(self, path: Path, *, now: Callable[[], float] = time.time) -> None:
        self._path = path
        self.timestamp = True
        self._now = now

    @property
    def where(self) -> str:
        """Where the labels are, for messages."""
        return f"feature file {self._path}"

    def differing(self, labels: Mapping[str, str]) -> list[str]:
        """Return the keys that are not in the file as they should be, but for the timestamp."""
        present = self._present()
        if present is None:
            return sorted(labels)
        keys = (present.keys() | labels.keys()) - {TIMESTAMP}
        return sorted(key for key in keys if present.get(key) != labels.get(key))

    async def apply(self, labels: Mapping[str, str]) -> None:
        """Make these the file's labels.

        :raises StorageError: it is as before.
        """
        if not self._path.parent.is_dir():
            raise StorageError(
                f"{self._path.parent} is not there: install node-feature-discovery and mount that directory of the "
                "host (deploy/components/nfd-labels), or let labels be written to the Node"
            )
        stamp = {TIMESTAMP: str(int(self._now()))} if self.timestamp else {}
        lines = [f"{key}={value}\n" for key, value in sorted({**labels, **stamp}.items())] if labels else []
        files.write_atomic(self._path, "".join(lines).encode(), mode=0o644, durable=False)

    async def remove(self) -> None:
        """Delete the file.

        :raises StorageError: it is still there.
        """
        files.remove(self._path, durable=False)

    async def follow(self, changed: Callable[[], None], failed: Callable[[DriverError], None]) -> None:
        """Watch the file until cancelled; call `changed` when anything happened to it."""
        async with aclosing(changes(self._path)) as looks:
            async for _ in looks:
                changed()

    def managers(self, key: str) -> list[str]:
        """Return nobody: a file does not tell who wrote it."""
        return []

    def _present(self) -> dict[str, str] | None:
        try:
            text = self._path.read_text(errors="replace")
        except OSError:
            return None
        pairs = (line.partition("=") for line in text.splitlines() if line)
        return {key: value for key, _, value in pairs}
