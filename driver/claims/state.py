"""The critical section: what happens to records and CDI files, under the lock, for a batch of calls at once.

Synchronous and single-threaded: the engine runs it on one thread of its own. A batch costs one lock, and one sync of
the directory, however many claims it has; each claim still succeeds or fails alone, wholly or not at all.

The order on disk makes every crash harmless: the CDI file is written before the record, and removed before it. So a
CDI file without a record is a leftover (`recover` removes it), and a record always has, or can rebuild, its file (C1).
"""

from __future__ import annotations

import contextlib
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, assert_never

from driver.cdi import spec as cdi_spec
from driver.claims.holding import Holding, holding_of
from driver.claims.plan import make_plan
from driver.claims.record import PreparedDevice, Record, RecordedDevice
from driver.errors import DeviceNotReadyError, DriverError, RecordError, StorageError, SupersededError
from driver.model import names
from driver.model.device import FullGpu

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from driver.claims.allocation import Allocation, ClaimRef, Result
    from driver.claims.plan import Plan
    from driver.claims.store import Quarantined, RecordStore
    from driver.model.device import Device
    from driver.model.snapshot import Snapshot

log = logging.getLogger(__name__)

Answer = tuple[PreparedDevice, ...]
Outcome = Answer | DriverError | None


class CdiFiles(Protocol):
    """The claims' CDI files (`driver.cdi.store.CdiStore`)."""

    def write(self, claim_uid: str, data: bytes) -> None: ...  # noqa: D102
    def remove(self, claim_uid: str) -> bool: ...  # noqa: D102
    def exists(self, claim_uid: str) -> bool: ...  # noqa: D102
    def holds(self, claim_uid: str, data: bytes) -> bool: ...  # noqa: D102
    def intact(self, claim_uid: str) -> bool: ...  # noqa: D102
    def claim_uids(self) -> set[str]: ...  # noqa: D102
    def devices(self, claim_uid: str) -> tuple[str, ...]: ...  # noqa: D102
    def sweep(self) -> int: ...  # noqa: D102


class Edits(Protocol):
    """What a container needs for a device (`driver.cdi.edits.EditsSource`)."""

    def common(self) -> cdi_spec.ContainerEdits: ...  # noqa: D102
    def device(self, device: Device) -> cdi_spec.ContainerEdits: ...  # noqa: D102


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepare:
    """Prepare an allocation for a call that began at `since` (CLOCK_MONOTONIC, ns)."""

    allocation: Allocation
    since: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Unprepare:
    """Release a claim. With `only_if`, only while its record is still that one (reconciliation)."""

    claim: ClaimRef
    only_if: Record | None = None


Operation = Prepare | Unprepare


