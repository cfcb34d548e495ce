"""Pauses between tries: growing, bounded, with jitter, and never shorter than the server asks for."""

from __future__ import annotations

import random

from driver.errors import ApiUnavailableError

_QUIET = 60.0  # seconds after which a repair counts as the first again
_AT_ONCE = 5  # repairs in a row that are made at once
_LONGEST_REPAIR = 30.0  # seconds


class Backoff:
    """One sequence of pauses, in seconds."""

    def __init__(self, first: float, longest: float) -> None:
        self._first = first
        self._longest = longest
        self._tries = 0

    def next(self, error: Exception | None = None) -> float:
        """Return the next pause, between half and the whole of `first · 2ⁿ`."""
        ceiling = min(self._first * 2.0 ** min(self._tries, 32), self._longest)
        self._tries += 1
        pause = ceiling * (0.5 + random.random() / 2)  # noqa: S311  # spreads nodes in time, guards nothing
        asked = error.retry_after if isinstance(error, ApiUnavailableError) else None
        return max(pause, asked) if asked is not None else pause

    def reset(self) -> None:
        """Start again with the first pause."""
        self._tries = 0


class Repairs:
    """How long to wait before changing back what somebody else changed.

    Two instances of different releases, or a second driver of this name, would otherwise write in turns for ever.
    """

    def __init__(self) -> None:
        self._count = 0
        self._last = -_QUIET

    def pause(self, now: float) -> float:
        """Return the seconds to wait before the next repair: 0 for the first few, then doubling to 30."""
        if now - self._last > _QUIET:
            self._count = 0
        self._last = now
        self._count += 1
        excess = min(self._count - _AT_ONCE, 32)
        return min(2.0 ** (excess - 1), _LONGEST_REPAIR) if excess > 0 else 0.0
