"""Claims are prepared only when the GPUs have been read once; they can be unprepared always (K2)."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Protocol

from driver.errors import DeviceNotReadyError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from driver.claims.allocation import ClaimRef
    from driver.claims.record import PreparedDevice
    from driver.errors import DriverError


class DatedClaims(Protocol):
    """A claim service (`kubelet.dra`) that can be told when a call came."""

    async def prepare(
        self, refs: Sequence[ClaimRef], *, deadline: float, since: int | None = None
    ) -> Mapping[str, tuple[PreparedDevice, ...] | DriverError]:
        """Prepare claims for a call that came at `since` (CLOCK_MONOTONIC, ns)."""
        ...

    async def unprepare(self, refs: Sequence[ClaimRef], *, deadline: float) -> Mapping[str, DriverError | None]:
        """Undo what was prepared."""
        ...


class GatedClaims:
    """A claim service whose prepare waits, within the call's deadline, for `ready`.

    The kubelet may call as soon as the socket is there, while a GPU driver takes a minute to set up its GPUs. An answer
    of 'no such device' then would cost the pod another 70 s.
    """

    def __init__(self, claims: DatedClaims, ready: asyncio.Event) -> None:
        self._claims = claims
        self._ready = ready

    async def prepare(
        self, refs: Sequence[ClaimRef], *, deadline: float
    ) -> Mapping[str, tuple[PreparedDevice, ...] | DriverError]:
        """Prepare claims as soon as the GPUs are known; those that are unprepared meanwhile stay so (S10)."""
        since = time.monotonic_ns()
        if not self._ready.is_set() and not await self._becomes_ready(deadline):
            error = DeviceNotReadyError("the GPU driver has not told yet which GPUs there are; see the agent's log")
            return {ref.uid: error for ref in refs}
        return await self._claims.prepare(refs, deadline=deadline, since=since)

    async def unprepare(self, refs: Sequence[ClaimRef], *, deadline: float) -> Mapping[str, DriverError | None]:
        """Undo what was prepared."""
        return await self._claims.unprepare(refs, deadline=deadline)

    async def _becomes_ready(self, deadline: float) -> bool:
        try:
            async with asyncio.timeout_at(deadline):
                return await self._ready.wait()
        except TimeoutError:
            return False
