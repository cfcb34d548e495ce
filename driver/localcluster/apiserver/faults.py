"""Faults to order: chosen requests fail, wait, or lose their connection, while tests watch what a client does."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from driver.localcluster.apiserver.errors import StatusError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from driver.localcluster.apiserver.audit import Call

_REASONS: Final[Mapping[int, str]] = {
    400: "BadRequest", 401: "Unauthorized", 403: "Forbidden", 404: "NotFound", 409: "Conflict", 410: "Expired",
    415: "UnsupportedMediaType", 422: "Invalid", 429: "TooManyRequests", 500: "InternalError",
    503: "ServiceUnavailable", 504: "Timeout",
}  # fmt: skip


class ConnectionDroppedError(Exception):
    """The server is to close the connection without an answer."""


@dataclass(eq=False, slots=True, kw_only=True)
class Fault:
    """One fault. It hits the calls that `when` accepts, at most `times` of them."""

    when: Callable[[Call], bool] = lambda call: True
    status: int = 0
    message: str = "injected fault"
    retry_after: int | None = None
    """Seconds, sent as Retry-After."""
    delay: float = 0.0
    """Seconds to wait before anything else."""
    until: asyncio.Event | None = None
    """Wait for this, too: a server that hangs until a test lets it go."""
    drop: bool = False
    times: int | None = None
    hits: int = 0
    reached: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the fault has hit."""

    @classmethod
    def on(cls, verb: str = "", resource: str = "", user: str = "", **about: Any) -> Fault:
        """Make a fault for calls with this verb, resource (`resourceclaims/status` for a subresource) and user."""

        def wanted(call: Call) -> bool:
            return verb in ("", call.verb) and resource in ("", call.full_resource) and user in ("", call.user)

        return cls(when=wanted, **about)

    async def strike(self) -> None:
        """Do it.

        :raises StatusError: if the fault has a status.
        :raises ConnectionDroppedError: if it drops the connection.
        """
        self.hits += 1
        self.reached.set()
        if self.delay:
            await asyncio.sleep(self.delay)
        if self.until is not None:
            await self.until.wait()
        if self.drop:
            raise ConnectionDroppedError
        if self.status:
            reason = _REASONS.get(self.status, "Unknown")
            raise StatusError(self.status, reason, self.message, retry_after=self.retry_after)


class Faults:
    """The faults that are on."""

    def __init__(self) -> None:
        self._faults: list[Fault] = []

    def add(self, fault: Fault) -> Fault:
        """Switch a fault on and return it."""
        self._faults.append(fault)
        return fault

    def remove(self, fault: Fault) -> None:
        """Switch a fault off; one that is off already is fine."""
        if fault in self._faults:
            self._faults.remove(fault)

    def clear(self) -> None:
        """Switch all faults off."""
        self._faults.clear()

    async def strike(self, call: Call) -> None:
        """Let the first fault that wants this call hit it; see `Fault.strike`."""
        for fault in self._faults:
            if fault.when(call):
                if fault.times is not None and fault.hits + 1 >= fault.times:
                    self.remove(fault)
                await fault.strike()
                return

    def __bool__(self) -> bool:
        return bool(self._faults)
