"""Does effects, undoes them, and looks at what is there before. Called with the GPUs' locks held.

Undoing is safe whether the effect was done, half done or not done at all: it brings about what was found, by name.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, assert_never

from driver.claims.effect import ComputeMode, Effect, Key, MigMode, MpsDaemon, Partition, TimeSlice
from driver.errors import ClaimRefusedError, DriverError, GpuLostError, MigError, PlacementTakenError
from driver.inventory import mig_rules
from driver.sharing.base import DEFAULT_TIME_SLICE
from driver.sharing.limits import mps_spec

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping

    from driver.claims.ledger import Ledger, Made
    from driver.inventory.base import Partitioner
    from driver.model.mig import MigInstance, Placement
    from driver.sharing.base import ClientEdits, ComputeModePolicy, MpsControl, MpsSpec, TimeSlicePolicy

log = logging.getLogger(__name__)


class EffectRunner:
    """Does what the parts that it was given can do; the rest is refused.

    `changed` is called when MIG changed, as the inventory does not tell of that by itself. `other_daemons` tells which
    MPS daemons are not claims' and somebody else's to stop. `ledger` is told which MIG devices are ours.
    """

    def __init__(
        self,
        *,
        partitions: Partitioner | None = None,
        slices: TimeSlicePolicy | None = None,
        modes: ComputeModePolicy | None = None,
        daemons: MpsControl | None = None,
        changed: Callable[[], None] = lambda: None,
        other_daemons: Callable[[], Collection[str]] = frozenset,
        ledger: Ledger | None = None,
    ) -> None:
        self._partitions = partitions
        self._slices = slices
        self._modes = modes
        self._daemons = daemons
        self._changed = changed
        self._other_daemons = other_daemons
        self._ledger = ledger
        self._foreign: set[Key] = set()

    async def observe(self, effects: Iterable[Effect]) -> Mapping[Key, object]:
        """Return what is there now of the things that effects would change.

        :raises DriverError: it can't be told, so it could not be restored.
        """
        return {effect.key: await self._observe(effect) for effect in effects}

    async def apply(self, effect: Effect, done: Iterable[Effect], claim_uid: str) -> Effect:
        """Do an effect of a claim; return it with what was made. `done` are the claim's earlier effects.

        :raises DriverError: it failed; `undo` cleans up whatever is left of it.
        """
        match effect:
            case MigMode():
                await self._partitioner().set_mig_mode(effect.gpu, effect.enabled)
                self._changed()
            case Partition():
                return await self._make(effect, claim_uid)
            case ComputeMode():
                await self._compute_modes().set(effect.gpu, effect.mode)
            case TimeSlice():
                await self._time_slices().set(effect.gpu, effect.level)
            case MpsDaemon():
                daemon = replace(effect, uuids=_uuids(effect, done))
                await self._mps().start(daemon.id, spec_of(daemon))
                return daemon
            case _:
                assert_never(effect)
        return effect

    async def undo(self, effect: Effect) -> None:
        """Bring about what was there before. Nothing is left of what was done to a GPU that is lost.

        Its pods must end before anybody can drain the node and reset the GPU. Should it come back as it was, its MIG
        device is a stray: the ledger still knows it.

        :raises DriverError: it could not be done now; it may be called again.
        """
        try:
            await self._undo(effect)
        except GpuLostError as exc:
            log.warning("%s is not undone: the reset that the GPU needs will do that: %s", type(effect).__name__, exc)

    async def _undo(self, effect: Effect) -> None:
        match effect:
            case MigMode():
                if effect.found is not None:
                    await self._restore_mig_mode(effect)
            case Partition():
                await self._unmake(effect)
            case ComputeMode():
                if effect.found is not None:
                    await self._compute_modes().set(effect.gpu, effect.found)
            case TimeSlice():
                if effect.found is not None:
                    await self._time_slices().set(effect.gpu, effect.found)
            case MpsDaemon():
                await self._mps().stop(effect.id)
            case _:
                assert_never(effect)

    def made(self) -> tuple[Made, ...]:
        """Return the MIG devices that this driver made and did not remove, whether a record owns them or not."""
        return self._ledger.entries() if self._ledger is not None else ()

    async def remove(self, stray: Made) -> None:
        """Remove a MIG device of ours that no record owns; what is there instead of it is left.

        :raises DriverError: it could not be removed now, as processes use it, say.
        """
        effect = Partition(
            gpu=stray.gpu, device="", profile_id=stray.profile_id, placement=stray.placement, uuid=stray.uuid
        )
        there = await self._there(stray.gpu, stray.placement)
        if not stray.uuid and any(one.profile.id != stray.profile_id for one in there):
            self._foreign.add(effect.key)
        await self._unmake(effect)

    async def adopt(self, wanted: Callable[[], Awaitable[Mapping[str, MpsDaemon]]]) -> tuple[str, ...]:
        """After a start, take over the MPS daemons of prepared claims; return those that are gone.

        A daemon that is gone is not started again: its clients have lost their work, and must be told. Another instance
        of the driver may be starting and stopping daemons (rolling update); what it has recorded tells, so `wanted` is
        asked again before a daemon is called gone.
        """
        if self._daemons is None:
            return ()
        missing = [one for one in (await wanted()).values() if not await self._adopted(one)]
        still = await wanted() if missing else {}
        return tuple([one.id for one in missing if one.id in still and not await self._adopted(still[one.id])])

    async def sweep(self, records: Callable[[], Awaitable[Iterable[str]]]) -> None:
        """Stop the MPS daemons that no record wants; `records` returns the ids of those that one does."""
        if self._daemons is None:
            return

        async def keep() -> frozenset[str]:
            return frozenset({*await records(), *self._other_daemons()})

        await self._daemons.sweep(keep)

    async def _adopted(self, daemon: MpsDaemon) -> bool:
        return await self._mps().adopt(daemon.id, spec_of(daemon))

    def client_edits(self, daemon: MpsDaemon) -> ClientEdits:
        """Return what a container needs to reach a daemon.

        :raises ClaimRefusedError: MPS is switched off.
        """
        return self._mps().edits(daemon.id)

    async def _observe(self, effect: Effect) -> object:
        match effect:
            case MigMode():
                return (await self._partitioner().mig_state(effect.gpu)).enabled
            case Partition():
                await self._check_free(effect)
                return None
            case ComputeMode():
                return await self._compute_modes().get(effect.gpu)
            case TimeSlice():
                level = await self._time_slices().get(effect.gpu)
                return DEFAULT_TIME_SLICE if level is None else level
            case MpsDaemon():  # what can't be started is refused before anything is recorded
                spec_of(effect)
                self.client_edits(effect)
                return None
            case _:
                assert_never(effect)

    async def _check_free(self, effect: Partition) -> None:
        """Refuse before anything is recorded: what is at the placement now is not ours to remove."""
        state = await self._partitioner().mig_state(effect.gpu)
        for other, what in mig_rules.taken(state):
            if other.overlaps(effect.placement):
                raise PlacementTakenError(
                    f"device {effect.device} can't be made: {what}, which no prepared claim owns, is at {other} "
                    f"of GPU {effect.gpu}; remove it (nvidia-smi mig -dci, then -dgi)"
                )

    async def _make(self, effect: Partition, claim_uid: str) -> Partition:
        """Make a partition, or share one that was made: shares of one are made once."""
        self._note(effect, claim_uid)
        if effect.uuid:
            return effect
        try:
            made = await self._partitioner().create_mig(effect.gpu, effect.profile_id, effect.placement)
        except MigError:
            with suppress(DriverError):
                if await self._there(effect.gpu, effect.placement):
                    self._foreign.add(effect.key)  # made by somebody else since we looked: ours fails as a whole
            raise
        self._changed()
        self._foreign.discard(effect.key)
        ours = replace(
            effect,
            uuid=made.uuid,
            gpu_instance_id=made.gpu_instance_id,
            compute_instance_id=made.compute_instance_id,
        )
        self._note(ours, claim_uid)
        return ours

    async def _unmake(self, effect: Partition) -> None:
        """Remove what was made, and leave what is somebody else's: what took its place since, or came before us."""
        foreign = effect.key in self._foreign and not effect.uuid
        if not foreign and effect.uuid:
            there = await self._there(effect.gpu, effect.placement)
            foreign = bool(there) and all(one.uuid != effect.uuid for one in there)
        if foreign:
            log.warning("%s: what is at %s of %s now is not ours: it is left", *_names(effect))
        else:
            await self._partitioner().destroy_mig(effect.gpu, effect.placement)
            self._changed()
        self._foreign.discard(effect.key)
        if self._ledger is not None:
            self._ledger.forget(effect.gpu, effect.placement)

    async def _there(self, gpu: str, placement: Placement) -> list[MigInstance]:
        """Return the MIG devices at exactly this placement now; not a GPU instance without a compute instance."""
        state = await self._partitioner().mig_state(gpu)
        return [one for one in state.instances if one.placement == placement]

    def _note(self, effect: Partition, claim_uid: str) -> None:
        if self._ledger is not None:
            self._ledger.note(effect, claim_uid)

    async def _restore_mig_mode(self, effect: MigMode) -> None:
        """Restore MIG mode; instances that somebody else made meanwhile are a reason to leave it on."""
        partitioner = self._partitioner()
        state = await partitioner.mig_state(effect.gpu)
        if state.enabled and not effect.found and any(mig_rules.taken(state)):
            return
        await partitioner.set_mig_mode(effect.gpu, bool(effect.found))

    # --- parts that may be missing -----------------------------------------------------------------------------------

    def _partitioner(self) -> Partitioner:
        if self._partitions is None:
            raise MigError("this driver was started without dynamic MIG")
        return self._partitions

    def _compute_modes(self) -> ComputeModePolicy:
        if self._modes is None:
            raise ClaimRefusedError(_NO_SHARING)
        return self._modes

    def _time_slices(self) -> TimeSlicePolicy:
        if self._slices is None:
            raise ClaimRefusedError(_NO_SHARING)
        return self._slices

    def _mps(self) -> MpsControl:
        if self._daemons is None:
            raise ClaimRefusedError("MPS is switched off in this driver's settings; remove it from the parameters")
        return self._daemons


_NO_SHARING = "sharing settings are switched off in this driver's settings; remove `sharing` from the parameters"


def spec_of(daemon: MpsDaemon) -> MpsSpec:
    """Return what the daemon is started with."""
    return mps_spec(daemon.settings, daemon.uuids)


def _names(effect: Partition) -> tuple[str, str, str]:
    return effect.device or "a device whose record is lost", str(effect.placement), effect.gpu


def _uuids(daemon: MpsDaemon, done: Iterable[Effect]) -> tuple[str, ...]:
    """Return what CUDA knows the daemon's devices by; made partitions have a new UUID each time."""
    made = {one.device: one.uuid for one in done if isinstance(one, Partition)}
    return tuple(uuid or made.get(name, "") for name, uuid in zip(daemon.devices, daemon.uuids, strict=True))
