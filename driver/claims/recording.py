"""A plan as a record, and a record held against an allocation. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from driver.claims.effect import MigMode, MpsDaemon, Partition
from driver.claims.record import Record, RecordedDevice
from driver.model.device import FullGpu

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from driver.claims.allocation import Allocation
    from driver.claims.effect import Effect
    from driver.claims.plan import Plan


def record_of(plan: Plan, boot_id: str, effects: tuple[Effect, ...]) -> Record:
    """Return the record of a plan; with effects it is not ready until they are done."""
    devices = tuple(
        RecordedDevice(
            request=planned.result.request,
            pool=planned.result.pool,
            holding=planned.holding,
            kind="gpu" if isinstance(planned.device, FullGpu) else "mig",
            memory_limit=planned.memory_limit,
            thread_percentage=planned.thread_percentage,
        )
        for planned in plan.devices
    )
    return Record(
        claim=plan.allocation.claim,
        boot_id=boot_id,
        devices=devices,
        effects=effects,
        ready=not effects,
        pod_claim=plan.allocation.pod_claim,
    )


def is_of(record: Record, allocation: Allocation) -> bool:
    """Say whether the record is of this very allocation; a claim may have been allocated anew since."""
    recorded = [
        (one.request, one.pool, one.holding.device, one.holding.share_id, one.holding.admin_access)
        for one in record.devices
    ]
    wanted = [(one.request, one.pool, one.device, one.share_id, one.admin_access) for one in allocation.results]
    return recorded == wanted


def to_undo(
    record: Record, others: Iterable[Record], boot_id: str, suspected: Collection[str] = ()
) -> tuple[Effect, ...]:
    """Return the record's effects to undo, last first: those that no other record of this boot wants too.

    MPS daemons and partitions of what `suspected` names are left: containers may use them. They go later, without a
    record (`ClaimEngine.resume`, `claims.strays`).

    Of another boot only MIG mode is left: it survives a reboot on some GPUs, while instances, compute modes, time
    slices and daemons do not (S6).
    """
    still_wanted = {effect.key for other in others if other.boot_id == boot_id for effect in other.effects}
    effects = [effect for effect in reversed(record.effects) if effect.key not in still_wanted]
    if record.boot_id != boot_id:
        effects = [effect for effect in effects if isinstance(effect, MigMode)]
    return tuple(effect for effect in effects if not _serves(effect, suspected))


def _serves(effect: Effect, names: Collection[str]) -> bool:
    match effect:
        case MpsDaemon():
            return effect.id in names
        case Partition():
            return effect.device in names
        case _:
            return False


def daemons(records: Iterable[Record]) -> dict[str, MpsDaemon]:
    """Return the MPS daemons that records want running, by id."""
    wanted = [effect for record in records for effect in record.effects if isinstance(effect, MpsDaemon)]
    return {daemon.id: daemon for daemon in wanted}
