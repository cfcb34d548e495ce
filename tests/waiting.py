"""Waiting for what a test expects, however long that takes."""

from __future__ import annotations

import asyncio
import inspect
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

_PAUSE = 0.005  # seconds
_PATIENCE = 30  # seconds


async def until(condition: Callable[[], Any], what: str = "the condition holds") -> Any:
    """Wait until `condition` (may be async) holds; return its value.

    :raises AssertionError: it never does; says `what` was waited for.
    """
    try:
        async with asyncio.timeout(_PATIENCE):
            while not (value := await _value(condition)):
                await asyncio.sleep(_PAUSE)
            return value
    except TimeoutError:
        raise AssertionError(f"waited {_PATIENCE} s in vain until {what}") from None


async def _value(condition: Callable[[], Any]) -> Any:
    value = condition()
    return await value if inspect.isawaitable(value) else value
