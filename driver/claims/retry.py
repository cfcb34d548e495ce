"""Tries within one call: what may pass is tried again until shortly before the call's deadline."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final, TypeVar

from driver.errors import StateBusyError, TemporaryError
from driver.waiting import happens

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

log = logging.getLogger(__name__)

T = TypeVar("T")

FIRST_PAUSE: Final = 0.1
LONGEST_PAUSE: Final = 5.0
"""Seconds between tries within one call; doubled each time."""


class Retry:
    """Runs attempts again. `busy` says what an attempt that does not end may be waiting for; empty if nothing known."""

    def __init__(self, busy: Callable[[], str]) -> None:
        self._busy = busy
        self._awakened = asyncio.Event()

    async def until(self, deadline: float, attempt: Callable[[], Awaitable[T]]) -> T:
        """Try until it works, fails for good, or the deadline (the event loop's time) is too near for another try.

        :raises DriverError: the attempt's last error.
        """
        last: TemporaryError | None = None
        pause = FIRST_PAUSE
        try:
            async with asyncio.timeout_at(deadline):
                while True:
                    try:
                        return await attempt()
                    except TemporaryError as exc:
                        last = exc
                    wait = max(pause, getattr(last, "retry_after", None) or 0.0)
                    if asyncio.get_running_loop().time() + wait >= deadline:
                        raise last
                    log.info("Trying again in %.1f s: %s", wait, last)
                    await happens(self._awakened, wait)
                    pause = min(pause * 2, LONGEST_PAUSE)
        except TimeoutError:
            raise last or self._silence() from None

    def wake(self) -> None:
        """End all pauses: what they waited for may have happened."""
        self._awakened.set()
        self._awakened = asyncio.Event()

    def _silence(self) -> TemporaryError:
        busy = self._busy()
        return StateBusyError(busy) if busy else TemporaryError("no answer within the call's deadline")
