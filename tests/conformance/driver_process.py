"""The driver as a process of the suite's: the same program, by the same command line, as on a node."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_TAIL = 30  # lines


class DriverProcess:
    """Runs `gpu-dra` with arguments, again and again; its log goes to one file."""

    def __init__(self, arguments: Sequence[str], log: Path) -> None:
        self._arguments, self._log = arguments, log
        self._process: subprocess.Popen[bytes] | None = None
        self.settings: dict[str, str] = {}
        """More settings, by flag; they take effect at the next start, and go before those of the arguments."""

    @property
    def runs(self) -> bool:
        """Say whether it runs."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start it."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith("GPU_DRA_")}
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "driver", *self._arguments, *self._more()],
                stdout=log,
                stderr=log,
                env=environment,
            )

    def end(self, number: int = signal.SIGTERM) -> int:
        """End it with a signal; return its exit status. One that does not end is killed."""
        if self._process is None:
            return 0
        self._process.send_signal(number)
        try:
            return self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()

    async def ended(self, number: int = signal.SIGTERM) -> int:
        """End it without blocking the caller; see `end`."""
        return await asyncio.to_thread(self.end, number)

    def _more(self) -> list[str]:
        flags = ((f"--{name.replace('_', '-')}", value) for name, value in self.settings.items())
        return [part for flag in flags for part in flag]

    def tail(self) -> str:
        """Return the last lines of its log."""
        lines = self._log.read_text(errors="replace").splitlines() if self._log.exists() else []
        return "\n".join(lines[-_TAIL:])
