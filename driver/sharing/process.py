"""Processes that are started, waited for and killed by pidfd: no threads, no polling, no mistaken pid.

Children are made by `posix_spawn`: a fork of a process with threads (gRPC's) is asking for trouble. Output goes to a
memory file, not a pipe: whoever inherits it keeps nobody waiting.
"""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping, Sequence

T = TypeVar("T")


class Mortal:
    """What lives until it ends by itself or is made to. Made on the event loop, on which it is watched."""

    def __init__(self) -> None:
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def alive(self) -> bool:
        """Whether it has not ended, as far as the event loop knows."""
        return not self._ended.done()

    def when_ended(self, callback: Callable[[], object]) -> None:
        """Call `callback` once it has ended, on the event loop."""
        self._ended.add_done_callback(lambda future: None if future.cancelled() else callback())

    async def wait(self, limit: float) -> bool:
        """Wait up to `limit` seconds; say whether it has ended."""
        done, _ = await asyncio.wait((self._ended,), timeout=limit)
        return bool(done)

    async def unless_ended(self, work: Coroutine[Any, Any, T]) -> T | None:
        """Return the result of `work`; None, and `work` is cancelled, if it ends first."""
        task = asyncio.ensure_future(work)
        try:
            await asyncio.wait((task, self._ended), return_when=asyncio.FIRST_COMPLETED)
            return task.result() if task.done() else None
        finally:
            task.cancel()
            await asyncio.wait((task,))
            with suppress(asyncio.CancelledError):
                task.exception()  # seen, whoever raised it

    def ending(self) -> str:
        """Describe how it ended."""
        return "ended"

    def close(self) -> None:
        """Stop watching."""
        self._ended.cancel()


class Process(Mortal):
    """One process, our child or not, watched until it ends or `close`."""

    def __init__(self, pid: int, *, child: bool) -> None:
        """Watch a process.

        :raises ProcessLookupError: there is none.
        """
        super().__init__()
        self.pid = pid
        self.status: int | None = None
        self._child = child
        self._handle = os.pidfd_open(pid)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._handle, self._on_end)

    @classmethod
    def spawn(cls, argv: Sequence[str], env: Mapping[str, str], *, stdin: int, output: int) -> Process:
        """Start a program in a session of its own; `stdin` and `output` are open files of ours.

        :raises OSError: it can't be executed.
        """
        actions = [(os.POSIX_SPAWN_DUP2, stdin, 0), (os.POSIX_SPAWN_DUP2, output, 1), (os.POSIX_SPAWN_DUP2, output, 2)]
        pid = os.posix_spawn(
            argv[0], list(argv), env, file_actions=actions, setsid=True, setsigmask=(), setsigdef=(signal.SIGPIPE,)
        )
        return cls(pid, child=True)

    def signal(self, number: int) -> None:
        """Send a signal; nothing happens if it has ended, or is not ours to signal."""
        if self.alive:
            with suppress(ProcessLookupError, PermissionError):
                signal.pidfd_send_signal(self._handle, number)

    def kill_group(self) -> None:
        """Kill a child that we started and all of its process group: its number is not free until we reap it."""
        if self._child and self.alive:
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)

    def ending(self) -> str:
        """Describe how it ended."""
        if self.status is None:
            return "ended"
        return f"was killed by signal {-self.status}" if self.status < 0 else f"exited with status {self.status}"

    def close(self) -> None:
        """Stop watching."""
        if self._handle >= 0:
            self._loop.remove_reader(self._handle)
            os.close(self._handle)
            self._handle = -1
        super().close()

    def _on_end(self) -> None:
        if self._child:
            with suppress(ChildProcessError):
                self.status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        self._loop.remove_reader(self._handle)
        os.close(self._handle)
        self._handle = -1
        self._ended.set_result(None)


def memory_file(content: bytes = b"") -> int:
    """Return an open file in memory with this content, read from its start."""
    handle = os.memfd_create("gpu-dra", os.MFD_CLOEXEC)
    if content:
        os.write(handle, content)
        os.lseek(handle, 0, os.SEEK_SET)
    return handle
