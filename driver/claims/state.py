"""The critical section: what happens to records and CDI files, under the lock, for a batch of calls at once.

Synchronous and single-threaded: the engine runs it on one thread of its own. A batch costs one lock, and one sync of
the directory, however many claims it has; each claim still succeeds or fails alone, wholly or not at all.

The order on disk makes every crash harmless: the CDI file is written before a record says `ready`, and removed before
the record. So a CDI file without a record is a leftover (`recover` removes it), and a ready record always has, or can
rebuild, its file (C1). A record that is not ready says what may have been done to the node, and what was found before.
"""

from __future__ import annotations

import contextlib
import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from driver.claims.effect import Effect, Key, MpsDaemon, Partition, is_found, with_found
from driver.claims.holding import Holding, holding_of
from driver.claims.operations import (
    Abandon,
    Answer,
    Complete,
    Drop,
    Observe,
    Operation,
    Outcome,
    Pending,
    Prepare,
    Undo,
    Unprepare,
    as_outcome,
    runs_of,
)
from driver.claims.plan import make_plan
from driver.claims.recording import is_of, record_of, to_undo
from driver.claims.wishes import check_agreement
from driver.errors import DriverError, RecordError, StorageError, SupersededError
from driver.model import names

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from driver.claims.allocation import Allocation, ClaimRef
    from driver.claims.cdi_files import ClaimCdi
    from driver.claims.ledger import Made
    from driver.claims.plan import Plan
    from driver.claims.record import Record
    from driver.claims.store import Quarantined, RecordStore
    from driver.model.snapshot import Snapshot

log = logging.getLogger(__name__)


