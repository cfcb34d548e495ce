"""The one thread that calls NVML, with a time limit for those who wait for it.

A call into a driver can hang for minutes and can't be interrupted. The waiting side gives up in time; the thread is
left alone, and no second one is started beside it: until it comes back, every further call fails at once (H8).
"""

from __future__ import annotations

import asyncio
import logging
import threading
from concurrent.futures import Future
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, TypeVar

from driver.errors import InventoryError

if TYPE_CHECKING:
    from collections.abc import Callable

log = logging.getLogger(__name__)
T = TypeVar("T")


class NvmlThread:
    """Runs jobs one after another on one daemon thread, started with the first job.

    `on_return` is called on that thread when a call that had been given up comes back.
    """

    def __init__(self, on_return: Callable[[], None]) -> None:
        self._on_return = on_return
        self._jobs: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._overdue: tuple[Future[Any], str] | None = None
        self._closed = False

    @property
    def stuck(self) -> bool:
        """Whether a call that was given up has not come back yet."""
        return self._overdue is not None

    async def call(self, job: Callable[[], T], *, limit: float, what: str) -> T:
        """Run `job` on the thread and return its result; `limit` in seconds, `what` for messages ('reading GPUs').

        :raises InventoryError: no result within the limit, an earlier call is still stuck, or the thread is closed.
        """
        if self._closed:
            raise InventoryError(f"NVML is closed: {what} was not tried")
        overdue = self._overdue
        if overdue is not None:
            raise InventoryError(f"NVML is stuck: {overdue[1]} has not come back; {what} was not tried")
        future: Future[T] = Future()
        self._start()
        self._jobs.put((future, job))
        waiter = asyncio.wrap_future(future)
        try:
            done, _ = await asyncio.wait((waiter,), timeout=limit)
            if done:
                return waiter.result()
            self._give_up(future, what)
        finally:
            future.cancel()  # at once: cancelling the waiter reaches the queue only by the event loop
            waiter.cancel()
        raise InventoryError(f"NVML did not answer within {limit:g} s: {what}")

    def close(self) -> None:
        """End the thread after the jobs it has; does not wait."""
        self._closed = True
        self._jobs.put(None)

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="nvml", daemon=True)
            self._thread.start()

    def _give_up(self, future: Future[Any], what: str) -> None:
        with self._lock:
            if not future.cancel() and not future.done():
                self._overdue = (future, what)
                log.error("NVML is stuck: %s does not come back", what)

    def _run(self) -> None:
        while (item := self._jobs.get()) is not None:
            future, job = item
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(job())
            except BaseException as exc:  # it belongs to the caller
                future.set_exception(exc)
            self._came_back(future)

    def _came_back(self, future: Future[Any]) -> None:
        with self._lock:
            was_overdue = self._overdue is not None and self._overdue[0] is future
            if was_overdue:
                self._overdue = None
        if was_overdue:
            log.warning("NVML answers again")
            self._on_return()
