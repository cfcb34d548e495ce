"""What all ways of running MPS control daemons have in common: which there are, one thing at a time done to each."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
from abc import ABC, abstractmethod
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar
from weakref import WeakValueDictionary

from driver.errors import DriverError, StorageError
from driver.sharing.mps_client import MpsClient
from driver.sharing.process import Mortal

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection

    from driver.sharing.base import ClientEdits, MpsSpec, OnDeath
    from driver.sharing.daemon_files import DaemonFiles, DaemonRoot
    from driver.sharing.tools import Tools

log = logging.getLogger(__name__)

L = TypeVar("L", bound=Mortal)


@dataclass(slots=True, kw_only=True)
class Daemon(Generic[L]):
    """A daemon that runs, as far as is known; `tag` tells its settings."""

    life: L
    tag: str
    stopping: bool = False


class Daemons(ABC, Generic[L]):
    """A `MpsControl`, but for how a daemon comes into being, is found and is ended."""

    def __init__(self, files: DaemonRoot, tools: Tools) -> None:
        self.on_death: OnDeath | None = None
        self._files = files
        self._tools = tools
        self._daemons: dict[str, Daemon[L]] = {}
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()  # each as long as it is used

    async def start(self, daemon_id: str, spec: MpsSpec) -> None:
        """Have a daemon with these limits that answers, as `MpsControl.start`."""
        files = self._files.usable(daemon_id)
        async with self._lock(daemon_id):
            if self._has(daemon_id, spec) or await self._adopt(daemon_id, files, spec):
                return
            fresh = not files.exist()
            if await self._exists(daemon_id, files):
                await self._end(daemon_id, files)
            try:
                await self._launch(daemon_id, files, spec)
            except BaseException:
                if fresh:
                    with suppress(StorageError):  # what is left is swept
                        files.remove()
                raise

    async def stop(self, daemon_id: str) -> None:
        """End a daemon and remove all that it had, as `MpsControl.stop`."""
        files = self._files.files(daemon_id)
        async with self._lock(daemon_id):
            if daemon_id in self._daemons or await self._exists(daemon_id, files):
                await self._end(daemon_id, files)
                files.remove()

    async def adopt(self, daemon_id: str, spec: MpsSpec) -> bool:
        """Take over an earlier agent's daemon, as `MpsControl.adopt`."""
        files = self._files.files(daemon_id)
        async with self._lock(daemon_id):
            return self._has(daemon_id, spec) or await self._adopt(daemon_id, files, spec)

    def running(self) -> frozenset[str]:
        """Return the ids of the daemons that live, as `MpsControl.running`."""
        return frozenset(self._daemons)

    async def sweep(self, keep: Callable[[], Awaitable[Collection[str]]]) -> frozenset[str]:
        """Stop what nobody owns, as `MpsControl.sweep`."""
        stopped = set()
        there = await self._known() | self._daemons.keys()
        for daemon_id in sorted(there - frozenset(await keep())):
            try:
                await self.stop(daemon_id)
                stopped.add(daemon_id)
            except DriverError as exc:
                log.warning("MPS control daemon %s of no claim can't be stopped: %s", daemon_id, exc)
        return frozenset(stopped)

    async def aclose(self) -> None:
        """Stop watching; the daemons live on."""
        for daemon in self._daemons.values():
            daemon.stopping = True
            daemon.life.close()
        self._daemons.clear()

    @abstractmethod
    def edits(self, daemon_id: str) -> ClientEdits:
        """Return what the containers get, as `MpsControl.edits`."""

    @abstractmethod
    async def _launch(self, daemon_id: str, files: DaemonFiles, spec: MpsSpec) -> None:
        """Bring one into being, ready and watched; nothing of it runs if that fails."""

    @abstractmethod
    async def _adopt(self, daemon_id: str, files: DaemonFiles, spec: MpsSpec) -> bool:
        """Watch the one that runs with these settings, if it answers."""

    @abstractmethod
    async def _end(self, daemon_id: str, files: DaemonFiles) -> None:
        """End one, known or not, and forget it."""

    @abstractmethod
    async def _exists(self, daemon_id: str, files: DaemonFiles) -> bool:
        """Say whether there is anything to end or to remove."""

    @abstractmethod
    async def _known(self) -> frozenset[str]:
        """Return the ids of which there is anything."""

    def _has(self, daemon_id: str, spec: MpsSpec) -> bool:
        daemon = self._daemons.get(daemon_id)
        return daemon is not None and daemon.tag == tag_of(spec)

    async def _take_over(self, daemon_id: str, files: DaemonFiles, life: L, spec: MpsSpec) -> bool:
        """Watch one that was found, if it answers; say whether it does.

        Its limits are set again: an agent that died between start and setting them had no client yet.
        """
        try:
            await life.unless_ended(MpsClient(daemon_id, files, self._tools).configure(spec))
        except DriverError as exc:
            log.warning("MPS control daemon %s was found, but is of no use: %s", daemon_id, exc)
            life.close()
            return False
        except BaseException:
            life.close()
            raise
        if life.alive:
            self._watch(daemon_id, files, life, spec)
        return life.alive

    def _watch(self, daemon_id: str, files: DaemonFiles, life: L, spec: MpsSpec) -> None:
        daemon = Daemon(life=life, tag=tag_of(spec))
        self._daemons[daemon_id] = daemon
        life.when_ended(lambda: self._on_end(daemon_id, files, daemon))

    def _on_end(self, daemon_id: str, files: DaemonFiles, daemon: Daemon[L]) -> None:
        if self._daemons.get(daemon_id) is daemon:
            del self._daemons[daemon_id]
        if daemon.stopping:
            return
        message = f"MPS control daemon {daemon_id} {daemon.life.ending()}: {files.last_words()}"
        log.error("%s", message)
        if self.on_death is not None:
            self.on_death(daemon_id, message)

    def _lock(self, daemon_id: str) -> asyncio.Lock:
        return self._locks.setdefault(daemon_id, asyncio.Lock())


def tag_of(spec: MpsSpec) -> str:
    """Tell one daemon's settings from another's."""
    return hashlib.sha256(json.dumps(spec.encode(), sort_keys=True).encode()).hexdigest()[:16]
