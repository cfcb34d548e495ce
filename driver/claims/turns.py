"""Turns in the critical section: what becomes ready during one turn makes up the next, and one commit serves it all."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, TypeVar

from driver.claims.operations import as_outcome
from driver.claims.worker import Worker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from driver.claims.operations import Operation, Outcome
    from driver.claims.state import ClaimState

T = TypeVar("T")

_GATHER = 0.002
"""Seconds that a turn waits for claims that are being read at that moment: their writes cost less together."""


class Turns:
    """Does operations and other work on a `ClaimState`, on a thread of its own, so that nothing of it overlaps."""

    def __init__(self, state: ClaimState) -> None:
        self._state = state
        self._worker = Worker("claims")
        self._queue: dict[asyncio.Future[Outcome], Operation] = {}
        self._reading = 0
        self._gathering: asyncio.TimerHandle | None = None
        self._idle = asyncio.Event()
        self._idle.set()

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """Enclose the reading of a claim that will come here next: a turn waits a moment for it."""
        self._reading += 1
        try:
            yield
        finally:
            self._reading -= 1

    async def do(self, operation: Operation) -> Outcome:
        """Do one operation in the next turn; an error is an outcome, too."""
        future: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._queue[future] = operation
        if self._idle.is_set():
            self._idle.clear()
            self._next()
        elif self._gathering is not None and not self._reading:
            self._begin()
        try:
            return await future
        finally:
            self._queue.pop(future, None)  # whoever gave up leaves nothing to a turn that never comes

    async def run(self, function: Callable[[], T]) -> T:
        """Run a function of the state between turns; raise what it raises."""
        return await self._worker.run(function)

    async def aclose(self) -> None:
        """Finish what is under way and stop the thread."""
        await self._idle.wait()
        self._worker.stop()

    def _next(self) -> None:
        """Begin a turn: at once, or in a moment if claims are being read that can share it."""
        if self._reading:
            self._gathering = asyncio.get_running_loop().call_later(_GATHER, self._begin)
        else:
            self._begin()

    def _begin(self) -> None:
        """Hand over all that waits and is still wanted."""
        if self._gathering is not None:
            self._gathering.cancel()
            self._gathering = None
        batch = {future: operation for future, operation in self._queue.items() if not future.done()}
        self._queue.clear()
        operations = list(batch.values())

        def end(outcomes: list[Outcome]) -> None:
            for future, outcome in zip(batch, outcomes, strict=True):
                if not future.done():
                    future.set_result(outcome)
            if self._queue:
                self._next()
            else:
                self._idle.set()

        self._worker.call(
            lambda: self._state.run(operations), end, lambda error: end([as_outcome(error)] * len(operations))
        )
