"""The inventory of a real node: NVML through nvidia-ml-py, on one thread, below a driver root."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from driver.errors import InventoryError
from driver.inventory import nvml_partition
from driver.inventory.base import Changed, InventoryEvent, Reading
from driver.inventory.driver_root import DriverRoot
from driver.inventory.event_box import EventBox
from driver.inventory.library_watch import LibraryWatch
from driver.inventory.nvml_health import read_health
from driver.inventory.nvml_session import NvmlSession
from driver.inventory.nvml_thread import NvmlThread
from driver.inventory.nvml_usage import UsageReader
from driver.inventory.sysfs import Sysfs

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from driver.model.health_facts import HealthReport
    from driver.model.mig import MigInstance, MigState, Placement
    from driver.model.usage import GpuUsage

log = logging.getLogger(__name__)
T = TypeVar("T")

_CLOSE_LIMIT = 1.5  # seconds; the agent ends within 2


class NvmlInventory:
    """The GPUs that NVML knows. Nothing is loaded before the first read; at most one instance per process.

    Times are in seconds. The first call after the library was opened may take `start_limit`, as the driver then sets up
    each GPU; every other one `time_limit`. `recheck` is how often the library is looked for where inotify is blind.
    """

    fake = False

    def __init__(
        self,
        driver_root: Path = Path("/"),
        *,
        sys_root: Path = Path("/sys"),
        time_limit: float = 10.0,
        start_limit: float = 60.0,
        recheck: float = 30.0,
    ) -> None:
        root = DriverRoot(driver_root)
        self._time_limit = time_limit
        self._start_limit = max(start_limit, time_limit)
        self._box = EventBox()
        self._thread = NvmlThread(on_return=lambda: self._box.put(Changed(why="NVML answers again")))
        self._session = NvmlSession(root, Sysfs(sys_root), self._box.put, listen_pause=recheck)
        self._watch = LibraryWatch(root, recheck)
        self._usage = UsageReader()

    @property
    def monitored(self) -> frozenset[str] | None:
        """The UUIDs of the GPUs whose XIDs arrive; the others are not unhealthy, only not monitored (H4)."""
        return self._session.monitored

    async def read(self) -> Reading:
        """Observe all GPUs now.

        :raises InventoryError: no library, NVML fails as a whole, or it does not answer in time.
        """
        return await self._call(self._session.read, "reading the GPUs")

    async def health_facts(self) -> dict[str, HealthReport]:
        """Check the GPUs' health now; a GPU that does not answer has no report.

        :raises InventoryError: as `read`.
        """
        return await self.use(read_health, "checking the GPUs' health")

    async def usage(self) -> dict[str, GpuUsage]:
        """Look at what the GPUs and their MIG devices do; each GPU is a job of its own, so that claims wait for one.

        :raises InventoryError: as `read`.
        """
        found = {}
        for uuid in await self.use(self._usage.gpus, "listing the GPUs"):
            one = await self.use(partial(self._usage.read, uuid=uuid), f"looking at the use of {uuid}")
            if one is not None:
                found[uuid] = one
        return found

    async def use(self, job: Callable[[Any], T], what: str, *, limit: float = 0.0) -> T:
        """Run `job(pynvml)` on the NVML thread; `what` for messages, `limit` in seconds if more than the usual.

        :raises InventoryError: as `read`. :raises pynvml.NVMLError: as the job does.
        """
        return await self._call(lambda: self._session.use(job), what, limit)

    async def mig_state(self, gpu_uuid: str) -> MigState:
        """See `Partitioner`."""
        return await self.use(lambda api: nvml_partition.mig_state(api, gpu_uuid), f"reading MIG of {gpu_uuid}")

    async def set_mig_mode(self, gpu_uuid: str, enabled: bool) -> None:
        """See `Partitioner`. It may take as long as the first call, as the driver then sets up the GPU anew."""
        await self.use(
            lambda api: nvml_partition.set_mig_mode(api, gpu_uuid, enabled),
            f"switching MIG mode of {gpu_uuid}",
            limit=self._start_limit,
        )

    async def create_mig(self, gpu_uuid: str, profile_id: int, placement: Placement) -> MigInstance:
        """See `Partitioner`. On a node where many MIG devices come and go NVML may take several seconds for one."""
        return await self.use(
            lambda api: nvml_partition.create_mig(api, gpu_uuid, profile_id, placement),
            f"creating a MIG device at {placement} of {gpu_uuid}",
            limit=self._start_limit,
        )

    async def destroy_mig(self, gpu_uuid: str, placement: Placement) -> bool:
        """See `Partitioner`. It may take as long as making one."""
        return await self.use(
            lambda api: nvml_partition.destroy_mig(api, gpu_uuid, placement),
            f"removing the MIG device at {placement} of {gpu_uuid}",
            limit=self._start_limit,
        )

    async def events(self) -> AsyncIterator[InventoryEvent]:
        """Yield XIDs and changes until closed. For one reader."""
        watch = asyncio.create_task(self._watch.run(self._look), name="nvml-library-watch")
        try:
            while (event := await self._box.get()) is not None:
                yield event
        finally:
            watch.cancel()
            await asyncio.gather(watch, return_exceptions=True)

    async def aclose(self) -> None:
        """Shut NVML down, if it answers; a stuck thread is left to the end of the process."""
        self._box.close()
        if self._session.is_open and not self._thread.stuck:
            with contextlib.suppress(InventoryError, TimeoutError):
                async with asyncio.timeout(_CLOSE_LIMIT):  # its turn may come late
                    await self._thread.call(self._session.close, limit=_CLOSE_LIMIT, what="shutting down")
        self._thread.close()

    async def _look(self) -> None:
        try:
            why = await self._call(self._session.check, "looking for the library")
        except InventoryError as exc:
            log.debug("%s", exc)
            return
        if why is not None:
            log.info("%s", why)
            self._box.put(Changed(why=why))

    async def _call(self, job: Callable[[], T], what: str, least: float = 0.0) -> T:
        limit = self._time_limit if self._session.is_open else self._start_limit
        return await self._thread.call(job, limit=max(limit, least), what=what)
