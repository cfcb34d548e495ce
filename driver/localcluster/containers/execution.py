"""A command that somebody runs in a container (`kubectl exec`): its streams, by pipes or by a terminal, and its end."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import struct
import termios
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

STDOUT, STDERR = 1, 2


class Execution:
    """A started command; `start` makes one."""

    def __init__(self, process: asyncio.subprocess.Process, terminal: int | None) -> None:
        self._process = process
        self._terminal = terminal
        self._input: asyncio.StreamWriter | None = process.stdin
        self._outputs = {
            number: stream for number, stream in ((STDOUT, process.stdout), (STDERR, process.stderr)) if stream
        }

    @classmethod
    async def start(cls, command: Sequence[str], *, stdin: bool, tty: bool) -> Execution:
        """Start a command.

        :raises OSError: it can't be started.
        """
        if tty:
            return await cls._on_terminal(command)
        pipe, none = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
        process = await asyncio.create_subprocess_exec(
            *command, stdin=pipe if stdin else none, stdout=pipe, stderr=pipe, env={}, start_new_session=True
        )
        return cls(process, None)

    @classmethod
    async def _on_terminal(cls, command: Sequence[str]) -> Execution:
        ours, theirs = os.openpty()
        try:
            process = await asyncio.create_subprocess_exec(
                *command, stdin=theirs, stdout=theirs, stderr=theirs, env={}, start_new_session=True
            )
        except BaseException:
            os.close(ours)
            raise
        finally:
            os.close(theirs)
        made = cls(process, ours)
        await made._connect(ours)
        return made

    async def _connect(self, terminal: int) -> None:
        loop, stream = asyncio.get_running_loop(), asyncio.StreamReader()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(stream), os.fdopen(os.dup(terminal), "rb", 0))
        transport, protocol = await loop.connect_write_pipe(
            asyncio.streams.FlowControlMixin, os.fdopen(os.dup(terminal), "wb", 0)
        )
        self._outputs = {STDOUT: stream}
        self._input = asyncio.StreamWriter(transport, protocol, None, loop)

    @property
    def outputs(self) -> tuple[int, ...]:
        """The streams that it writes to; a terminal has but one."""
        return tuple(self._outputs)

    async def read(self, number: int) -> bytes:
        """Return some output of a stream, nothing at its end."""
        try:
            return await self._outputs[number].read(1 << 15)
        except OSError:  # EIO: the last program on the terminal has ended
            return b""

    async def write(self, data: bytes) -> None:
        """Give it input; what it does not take any more is dropped."""
        if self._input is not None:
            with contextlib.suppress(OSError):
                self._input.write(data)
                await self._input.drain()

    def end_input(self) -> None:
        """Tell it that there is no more input; a terminal has no end."""
        if self._input is not None and self._terminal is None:
            self._input.close()

    def resize(self, columns: int, rows: int) -> None:
        """Set the size of its terminal, if it has one."""
        if self._terminal is not None:
            fcntl.ioctl(self._terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    async def wait(self) -> int:
        """Return its exit status; a signal counts as 128 and its number."""
        status = await self._process.wait()
        return 128 - status if status < 0 else status

    async def aclose(self) -> None:
        """End it, if it has not ended, and close its streams."""
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, 9)
        await self._process.wait()
        if self._input is not None:
            self._input.close()
        if self._terminal is not None:
            os.close(self._terminal)
