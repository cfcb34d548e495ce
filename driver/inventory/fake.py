"""Fake GPUs behind the same seam as NVML: nothing above can tell, but for `fake`.

Faults come from a file that is watched, and read again whenever it has changed. A bad faults file is told in the log
and changes nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from asyncinotify import Inotify, Mask

from driver.errors import DriverError, InventoryError, StorageError
from driver.file_watch import stamp
from driver.inventory.base import Changed, Reading, Xid
from driver.inventory.fake_gpus import build_gpus
from driver.inventory.fake_mig_file import FakeMigFile
from driver.inventory.fake_partition import FakePartitioner
from driver.inventory.fake_spec import NodeSpec, load_node
from driver.inventory.fake_usage import FakeUsage, with_faults
from driver.inventory.fault_file import write_names
from driver.inventory.fault_words import told
from driver.inventory.faults import ATTRIBUTES, EVENTS, NO_FAULTS, GpuFaults, decode_faults
from driver.inventory.health_faults import QUERIES, report
from driver.inventory.profiles import load_products
from driver.model.device import Gpu, MigDevice, NvLink
from driver.model.snapshot import Problem
from driver.yaml_file import read_text

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Mapping
    from pathlib import Path

    from driver.inventory.base import InventoryEvent
    from driver.inventory.faults import Faults
    from driver.inventory.profiles import Product
    from driver.model.health_facts import HealthReport
    from driver.model.mig import MigInstance, MigState, Placement
    from driver.model.usage import GpuUsage

log = logging.getLogger(__name__)
_FILE_CHANGES = Mask.CLOSE_WRITE | Mask.MOVED_TO | Mask.MOVED_FROM | Mask.DELETE


class FakeInventory:
    """Fake GPUs of one node. `timeout` (seconds) is the time limit of an operation, as NVML's calls have one.

    What is changed about MIG is kept in `mig_file` until the `boot_id` is another; without a file it is gone with this
    object.
    """

    fake = True

    def __init__(
        self,
        spec: NodeSpec,
        *,
        node_name: str,
        faults_file: Path | None = None,
        mig_file: Path | None = None,
        boot_id: str = "",
        timeout: float = 10.0,
    ) -> None:
        self._versions = spec.versions
        self._gpus = build_gpus(spec, node_name)
        self._faults_file = faults_file
        self._timeout = timeout
        self._faults = NO_FAULTS
        self._announced = NO_FAULTS
        self._stamp: tuple[int, ...] | None = None
        self._closed = asyncio.Event()
        self._usage = FakeUsage(self._gpus, faults_file.with_name("usage.yaml") if faults_file else None)
        self._mig_file = FakeMigFile(self._gpus, mig_file, boot_id)
        self._partitioner = FakePartitioner(self._gpus, self._mig_file, self._faults_now, timeout)

    @classmethod
    def from_spec(
        cls,
        gpus: str,
        *,
        node_name: str,
        products: Mapping[str, Product] | None = None,
        faults_file: Path | None = None,
        mig_file: Path | None = None,
        boot_id: str = "",
        timeout: float = 10.0,
        source: str = "gpus",
    ) -> FakeInventory:
        """Make the GPUs that `gpus` asks for: a specification (`h100:8,l4:2`) or a YAML file's path.

        `products` are all that there are, the shipped ones if it is not given.

        :raises InvalidValueError: naming `source` or the file, and what is wrong.
        """
        spec = load_node(gpus, load_products() if products is None else products, source)
        return cls(
            spec, node_name=node_name, faults_file=faults_file, mig_file=mig_file, boot_id=boot_id, timeout=timeout
        )

    async def read(self) -> Reading:
        """Observe all GPUs, as the faults let them answer.

        :raises InventoryError: NVML is down or an answer took longer than the time limit.
        """
        faults = await self._answering()
        readings = [_observe(gpu, faults.of(gpu.uuid)) for gpu in self._present()]
        return Reading(
            versions=self._versions,
            gpus=tuple(one for one in readings if isinstance(one, Gpu)),
            problems=tuple(one for one in readings if isinstance(one, Problem)),
        )

    @property
    def monitored(self) -> frozenset[str]:
        """The UUIDs of the GPUs whose XIDs arrive."""
        return frozenset(gpu.uuid for gpu in self._gpus if EVENTS not in self._faults.of(gpu.uuid).not_supported)

    async def health_facts(self) -> Mapping[str, HealthReport]:
        """Check all GPUs that answer, as the faults let them.

        :raises InventoryError: as `read`.
        """
        faults = await self._answering()
        return {
            gpu.uuid: report(gpu, one.health, one.all_xids(), one.not_supported, one.fails)
            for gpu in self._gpus
            if not (one := faults.of(gpu.uuid)).lost
        }

    async def usage(self) -> Mapping[str, GpuUsage]:
        """Look at what all GPUs that answer do, as the usage file says.

        :raises InventoryError: as `read`.
        """
        faults = await self._answering()
        boards = self._mig_file.boards()
        return {
            gpu.uuid: with_faults(self._usage.of(gpu, boards[gpu.uuid].state() if gpu.uuid in boards else None), one)
            for gpu in self._gpus
            if not (one := faults.of(gpu.uuid)).lost
        }

    async def events(self) -> AsyncIterator[InventoryEvent]:
        """Yield what changes in the faults file, until closed."""
        with contextlib.ExitStack() as stack:
            inotify = self._watch(stack)
            while not self._closed.is_set():
                for event in self._news():
                    yield event
                await self._next_change(inotify)

    async def aclose(self) -> None:
        """End `events` and what is under way."""
        self._closed.set()
        await self._partitioner.aclose()

    async def mig_state(self, gpu_uuid: str) -> MigState:
        """See `Partitioner`."""
        return await self._partitioner.mig_state(gpu_uuid)

    async def set_mig_mode(self, gpu_uuid: str, enabled: bool) -> None:
        """See `Partitioner`."""
        await self._partitioner.set_mig_mode(gpu_uuid, enabled)

    async def create_mig(self, gpu_uuid: str, profile_id: int, placement: Placement) -> MigInstance:
        """See `Partitioner`."""
        return await self._partitioner.create_mig(gpu_uuid, profile_id, placement)

    async def destroy_mig(self, gpu_uuid: str, placement: Placement) -> bool:
        """See `Partitioner`."""
        return await self._partitioner.destroy_mig(gpu_uuid, placement)

    def _faults_now(self) -> Faults:
        self._refresh()
        return self._faults

    async def _answering(self) -> Faults:
        """Return the faults once NVML has answered, as slowly as they say."""
        faults = self._faults_now()
        if faults.nvml_down:
            raise InventoryError("NVML does not answer (the faults file says so)")
        await self._wait(faults.nvml_slow + sum(one.slow for one in faults.gpus.values()))
        return faults

    async def _wait(self, seconds: float) -> None:
        if not seconds:
            return
        await asyncio.sleep(min(seconds, self._timeout))
        if seconds >= self._timeout:
            raise InventoryError(f"an NVML call did not return within {self._timeout:g} s")

    def _news(self) -> list[InventoryEvent]:
        """Return the events since the last ones."""
        self._refresh()
        before, self._announced = self._announced, self._faults
        if before == self._faults:
            return []
        xids = [Xid(gpu_uuid=uuid, xid=xid) for uuid, xid in self._faults.new_xids(before)]
        return [*xids, *self._in_mig_devices(before), Changed(why="the faults file changed")]

    def _present(self) -> list[Gpu]:
        """Return the GPUs as they are partitioned now."""
        boards = self._mig_file.boards()
        return [replace(gpu, mig=boards[gpu.uuid].state()) if gpu.uuid in boards else gpu for gpu in self._gpus]

    def _in_mig_devices(self, before: Faults) -> Iterator[Xid]:
        devices = {device.name: device.instance for gpu in self._present() for device in _mig_devices(gpu)}
        gpus = {gpu.uuid: gpu.name for gpu in self._gpus}
        for uuid, one in self._faults.new_mig_xids(before):
            name = f"{gpus[uuid]}-{one.device}"
            if (instance := devices.get(name)) is None:
                log.error("XID %d is not reported: there is no MIG device %s now", one.xid, name)
                continue
            gi, ci = instance.gpu_instance_id, instance.compute_instance_id
            yield Xid(gpu_uuid=uuid, xid=one.xid, gpu_instance_id=gi, compute_instance_id=ci)

    def _refresh(self) -> None:
        """Read the faults file again if it is another than the last time."""
        file = self._faults_file
        found = stamp(file) if file else None
        if file is None or found == self._stamp:
            return
        self._stamp = found
        try:
            self._faults = decode_faults(read_text(file), self._gpus, str(file)) if found else NO_FAULTS
        except DriverError as exc:
            log.error("ignoring a bad faults file, faults stay as they were: %s", exc)  # noqa: TRY400
            return
        log.info("faults of fake GPUs: %s", told(self._faults, self._gpus) or "none")

    def _watch(self, stack: contextlib.ExitStack) -> Inotify | None:
        """Watch the directory of the faults file, as the file may not exist and be replaced."""
        if self._faults_file is None:
            return None
        directory = self._faults_file.parent
        inotify = stack.enter_context(Inotify())
        try:
            directory.mkdir(parents=True, exist_ok=True)
            inotify.add_watch(directory, _FILE_CHANGES)
            write_names(self._faults_file, self._gpus)
        except (OSError, StorageError) as exc:
            log.warning("cannot watch %s for faults, none are taken up until a restart: %s", directory, exc)
            return None
        return inotify

    async def _next_change(self, inotify: Inotify | None) -> None:
        """Wait for something to happen in the watched directory, or for `aclose`."""
        waits: list[asyncio.Future[object]] = [asyncio.ensure_future(self._closed.wait())]
        if inotify is not None:
            waits.append(asyncio.ensure_future(inotify.get()))
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in waits:
                task.cancel()
            await asyncio.gather(*waits, return_exceptions=True)


def _observe(gpu: Gpu, faults: GpuFaults) -> Gpu | Problem:
    """Return the GPU as it answers with these faults. One bad GPU costs itself only (H5), never half of it (A11)."""
    if faults.lost:
        return Problem(object=gpu.name, message=f"the GPU is lost: it has fallen off the bus ({gpu.uuid})")
    if faults.fails and faults.fails not in QUERIES:
        return Problem(object=gpu.name, message=f"reading {faults.fails} failed: unknown error ({gpu.uuid})")
    changes: dict[str, object] = {}
    for attribute in faults.not_supported:
        changes.update(ATTRIBUTES.get(attribute, {}))
    if "nvlink" in faults.not_supported:
        changes["nvlink"] = NvLink()
    return replace(gpu, **changes) if changes else gpu  # type: ignore[arg-type]  # ATTRIBUTES has the fields' types


def _mig_devices(gpu: Gpu) -> Iterator[MigDevice]:
    instances = gpu.mig.instances if gpu.mig is not None else ()
    return (MigDevice(gpu=gpu, instance=one) for one in instances)
