"""A claim's CDI file, made of its record: what the containers that use the claim get."""

from __future__ import annotations

import logging
from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol

from driver.cdi import spec as cdi
from driver.claims.effect import MpsDaemon, Partition
from driver.errors import DeviceNotReadyError
from driver.model import names
from driver.model.device import Device, MigDevice, MigPartition
from driver.model.mig import MigInstance
from driver.sharing.limits import client_env, whole_mib

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from driver.claims.record import Record, RecordedDevice
    from driver.model.snapshot import Snapshot
    from driver.sharing.base import ClientEdits

log = logging.getLogger(__name__)


class CdiFiles(Protocol):
    """The claims' CDI files (`driver.cdi.store.CdiStore`)."""

    def write(self, claim_uid: str, data: bytes) -> None:
        """Put the claim's file there, whole."""
        ...

    def remove(self, claim_uid: str) -> bool:
        """Remove it; say whether it was there."""
        ...

    def exists(self, claim_uid: str) -> bool:
        """Say whether it is there."""
        ...

    def holds(self, claim_uid: str, data: bytes) -> bool:
        """Say whether it is there with exactly these bytes."""
        ...

    def intact(self, claim_uid: str) -> bool:
        """Say, by one stat, whether it is the one last written or found right."""
        ...

    def claim_uids(self) -> set[str]:
        """Return the claims that have a file."""
        ...

    def devices(self, claim_uid: str) -> tuple[str, ...]:
        """Return the device names in it."""
        ...

    def sweep(self) -> int:
        """Remove what a crash left half written."""
        ...


class Edits(Protocol):
    """What a container needs for a device (`driver.cdi.edits.EditsSource`)."""

    def common(self) -> cdi.ContainerEdits:
        """Return what comes once per container."""
        ...

    def device(self, device: Device) -> cdi.ContainerEdits:
        """Return what one device adds."""
        ...


class Metadata(Protocol):
    """Files about a claim's devices for its containers (`driver.claims.metadata_files.MetadataFiles`)."""

    def write(
        self, record: Record, devices: Mapping[int, Device], snapshot: Snapshot
    ) -> Mapping[str, cdi.ContainerEdits]:
        """Make the claim's files current; return what mounts them, by request. `devices` go by place in the record.

        :raises StorageError: one can't be written.
        """
        ...


class ClaimCdi:
    """Writes and repairs the files. `daemon_edits` says what reaching an MPS daemon takes; `metadata` is optional."""

    def __init__(
        self,
        files: CdiFiles,
        edits: Edits,
        snapshot: Callable[[], Snapshot],
        daemon_edits: Callable[[MpsDaemon], ClientEdits] | None = None,
        metadata: Metadata | None = None,
    ) -> None:
        self.files = files
        self._edits = edits
        self._snapshot = snapshot
        self._daemon_edits = daemon_edits
        self._metadata = metadata

    def write(self, record: Record) -> None:
        """Write the file of a record whose effects are done.

        :raises DeviceNotReadyError: a device's nodes or the driver's libraries are not there.
        :raises StorageError: it can't be written.
        """
        self.files.write(record.claim.uid, self._render(record))

    def restore(self, record: Record) -> None:
        """Make sure that the file is there and current (C1).

        A device that is in trouble now does not void a file that is there.

        :raises DeviceNotReadyError: the file is gone, and can't be made now.
        :raises StorageError: it can't be written.
        """
        uid = record.claim.uid
        try:
            data = self._render(record)
        except DeviceNotReadyError:
            if self.files.exists(uid):
                return
            raise
        if not self.files.holds(uid, data):
            log.info("Rebuilding the CDI file of claim %s", record.claim)
            self.files.write(uid, data)

    def _render(self, record: Record) -> bytes:
        """Return the file's content; the files about devices that it mounts are there then."""
        uid = record.claim.uid
        snapshot = self._snapshot()
        daemons = [effect for effect in record.effects if isinstance(effect, MpsDaemon)]
        current = {place: _device_of(one, record, snapshot) for place, one in enumerate(record.devices)}
        told = self._metadata.write(record, current, snapshot) if self._metadata is not None else {}
        devices = {}
        for place, recorded in enumerate(record.devices):
            name = names.cdi_device(uid, recorded.holding.device, recorded.holding.share_id)
            more = told.get(recorded.request.partition("/")[0], cdi.NO_EDITS)
            serving = [daemon for daemon in daemons if recorded.holding.device in daemon.devices]
            limits = _limits(recorded, current[place], record, under_mps=bool(serving))
            devices[name] = cdi.merge(self._edits.device(current[place]), *self._reach(serving), limits, more)
        return cdi.encode(cdi.claim_spec(uid, common=self._edits.common(), devices=devices))

    def _reach(self, daemons: Iterable[MpsDaemon]) -> list[cdi.ContainerEdits]:
        """Return what reaching daemons takes. For who has their devices only: CUDA finds no other device there."""
        return [_as_cdi(self._daemon_edits(daemon)) for daemon in daemons] if self._daemon_edits is not None else []


def _device_of(recorded: RecordedDevice, record: Record, snapshot: Snapshot) -> Device:
    """Return the device as it exists now; a partition as the MIG device that was made of it."""
    device = snapshot.device(recorded.holding.device)
    if device is None or device.gpu.uuid != recorded.holding.gpu_uuid:
        raise DeviceNotReadyError(f"device {recorded.holding.device} is not there any more")
    if isinstance(device, MigPartition):
        made = record.partition(device.name)
        if made is not None and made.uuid:
            return MigDevice(gpu=device.gpu, instance=_instance(device, made))
        return device.made or device  # admin access sees what another claim has made
    return device


def _instance(device: MigPartition, made: Partition) -> MigInstance:
    return MigInstance(
        uuid=made.uuid,
        gpu_instance_id=made.gpu_instance_id,
        compute_instance_id=made.compute_instance_id,
        profile=device.profile,
        placement=device.placement,
        compute_slices=device.profile.compute_slices,
    )


def _as_cdi(edits: ClientEdits) -> cdi.ContainerEdits:
    mounts = tuple(
        cdi.Mount(host_path=one.host_path, container_path=one.container_path, options=one.options)
        for one in edits.mounts
    )
    return cdi.ContainerEdits(env=edits.env, mounts=mounts)


def _limits(recorded: RecordedDevice, device: Device, record: Record, *, under_mps: bool) -> cdi.ContainerEdits:
    """Tell the container the claim's part of a shared device. Only MPS enforces it; without, it is advice.

    Of several shares of one GPU, each tells their sum: a container that has all of them gets each variable only once.
    """
    if recorded.memory_limit is None and not recorded.holding.share_id:
        return cdi.NO_EDITS
    env = {}
    shares = [one for one in record.devices if one.holding.gpu_uuid == recorded.holding.gpu_uuid]
    limits = [one.memory_limit for one in shares if one.memory_limit is not None]
    memory = sum(limits) if recorded.memory_limit is not None and len(limits) == len(shares) else None
    if memory is not None:
        env[f"GPU_DRA_MEMORY_LIMIT_{device.gpu.index}"] = whole_mib(memory)
    if recorded.holding.share_id and under_mps:
        env.update(client_env(memory, recorded.thread_percentage))
    return cdi.ContainerEdits(env=MappingProxyType(env))
