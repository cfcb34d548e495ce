"""The one thread that calls NVML, with a time limit for those who wait for it.

A call into a driver can hang for minutes and can't be interrupted. The waiting side gives up in time; the thread is
left alone, and no second one is started beside it: until it comes back, every further call fails at once (H8).

Time in the queue is not counted: eight GPUs that change MIG mode take longer together than a reading may alone, and a
driver that works through them does not hang.
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
from concurrent.futures import Future
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, TypeVar

from driver.errors import InventoryError

if TYPE_CHECKING:
    from collections.abc import Callable

log = logging.getLogger(__name__)
T = TypeVar("T")

_LOOKS = 1.0  # seconds after which a caller in the queue looks again at what runs


@dataclass(slots=True, eq=False, kw_only=True)
class _Job:
    """One call; `ends` is the moment until which it may run, once it does."""

    run: Callable[[], Any]
    limit: float
    what: str
    future: Future[Any] = field(default_factory=Future)
    ends: float = math.inf


class NvmlThread:
    """Runs jobs one after another on one daemon thread, started with the first job.

    `on_return` is called on that thread when a call that had been given up comes back.
    """

    def __init__(self, on_return: Callable[[], None]) -> None:
        self._on_return = on_return
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._running: _Job | None = None
        self._overdue: _Job | None = None
        self._closed = False

    @property
    def stuck(self) -> bool:
        """Whether a call that was given up has not come back yet."""
        return self._overdue is not None

    async def call(self, job: Callable[[], T], *, limit: float, what: str) -> T:
        """Run `job` on the thread and return its result; `limit` in seconds from its turn, `what` for messages.

        :raises InventoryError: no result within the limit, an earlier call is stuck, or the thread is closed.
        """
        if self._closed:
            raise InventoryError(f"NVML is closed: {what} was not tried")
        one = _Job(run=job, limit=limit, what=what)
        self._check(one)
        self._start()
        self._jobs.put(one)
        waiter: asyncio.Future[T] = asyncio.wrap_future(one.future)
        try:
            while not waiter.done():
                await asyncio.wait((waiter,), timeout=self._patience(limit))
                if not waiter.done():
                    self._check(one)
            return waiter.result()
        finally:
            one.future.cancel()  # at once: cancelling the waiter reaches the queue only by the event loop
            waiter.cancel()

    def close(self) -> None:
        """End the thread after the jobs it has; does not wait."""
        self._closed = True
        self._jobs.put(None)

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="nvml", daemon=True)
            self._thread.start()

    def _patience(self, limit: float) -> float:
        """Return the seconds after which to look again: when what runs has to be given up, or sooner."""
        with self._lock:
            left = limit if self._running is None else max(0.0, self._running.ends - time.monotonic())
        return min(left, _LOOKS)

    def _check(self, one: _Job) -> None:
        """Give up what runs, if it has run too long, whoever waits for it.

        :raises InventoryError: a call is stuck.
        """
        with self._lock:
            running, now = self._running, time.monotonic()
            if self._overdue is None and running is not None and now >= running.ends and not running.future.done():
                self._overdue = running
                log.error("NVML is stuck: %s does not come back", running.what)
            overdue = self._overdue
        if overdue is one:
            raise InventoryError(f"NVML did not answer within {one.limit:g} s: {one.what}")
        if overdue is not None:
            raise InventoryError(f"NVML is stuck: {overdue.what} has not come back; {one.what} was not tried")

    def _run(self) -> None:
        while (one := self._jobs.get()) is not None:
            if not one.future.set_running_or_notify_cancel():
                continue
            with self._lock:
                one.ends = time.monotonic() + one.limit
                self._running = one
            try:
                one.future.set_result(one.run())
            except BaseException as exc:  # it belongs to the caller
                one.future.set_exception(exc)
            self._came_back(one)

    def _came_back(self, one: _Job) -> None:
        with self._lock:
            self._running = None
            was_overdue = self._overdue is one
            if was_overdue:
                self._overdue = None
        if was_overdue:
            log.warning("NVML answers again")
            self._on_return()