class ClaimState:
    """Records, CDI files and the rules between them, of one node."""

    def __init__(
        self,
        *,
        store: RecordStore,
        cdi: CdiFiles,
        edits: Edits,
        snapshot: Callable[[], Snapshot],
        node: str,
        pool: str,
        boot_id: str,
    ) -> None:
        self._store = store
        self._cdi = cdi
        self._edits = edits
        self._snapshot = snapshot
        self._node = node
        self._pool = pool
        self._boot_id = boot_id

    def run(self, operations: Sequence[Operation]) -> list[Outcome]:
        """Do the operations in order, under the lock; each has its own outcome.

        :raises StorageError: the state can't be read or locked; nothing was done.
        """
        with self._store.lock:
            self._store.refresh()
            outcomes: list[Outcome] = []
            for group in _groups(operations):
                outcomes.extend(self._run_group(group))
            return outcomes

    def recall(self, allocation: Allocation) -> Answer | None:
        """Return the answer of a claim that is prepared already and needs nothing done; else None.

        Takes no lock and writes nothing, so it may run on any thread, and a claim that is unprepared at this very
        moment leaves no ghost. Two stats say that nothing happened to the files since they were known to be right.
        """
        uid = allocation.claim.uid
        record = self._store.peek(uid)
        if record is None or record.boot_id != self._boot_id or not _says(record, allocation):
            return None
        return record.answer if self._cdi.intact(uid) else None

    def records(self) -> tuple[Record, ...]:
        """Return the records of this boot, freshly read.

        :raises StorageError: the state can't be read or locked.
        """
        with self._store.lock:
            self._store.refresh()
            return tuple(record for record in self._store.records.values() if record.boot_id == self._boot_id)

    def recover(self) -> tuple[str, ...]:
        """Clean up after a crash; return the UIDs of the CDI files that had no record and were removed.

        :raises StorageError: the state can't be used.
        """
        self._store.prepare_directories()
        with self._store.lock:
            self._cdi.sweep()
            self._store.refresh()
            orphans = self._cdi.claim_uids() - self._store.records.keys() - self._store.quarantined.keys()
            for uid in sorted(orphans):
                log.warning("Removing the CDI file of claim %s: no record says that it was prepared", uid)
                self._cdi.remove(uid)
            return tuple(sorted(orphans))

    def refresh_cdi(self) -> None:
        """Rebuild the CDI files of prepared claims that vanished or have changed (C1, driver upgrades).

        :raises StorageError: the state can't be read or locked.
        """
        with self._store.lock:
            self._store.refresh()
            for record in self._store.records.values():
                if record.boot_id == self._boot_id:
                    try:
                        self._restore_cdi(record)
                    except DriverError as exc:
                        log.warning("The CDI file of claim %s can't be rebuilt: %s", record.claim, exc)

    # --- prepare -----------------------------------------------------------------------------------------------------

    def _run_group(self, group: Sequence[Operation]) -> list[Outcome]:
        prepares = [one for one in group if isinstance(one, Prepare)]
        if prepares:
            return self._prepare(prepares)
        return self._unprepare([one for one in group if isinstance(one, Unprepare)])

    def _prepare(self, group: Sequence[Prepare]) -> list[Outcome]:
        outcomes: dict[str, Outcome] = {}
        fresh: list[Record] = []
        for operation in group:
            uid = operation.allocation.claim.uid
            try:
                record = self._admit(operation, fresh)
                outcomes[uid] = record.answer
                if self._store.records.get(uid) is not record:
                    fresh.append(record)
            except DriverError as exc:
                outcomes[uid] = exc
        if fresh:
            for uid, error in self._store.put(fresh).items():
                with contextlib.suppress(StorageError):  # what stays is a leftover that the next start removes
                    self._cdi.remove(uid)
                outcomes[uid] = error
        return [outcomes[operation.allocation.claim.uid] for operation in group]

    def _admit(self, operation: Prepare, earlier: Iterable[Record]) -> Record:
        """Return the claim's record: the one on disk if it is sound, else a new one whose CDI file is written."""
        allocation = operation.allocation
        uid = allocation.claim.uid
        if self._store.lock.buried_at(uid) > operation.since:
            raise SupersededError(f"claim {allocation.claim} was unprepared while this prepare was under way")
        record = self._store.records.get(uid)
        if record and record.boot_id == self._boot_id and _says(record, allocation):
            self._restore_cdi(record)
            return record
        plan = make_plan(
            allocation, snapshot=self._snapshot(), pool=self._pool, held=self._held(uid, earlier), node=self._node
        )
        self._cdi.write(uid, self._render(uid, [(one.device, one.result.share_id) for one in plan.devices]))
        return _record_of(plan, self._boot_id)

    def _held(self, but: str, further: Iterable[Record]) -> Mapping[str, tuple[Holding, ...]]:
        """Return what other claims hold in this boot, unreadable records included (S1)."""
        held = {
            record.claim.uid: record.holdings
            for record in (*self._store.records.values(), *further)
            if record.boot_id == self._boot_id and record.claim.uid != but
        }
        for uid, entry in self._store.quarantined.items():
            if uid != but:
                held[uid] = self._holdings_of(entry)
        return held

    def _holdings_of(self, entry: Quarantined) -> tuple[Holding, ...]:
        """Return what an unreadable record seems to hold, by its bytes or else by the claim's CDI file."""
        if entry.salvaged is not None:
            return entry.salvaged.holdings if entry.salvaged.boot_id == self._boot_id else ()
        found = []
        for name in self._cdi.devices(entry.uid):
            device = self._snapshot().device(name)
            found.append(holding_of(device) if device else Holding(device=name, gpu_uuid=""))
        return tuple(found)

    # --- CDI ---------------------------------------------------------------------------------------------------------

    def _restore_cdi(self, record: Record) -> None:
        uid = record.claim.uid
        snapshot = self._snapshot()
        try:
            data = self._render(uid, [_again(device, snapshot) for device in record.devices])
        except DeviceNotReadyError:
            if self._cdi.exists(uid):  # the device is in trouble, but what was promised is still there
                return
            raise
        if not self._cdi.holds(uid, data):
            log.info("Rebuilding the CDI file of claim %s", record.claim)
            self._cdi.write(uid, data)

    def _render(self, uid: str, devices: Iterable[tuple[Device, str | None]]) -> bytes:
        """Return the claim's CDI file for devices with their share ids."""
        edits = {names.cdi_device(uid, device.name, share): self._edits.device(device) for device, share in devices}
        return cdi_spec.encode(cdi_spec.claim_spec(uid, common=self._edits.common(), devices=edits))

    # --- unprepare ---------------------------------------------------------------------------------------------------

    def _unprepare(self, group: Sequence[Unprepare]) -> list[Outcome]:
        outcomes: dict[str, Outcome] = {}
        removed = []
        for operation in group:
            uid = operation.claim.uid
            try:
                if self._release(operation):
                    removed.append(uid)
                outcomes[uid] = None
            except DriverError as exc:
                outcomes[uid] = exc
        outcomes.update(self._store.drop(removed))
        return [outcomes[operation.claim.uid] for operation in group]

    def _release(self, operation: Unprepare) -> bool:
        """Undo everything but the record; say whether there is one to drop."""
        uid = operation.claim.uid
        record = self._store.records.get(uid)
        if operation.only_if is not None and record != operation.only_if:
            return False
        self._store.lock.bury(uid)
        entry = self._store.quarantined.get(uid)
        if record is None and entry is not None and entry.salvaged is None:
            raise RecordError(
                f"the record of claim {operation.claim} can't be read ({entry.reason}), so nothing tells what was "
                f"prepared; its bytes are kept as {entry.path}. Remove that file once no container uses the claim's "
                "GPUs: the next try succeeds"
            )
        self._cdi.remove(uid)
        self._store.settle(uid)
        return record is not None


