"""Notice of device plugins of others, NVIDIA's for one, that give away this node's GPUs (K6)."""

from __future__ import annotations

import asyncio
import contextlib
import time
from contextlib import aclosing
from typing import TYPE_CHECKING

from driver.errors import ServeError
from driver.file_watch import changes
from driver.kubelet.sockets import Peer, probe

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_SOCKETS = ("nvidia-gpu*.sock", "nvidia-mig-*.sock")
_GONE = 30.0  # seconds: a kubelet that starts deletes all sockets, and plugins need a while to come back
_LOOK = 10.0  # seconds between looks while there is one: a process that dies leaves its socket behind


class PeerPlugin:
    """Looks into the kubelet's `directory` of device plugins."""

    def __init__(self, directory: Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._directory = directory
        self._clock = clock
        self._found: Path | None = None
        self._seen = 0.0

    def look(self) -> Path | None:
        """Return a socket at which GPUs are given away, or were until a moment ago."""
        for pattern in _SOCKETS:
            for path in sorted(self._directory.glob(pattern)):
                if _is_served(path):
                    self._found, self._seen = path, self._clock()
                    return path
        if self._found is not None and self._clock() - self._seen > _GONE:
            self._found = None
        return self._found

    async def run(self, changed: Callable[[], None]) -> None:
        """Call `changed` when another look may find something else, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._watch(changed))
            tasks.create_task(self._look_again(changed))

    async def _watch(self, changed: Callable[[], None]) -> None:
        async with aclosing(changes(self._directory)) as looks:
            async for _ in looks:
                changed()

    async def _look_again(self, changed: Callable[[], None]) -> None:
        while True:
            await asyncio.sleep(_LOOK)
            if self._found is not None:
                changed()


def _is_served(path: Path) -> bool:
    with contextlib.suppress(ServeError):
        return probe(path) is Peer.LIVE
    return True  # better one GPU too few than one given twice
