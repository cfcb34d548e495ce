"""The agent as a process that is started again and again, and what the kernel says it takes up."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence

_TAIL = 40  # lines


@dataclass(frozen=True, kw_only=True)
class Use:
    """What a process takes up."""

    mib: float
    files: int  # open ones, sockets apart
    sockets: int
    threads: int

    def __str__(self) -> str:
        opened = f"{self.files} open files, {self.sockets} sockets"
        return f"{self.mib:.1f} MiB resident, {opened}, {self.threads} threads"


class Agent:
    """Runs `gpu-dra` with arguments; its log goes on in one file."""

    def __init__(self, arguments: Sequence[str], log: Path) -> None:
        self._arguments = arguments
        self._log = log
        self._process: asyncio.subprocess.Process

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Agent]:
        """Start it; kill what is left of it at the end."""
        await self._start()
        try:
            yield self
        finally:
            await self._end(signal.SIGKILL)

    async def restart(self, number: signal.Signals) -> None:
        """End it by a signal, and start it again.

        :raises TimeoutError: it does not end.
        """
        await self._end(number)
        await self._start()

    def use(self) -> Use:
        """Return what it takes up now."""
        proc = Path(f"/proc/{self._process.pid}")
        pages = int((proc / "statm").read_text().split()[1])
        opened = list(_opened(proc))
        sockets = sum(target.startswith("socket:") for target in opened)
        return Use(
            mib=pages * os.sysconf("SC_PAGE_SIZE") / 2**20,
            files=len(opened) - sockets,
            sockets=sockets,
            threads=len(list((proc / "task").iterdir())),
        )

    def tail(self) -> str:
        """Return the last lines of its log."""
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-_TAIL:])

    async def _start(self) -> None:
        with self._log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "driver", *self._arguments, stdout=log, stderr=log
            )

    async def _end(self, number: signal.Signals) -> None:
        if self._process.returncode is None:
            os.kill(self._process.pid, number)  # `send_signal` would reap one that just ended behind asyncio's back
        async with asyncio.timeout(20):
            await self._process.wait()


def _opened(proc: Path) -> Iterator[str]:
    """Yield what a process's descriptors lead to, but for those that it closes meanwhile."""
    for file in (proc / "fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            yield str(file.readlink())
