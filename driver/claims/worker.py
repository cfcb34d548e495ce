"""The thread that the critical section runs on, beside the event loop: disks are slow, other instances hold locks.

It is one thread, so that turns never overlap, and its own rather than an executor's: an executor's hand-over costs a
tenth of a prepare, and would have the interpreter wait at its end for a turn that hangs on a dead disk.
"""

from __future__ import annotations

import asyncio
import threading
from queue import SimpleQueue
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


class Worker:
    """Runs functions in order on a thread of its own, which starts with the first one."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._turns: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._started = False

    def call(self, function: Callable[[], T], then: Callable[[T], None], failed: Callable[[Exception], None]) -> None:
        """Run `function` on the thread, then `then` with what it returned, or `failed`, on the running event loop."""
        loop = asyncio.get_running_loop()

        def turn() -> None:
            try:
                result = function()
            except Exception as exc:
                _tell(loop, failed, exc)
            else:
                _tell(loop, then, result)

        self._start()
        self._turns.put(turn)

    async def run(self, function: Callable[[], T]) -> T:
        """Run `function` on the thread; return what it returns, or raise what it raises."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self.call(
            function,
            lambda result: None if future.done() else future.set_result(result),
            lambda error: None if future.done() else future.set_exception(error),
        )
        return await future

    def stop(self) -> None:
        """Let the thread end after what it was given; does not wait for it."""
        self._turns.put(None)

    def _start(self) -> None:
        if not self._started:
            self._started = True
            threading.Thread(target=self._work, name=self._name, daemon=True).start()

    def _work(self) -> None:
        while (turn := self._turns.get()) is not None:
            turn()


def _tell(loop: asyncio.AbstractEventLoop, callback: Callable[[T], None], value: T) -> None:
    """Call back on a loop that may be closed by now: then nobody is left who wants to know."""
    try:
        loop.call_soon_threadsafe(callback, value)
    except RuntimeError:
        if not loop.is_closed():
            raise