def _groups(operations: Sequence[Operation]) -> list[list[Operation]]:
    """Split into runs of one kind without a repeated claim: within a run the order does not matter."""
    groups: list[list[Operation]] = []
    seen: set[str] = set()
    for operation in operations:
        uid = _uid(operation)
        if not groups or type(groups[-1][0]) is not type(operation) or uid in seen:
            groups.append([])
            seen = set()
        groups[-1].append(operation)
        seen.add(uid)
    return groups


def _uid(operation: Operation) -> str:
    match operation:
        case Prepare():
            return operation.allocation.claim.uid
        case Unprepare():
            return operation.claim.uid
        case _:
            assert_never(operation)


def _says(record: Record, allocation: Allocation) -> bool:
    """Say whether the record is of this very allocation; a claim may have been allocated anew since."""

    def of_result(result: Result) -> tuple[object, ...]:
        return result.request, result.pool, result.device, result.share_id, result.admin_access

    recorded = [
        (one.request, one.pool, one.holding.device, one.holding.share_id, one.holding.admin_access)
        for one in record.devices
    ]
    return recorded == [of_result(result) for result in allocation.results]


def _record_of(plan: Plan, boot_id: str) -> Record:
    devices = tuple(
        RecordedDevice(
            request=planned.result.request,
            pool=planned.result.pool,
            holding=planned.holding,
            kind="gpu" if isinstance(planned.device, FullGpu) else "mig",
        )
        for planned in plan.devices
    )
    return Record(claim=plan.allocation.claim, boot_id=boot_id, devices=devices)


def _again(recorded: RecordedDevice, snapshot: Snapshot) -> tuple[Device, str | None]:
    device = snapshot.device(recorded.holding.device)
    if device is None or device.gpu.uuid != recorded.holding.gpu_uuid:
        raise DeviceNotReadyError(f"device {recorded.holding.device} is not there any more")
    return device, recorded.holding.share_id
