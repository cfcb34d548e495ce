"""The driver as a process of the suite's: the same program, by the same command line, as on a node."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence
    from pathlib import Path

_TAIL = 30  # lines


class DriverProcess:
    """Runs `gpu-dra` with arguments, again and again; its log goes to one file."""

    def __init__(self, arguments: Sequence[str], log: Path) -> None:
        self._arguments, self._log = arguments, log
        self._process: subprocess.Popen[bytes] | None = None
        self._since = 0  # bytes of the log that are of former runs
        self.settings: dict[str, str] = {}
        """More settings, by flag; they take effect at the next start, and go before those of the arguments."""

    @property
    def runs(self) -> bool:
        """Say whether it runs."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """Its process id."""
        assert self._process is not None, "start it first"
        return self._process.pid

    def start(self) -> None:
        """Start it, if it does not run: a case that was interrupted may go on beside its clean-up."""
        if self.runs:
            return
        self._since = self._log.stat().st_size if self._log.exists() else 0
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

    @contextlib.asynccontextmanager
    async def beside(self, settings: Mapping[str, str]) -> AsyncIterator[DriverProcess]:
        """Run another instance with these settings beside this one's; it ends with the block, if not before."""
        other = DriverProcess(self._arguments, self._log.with_name("another-driver.log"))
        other._log.unlink(missing_ok=True)
        other.settings = {**self.settings, **settings}
        other.start()
        try:
            yield other
        finally:
            await other.ended(signal.SIGKILL)

    async def says(self, text: str, patience: float) -> None:
        """Wait until its log has this text since its start."""
        try:
            async with asyncio.timeout(patience):
                while text.encode() not in self._log.read_bytes()[self._since :]:
                    await asyncio.sleep(0.05)
        except TimeoutError:
            raise AssertionError(f"the driver has not said {text!r} after {patience:g} s:\n{self.tail()}") from None

    async def exits(self, patience: float) -> int:
        """Wait until it ends by itself; return its exit status."""
        assert self._process is not None, "start it first"
        try:
            return await asyncio.to_thread(self._process.wait, patience)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the driver has not ended after {patience:g} s:\n{self.tail()}") from None

    def _more(self) -> list[str]:
        flags = ((f"--{name.replace('_', '-')}", value) for name, value in self.settings.items())
        return [part for flag in flags for part in flag]

    def tail(self) -> str:
        """Return the last lines of its log."""
        lines = self._log.read_text(errors="replace").splitlines() if self._log.exists() else []
        return "\n".join(lines[-_TAIL:])
