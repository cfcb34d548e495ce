"""The agent as a process of its own: the same program, by the same command line, as on a real node."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from pathlib import Path


class AgentProcess:
    """Runs `gpu-dra` with arguments; its log goes to a file."""

    def __init__(self, arguments: Sequence[str], log: Path) -> None:
        self._arguments = arguments
        self._log = log
        self._process: asyncio.subprocess.Process

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[AgentProcess]:
        """Start it; kill what is left of it at the end."""
        with self._log.open("wb") as log:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                *("-m", "driver"),
                *self._arguments,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for the demo, which stops the agent in its turn
            )
        try:
            yield self
        finally:
            if self._process.returncode is None:
                self._process.kill()
                await self._process.wait()

    async def ended(self) -> int:
        """Wait until it ends by itself; return its exit status."""
        return await self._process.wait()

    async def stop(self) -> int:
        """Ask it to end, as a kubelet does; return its exit status."""
        self._process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(10):
            return await self._process.wait()

    def tail(self) -> str:
        """Return the last lines of its log."""
        return "\n".join(self._lines()[-10:])

    def last_words(self) -> str:
        """Return the message of its last line, without the time, level and logger before it."""
        return self._lines()[-1].split(maxsplit=3)[-1] if self._lines() else ""

    def _lines(self) -> list[str]:
        return self._log.read_text(errors="replace").splitlines()
