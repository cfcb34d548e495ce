"""What claims need beside the kubelet's calls: half-done ones settled, CDI files kept, records of gone claims given up.

Each step may fail, even with a bug, without costing the serving of claims.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from asyncinotify import Inotify, Mask

from driver.errors import DriverError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from driver.claims.engine import ClaimEngine

log = logging.getLogger(__name__)

_FIRST_RECONCILE, _LONGEST_RECONCILE = 60.0, 600.0  # seconds between looks for records whose claims are gone
_VANISHING = Mask.DELETE | Mask.DELETE_SELF | Mask.MOVE_SELF | Mask.ONESHOT
_SETTLED = 0.1  # seconds after a removal: an unprepare removes the file just before the record, and many come at once
_WATCH_AGAIN = 1.0  # seconds until a directory that is not there is looked for again
_SETTLE_AGAIN = 10.0  # seconds until what could not be undone is tried again


class Upkeep:
    """Runs beside the engine. `ready` is set once the GPUs answer; `daemon_died` hears of MPS daemons that are gone."""

    def __init__(
        self,
        engine: ClaimEngine,
        *,
        cdi_dir: Path,
        ready: asyncio.Event,
        daemon_died: Callable[[str, str], None],
    ) -> None:
        self._engine = engine
        self._cdi_dir = cdi_dir
        self._ready = ready
        self._daemon_died = daemon_died
        self._stale = asyncio.Event()

    def snapshot_changed(self) -> None:
        """Look at the CDI files again: another driver version changes what is in them."""
        self._stale.set()

    async def run(self) -> None:
        """Do the upkeep until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._settle(), name="settle")
            tasks.create_task(self._keep_cdi(), name="cdi")
            tasks.create_task(self._watch_cdi(), name="cdi watch")
            tasks.create_task(self._reconcile(), name="reconcile")

    async def _settle(self) -> None:
        """Once the GPUs answer, finish what an earlier life of the agent left: half-done claims, MPS daemons."""
        await self._ready.wait()
        async with asyncio.TaskGroup() as tasks:  # neither waits for the other: one broken GPU may keep either for long
            tasks.create_task(_done(self._engine.settle, "undoing what a crash interrupted"))
            tasks.create_task(_done(self._resume, "taking over MPS daemons"))  # by the API server if they are pods

    async def _resume(self) -> None:
        for daemon_id in await self._engine.resume():
            self._daemon_died(daemon_id, "it was not there when the driver started")

    async def _keep_cdi(self) -> None:
        """Rebuild CDI files that a reboot, another driver version or somebody has made stale (C1)."""
        while True:
            await self._stale.wait()
            self._stale.clear()
            if not await told(self._engine.refresh_cdi(), "refreshing the CDI files"):
                await asyncio.sleep(_SETTLE_AGAIN)  # a full or read-only disk; nothing else would say that it is not
                self._stale.set()

    async def _watch_cdi(self) -> None:
        """Notice files that vanish: a container that is restarted needs its file, and brings no new call (C1).

        The watch ends with a removal, and the directory is looked at when it is watched anew: what goes meanwhile costs
        no event. The inotify instance stays: to close one, the kernel takes up to 15 ms, and calls would wait for that.
        """
        while True:
            try:
                with Inotify() as inotify:
                    while True:
                        inotify.add_watch(self._cdi_dir, _VANISHING)
                        self._look()
                        while not (await inotify.get()).mask & Mask.IGNORED:
                            pass
                        await asyncio.sleep(_SETTLED)
            except OSError as exc:
                log.debug("cannot watch %s: %s", self._cdi_dir, exc)
                self._look()  # it may have gone with the files, and comes back with them
                await asyncio.sleep(_WATCH_AGAIN)

    def _look(self) -> None:
        if self._engine.cdi_is_missing():
            self._stale.set()

    async def _reconcile(self) -> None:
        """Give up records of claims that are gone (S7): soon after the start, then now and then."""
        pause = _FIRST_RECONCILE
        while True:
            await told(self._engine.reconcile(), "reconciling the records")
            await asyncio.sleep(pause)
            pause = min(pause * 2, _LONGEST_RECONCILE)


async def _done(step: Callable[[], Awaitable[object]], what: str) -> None:
    """Do a step of upkeep, again and again until it works."""
    while True:
        if await told(step(), what):
            return
        await asyncio.sleep(_SETTLE_AGAIN)


async def told(step: Awaitable[object], what: str) -> bool:
    """Do a step; say whether it worked, and log why not."""
    try:
        await step
    except DriverError as exc:
        log.warning("%s failed: %s", what, exc)
    except Exception:
        log.exception("%s failed", what)
    else:
        return True
    return False