class ClaimState:
    """Records, CDI files and the rules between them, of one node."""

    def __init__(
        self,
        *,
        store: RecordStore,
        cdi: ClaimCdi,
        snapshot: Callable[[], Snapshot],
        node: str,
        pool: str,
        boot_id: str,
    ) -> None:
        self._store = store
        self._cdi = cdi
        self._snapshot = snapshot
        self._node = node
        self._pool = pool
        self._boot_id = boot_id

    def waits_for(self) -> str:
        """Say what `run` waits for at this moment, on any thread; empty for nothing."""
        path = self._store.lock.path
        return f"another process holds {path}: is an instance of the driver hung?" if self._store.lock.waiting else ""

    def run(self, operations: Sequence[Operation]) -> list[Outcome]:
        """Do the operations in order, under the lock; each has its own outcome.

        :raises StorageError: the state can't be read or locked; nothing was done.
        """
        with self._store.lock:
            self._store.refresh()
            outcomes: list[Outcome] = []
            for group in runs_of(operations):
                outcomes.extend(self._run_group(group))
            return outcomes

    def recall(self, allocation: Allocation) -> Answer | None:
        """Return the answer of a claim that is prepared already and needs nothing done; else None.

        Takes no lock and writes nothing, so it may run on any thread, and a claim that is unprepared at this very
        moment leaves no ghost. Two stats say that nothing happened to the files since they were known to be right.
        """
        uid = allocation.claim.uid
        record = self._store.peek(uid)
        if record is None or not self._is_sound(record) or not is_of(record, allocation):
            return None
        return record.answer if self._cdi.files.intact(uid) else None

    def cdi_is_missing(self) -> bool:
        """Say whether a known record lacks its CDI file. Takes no lock, so a claim in transit may be told wrongly."""
        known = tuple(self._store.records.values())
        return any(self._is_sound(record) and not self._cdi.files.exists(record.claim.uid) for record in known)

    def records(self) -> tuple[Record, ...]:
        """Return all records, freshly read, those of another boot included.

        :raises StorageError: the state can't be read or locked.
        """
        with self._store.lock:
            self._store.refresh()
            return tuple(self._store.records.values())

    def doubtful(self) -> tuple[Record, ...]:
        """Return what unreadable records of this boot seem to be, where giving them up takes no effect's undoing.

        :raises StorageError: the state can't be read or locked.
        """
        with self._store.lock:
            self._store.refresh()
            found = [entry.salvaged for entry in self._store.quarantined.values() if entry.undoable]
            return tuple(record for record in found if record is not None and self.current(record))

    def suspected_daemons(self) -> frozenset[str]:
        """Return the ids that the MPS daemons of unreadable records have, if they have any: the claim's, a device's.

        :raises StorageError: the state can't be read or locked.
        """
        with self._store.lock:
            self._store.refresh()
            return self._suspected("")

    def owns(self, made: Made) -> bool:
        """Say whether a record of this boot, or one that can't be read, may own a MIG device that this driver made.

        :raises StorageError: the state can't be read or locked.
        """
        with self._store.lock:
            self._store.refresh()
            if made.claims & self._store.quarantined.keys():
                return True
            return any(
                isinstance(effect, Partition) and (effect.gpu, effect.placement) == (made.gpu, made.placement)
                for record in self._others("")
                for effect in record.effects
            )

    def current(self, record: Record) -> bool:
        """Say whether a record is of this boot."""
        return record.boot_id == self._boot_id

    def recover(self) -> tuple[str, ...]:
        """Clean up after a crash; return the UIDs of the CDI files that had no record, which go if they can.

        :raises StorageError: the state can't be used.
        """
        with self._store.lock:
            self._store.lock.forget_other_boots()
            self._store.prepare_directories()  # what another instance is writing now is no leftover
            self._cdi.files.sweep()
            self._store.begin(self._boot_id)
            self._store.refresh()
            orphans = self._cdi.files.claim_uids() - self._store.records.keys() - self._store.quarantined.keys()
            for uid in sorted(orphans):
                log.warning("Removing the CDI file of claim %s: no record says that it was prepared", uid)
                try:
                    self._cdi.files.remove(uid)
                except StorageError as exc:  # no claim has it, so it costs nobody anything until the next start
                    log.warning("It stays: %s", exc)
            return tuple(sorted(orphans))

    def refresh_cdi(self) -> None:
        """Rebuild the CDI files of prepared claims that vanished or have changed (C1, driver upgrades).

        :raises StorageError: the state can't be read or locked, or a file can't be written now; all others are.
        """
        failed: StorageError | None = None
        with self._store.lock:
            self._store.refresh()
            for record in self._store.records.values():
                if self._is_sound(record):
                    try:
                        self._cdi.restore(record)
                    except DriverError as exc:
                        log.warning("The CDI file of claim %s can't be rebuilt: %s", record.claim, exc)
                        failed = exc if isinstance(exc, StorageError) else failed
        if failed is not None:
            raise failed

    # --- prepare -----------------------------------------------------------------------------------------------------

    def _run_group(self, group: Sequence[Operation]) -> list[Outcome]:
        outcomes: dict[str, Outcome] = {}
        writes: list[Record] = []
        drops: list[str] = []
        for operation in group:
            try:
                outcomes[operation.uid] = self._run_one(operation, writes, drops)
            except Exception as exc:  # even a bug costs the other claims of the turn nothing
                outcomes[operation.uid] = as_outcome(exc)
        if writes:
            for uid, error in self._store.put(writes).items():
                with contextlib.suppress(StorageError):  # what stays is a leftover that the next start removes
                    self._cdi.files.remove(uid)
                outcomes[uid] = error
        if drops:
            outcomes.update(self._store.drop(drops))
        return [outcomes[operation.uid] for operation in group]

    def _run_one(self, operation: Operation, writes: list[Record], drops: list[str]) -> Outcome:
        match operation:
            case Prepare():
                return self._prepare(operation, writes)
            case Complete():
                return self._complete(operation, writes)
            case Unprepare():
                return self._release(operation, writes, drops)
            case Abandon():
                return self._abandon(operation, drops)
            case Drop():
                return self._drop(operation, drops)

    def _prepare(self, operation: Prepare, writes: list[Record]) -> Outcome:
        """Answer from the record on disk if it is sound; else record anew, with the CDI file or with the intent."""
        allocation, uid = operation.allocation, operation.uid
        self._refuse_ghost(operation.uid, operation.since, allocation.claim)
        record = self._store.records.get(uid)
        if record is not None:
            if self._is_sound(record) and is_of(record, allocation):
                self._cdi.restore(record)
                return record.answer
            if effects := self._to_undo(record, writes=writes):
                self._cdi.files.remove(uid)
                return _undo(record, effects, writes)
        others = self._others(uid, writes)
        held = {other.claim.uid: other.holdings for other in others} | self._suspects(uid)
        plan = self._plan(allocation, held, _made(others))
        self._check_agreement(plan, others)
        known = _known(others)
        found = operation.found or {}
        unknown = tuple(effect for effect in plan.effects if effect.key not in known and effect.key not in found)
        if unknown or (plan.effects and operation.found is None):
            return Observe(effects=plan.effects, unknown=unknown)
        effects = tuple(known.get(effect.key) or with_found(effect, found.get(effect.key)) for effect in plan.effects)
        fresh = record_of(plan, self._boot_id, effects)
        if fresh.ready:
            self._cdi.write(fresh)
        writes.append(fresh)
        return fresh.answer if fresh.ready else Pending(record=fresh)

    def _complete(self, operation: Complete, writes: list[Record]) -> Outcome:
        record = operation.record
        self._refuse_ghost(operation.uid, operation.since, record.claim)
        self._cdi.write(record)
        writes.append(record)
        return record.answer

    def _plan(self, allocation: Allocation, held: Mapping[str, Iterable[Holding]], made: Mapping[str, str]) -> Plan:
        snapshot = self._snapshot()
        return make_plan(allocation, snapshot=snapshot, pool=self._pool, held=held, node=self._node, made=made)

    def _check_agreement(self, plan: Plan, others: Sequence[Record]) -> None:
        if not plan.effects and not any(other.effects for other in others):
            return  # nobody changes anything: by far the most claims
        mine = {one.holding.device: one.holding.gpu_uuid for one in plan.devices if not one.holding.admin_access}
        shared = {
            other.claim.uid: [mine[one.device] for one in other.holdings if one.device in mine and not one.admin_access]
            for other in others
        }
        check_agreement(plan.effects, {other.claim.uid: other.effects for other in others}, shared)

    def _refuse_ghost(self, uid: str, since: int, claim: ClaimRef) -> None:
        if self._store.lock.buried_at(uid) > since:
            raise SupersededError(f"claim {claim} was unprepared while this prepare was under way")

    def _is_sound(self, record: Record) -> bool:
        return record.ready and record.boot_id == self._boot_id

    def _others(self, but: str, further: Iterable[Record] = ()) -> list[Record]:
        """Return the records of this boot of other claims; one that is being written counts already."""
        records = {record.claim.uid: record for record in (*self._store.records.values(), *further)}
        return [one for uid, one in records.items() if uid != but and one.boot_id == self._boot_id]

    def _suspects(self, but: str) -> dict[str, tuple[Holding, ...]]:
        """Return what unreadable records seem to hold, so that it is not given away (S1)."""
        return {uid: self._holdings_of(entry) for uid, entry in self._store.quarantined.items() if uid != but}

    def _holdings_of(self, entry: Quarantined) -> tuple[Holding, ...]:
        """Return what an unreadable record seems to hold, by its bytes or else by the claim's CDI file."""
        if entry.salvaged is not None:
            return entry.salvaged.holdings if entry.salvaged.boot_id == self._boot_id else ()
        return tuple(self._seeming(name) for name in self._cdi.files.devices(entry.uid))

    def _suspected(self, but: str) -> frozenset[str]:
        """Return the names of devices and claims whose MPS daemons and partitions unreadable records may want."""
        suspects = self._suspects(but)
        return frozenset({holding.device for holdings in suspects.values() for holding in holdings} | suspects.keys())

    def _seeming(self, name: str) -> Holding:
        """Return what having a device means whose name in a CDI file is all that is known."""
        base, share_id = names.split_share(name)
        shared = self._snapshot().device(base) if share_id else None
        if shared is not None:
            return holding_of(shared, share_id=share_id)
        device = self._snapshot().device(name)
        return holding_of(device) if device is not None else Holding(device=name, gpu_uuid="")

    # --- unprepare ---------------------------------------------------------------------------------------------------

    def _release(self, operation: Unprepare, writes: list[Record], drops: list[str]) -> Outcome:
        uid = operation.uid
        record = self._store.records.get(uid)
        entry = self._store.quarantined.get(uid)
        salvaged = entry.salvaged if entry is not None else None
        if operation.only_if is not None and (record or salvaged) != operation.only_if:
            return None
        if operation.only_if is None or operation.only_if.ready:
            self._store.lock.bury(uid)  # undoing a half-done try is no unprepare: the kubelet's next try may be here
        if record is None and entry is not None and not entry.undoable:
            raise RecordError(str(entry))
        self._cdi.files.remove(uid)
        self._store.settle(uid)
        if record is None:
            return None
        if effects := self._to_undo(record, drops):
            return _undo(record, effects, writes)
        drops.append(uid)
        return None

    def _abandon(self, operation: Abandon, drops: list[str]) -> Outcome:
        if self._store.records.get(operation.uid) != operation.record:
            return None
        self._cdi.files.remove(operation.uid)
        if effects := self._to_undo(operation.record, drops):
            return Undo(record=operation.record, effects=effects)
        drops.append(operation.uid)
        return None

    def _drop(self, operation: Drop, drops: list[str]) -> Outcome:
        if self._store.records.get(operation.uid) != operation.record:
            return None
        left = [one for one in self._to_undo(operation.record, drops) if one not in operation.undone]
        if left:
            return Undo(record=operation.record, effects=tuple(left))
        drops.append(operation.uid)
        return None

    def _to_undo(
        self, record: Record, drops: Collection[str] = (), writes: Iterable[Record] = ()
    ) -> tuple[Effect, ...]:
        """Return what nobody else wants. Of claims in the same batch counts what it makes of them.

        Those of `drops` want nothing any more; those of `writes` want what is written. An unreadable record wants what
        its bytes still say, and what its claim's containers can't do without on the devices that it seems to hold (S1).
        """
        if not record.effects:
            return ()
        salvaged = [one.salvaged for one in self._store.quarantined.values() if one.salvaged is not None]
        others = [one for one in self._others(record.claim.uid, (*salvaged, *writes)) if one.claim.uid not in drops]
        return to_undo(record, others, self._boot_id, suspected=self._suspected(record.claim.uid))


def _undo(record: Record, effects: tuple[Effect, ...], writes: list[Record]) -> Undo:
    """Have effects undone. The record must say so first: half undone, it must not be answered from."""
    if record.ready:
        record = replace(record, ready=False)
        writes.append(record)
    return Undo(record=record, effects=effects)


def _made(others: Iterable[Record]) -> dict[str, str]:
    """Return the UUIDs of the MIG devices that claims have made, by the partition's name."""
    effects = (effect for other in others if other.ready for effect in other.effects)
    return {effect.device: effect.uuid for effect in effects if isinstance(effect, Partition) and effect.uuid}


def _known(others: Iterable[Record]) -> dict[Key, Effect]:
    """Return the effects that other claims have already, as recorded: what was found before, what was made.

    What was found stays true while another claim is being undone; what was made does not.
    """
    return {
        effect.key: effect
        for other in others
        for effect in other.effects
        if is_found(effect) and (other.ready or not isinstance(effect, Partition | MpsDaemon))
    }
