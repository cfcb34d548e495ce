"""A container that runs: its process, how it ended, how to end it, and commands run beside it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path

    from driver.localcluster.containers.oci import ContainerRequest


@dataclass(frozen=True, slots=True)
class Exit:
    """How a container ended; a signal counts as 128 and its number, as in a shell."""

    code: int
    signal: int
    finished: datetime


class Container:
    """A started container; made by the runtime only."""

    def __init__(self, name: str, request: ContainerRequest, process: subprocess.Popen[bytes], bundle: Path) -> None:
        self.id = name
        self.request = request
        self.started = datetime.now(UTC)
        self.bundle = bundle
        self.exit: Exit | None = None
        self._process = process
        self._waiter = asyncio.ensure_future(self._reap())

    @property
    def pid(self) -> int:
        """The container's first process, as the host sees it."""
        return self._process.pid

    @property
    def running(self) -> bool:
        """Say whether it has not ended."""
        return self.exit is None

    async def wait(self) -> Exit:
        """Wait for its end; several may."""
        return await asyncio.shield(self._waiter)

    async def stop(self, grace: float) -> Exit:
        """End it: SIGTERM to its first process, SIGKILL to all of it after `grace` seconds."""
        self._signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(grace):
                return await self.wait()
        except TimeoutError:
            self._signal_all(signal.SIGKILL)
            return await self.wait()

    def _signal(self, number: signal.Signals) -> None:
        if self.running:
            self._process.send_signal(number)

    def _signal_all(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)

    async def _reap(self) -> Exit:
        await _ended(self._process)
        self._signal_all(signal.SIGKILL)  # what it left behind, as the end of a PID namespace does
        status = self._process.wait()
        self.exit = Exit(128 - status if status < 0 else status, max(-status, 0), datetime.now(UTC))
        return self.exit


async def _ended(process: subprocess.Popen[bytes]) -> None:
    """Wait until the process has ended, without reaping it and without a thread of its own."""
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    try:
        handle = os.pidfd_open(process.pid)
    except OSError:  # a kernel without them
        await asyncio.to_thread(process.wait)
        return
    loop.add_reader(handle, ended.set)
    try:
        await ended.wait()
    finally:
        loop.remove_reader(handle)
        os.close(handle)
