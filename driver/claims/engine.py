"""The one place that changes claims: what the kubelet's calls become.

Called concurrently by `kubelet.dra`. For each claim: GET it (all claims side by side, no lock), then one turn in the
critical section (`claims.state`), where everything that is ready goes in one batch. What may pass (API server away,
device nodes not there yet) is tried again within the call, until shortly before its deadline: the kubelet itself comes
back only after 70 s or more. A call whose client has gone does nothing.

Where a claim changes the node (MIG, sharing), the GPUs concerned are locked, and there are two turns: one records the
intent and what was found, then the effects are done, and the second records completion. Once the GPUs are locked, such
work is finished or undone even if its caller goes away in the middle.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from driver.claims import allocation
from driver.claims.effect import gpus_of
from driver.claims.operations import (
    Abandon,
    Answer,
    Complete,
    Drop,
    Observe,
    Outcome,
    Pending,
    Prepare,
    Undo,
    Unprepare,
    as_outcome,
    do_all,
    within,
)
from driver.claims.recording import daemons
from driver.claims.retry import Retry
from driver.claims.strays import remove_strays
from driver.claims.turns import Turns
from driver.errors import (
    ApiNotFoundError,
    ApiUnavailableError,
    ClaimRefusedError,
    DeviceHeldError,
    DeviceNotReadyError,
    DriverError,
    PlacementTakenError,
)
from driver.model import names

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence

    from driver.claims.allocation import Allocation, ClaimRef
    from driver.claims.effect import Effect, Key, MpsDaemon
    from driver.claims.effect_runner import EffectRunner
    from driver.claims.gpu_locks import GpuLocks
    from driver.claims.record import Record
    from driver.claims.state import ClaimState

log = logging.getLogger(__name__)

T = TypeVar("T")


class ClaimSource(Protocol):
    """Where claims are read from (`driver.kube.resources.ResourceApi`)."""

    async def claim(self, namespace: str, name: str) -> Mapping[str, Any]:
        """GET a claim.

        :raises ApiError: it could not be had.
        """
        ...


class ClaimEngine:
    """Prepares and unprepares claims. `used_claims` tells (namespace, name) of the claims that pods on this node use.

    `used_claims` returns None where that can't be told (the kubelet is away); then no record is given up.
    """

    def __init__(
        self,
        *,
        state: ClaimState,
        claims: ClaimSource,
        used_claims: Callable[[], Awaitable[frozenset[tuple[str, str]] | None]],
        runner: EffectRunner,
        locks: GpuLocks,
    ) -> None:
        self._state = state
        self._claims = claims
        self._used_claims = used_claims
        self._runner = runner
        self._locks = locks
        self._changing: set[asyncio.Task[Any]] = set()
        self._turns = Turns(state)
        self._retry = Retry(state.waits_for)

    async def prepare(
        self, refs: Sequence[ClaimRef], *, deadline: float, since: int | None = None
    ) -> dict[str, Answer | DriverError]:
        """Prepare claims; each UID has its answer or its error. `deadline` is in the event loop's time.

        `since` is when the call came (CLOCK_MONOTONIC, ns), if that was not now: what was unprepared later stays so.
        """
        began = time.monotonic_ns() if since is None else since

        async def one(ref: ClaimRef) -> Answer | DriverError:
            try:
                allocation.check_ref(ref)
                return await self._retry.until(deadline, lambda: self._prepare_once(ref, began))
            except Exception as exc:  # even a bug costs the other claims of the call nothing
                return as_outcome(exc)

        return await _each(refs, one)

    async def unprepare(self, refs: Sequence[ClaimRef], *, deadline: float) -> dict[str, DriverError | None]:
        """Release claims, by their UIDs alone; an unknown claim is success. Needs no API server."""

        async def one(ref: ClaimRef) -> DriverError | None:
            try:
                names.check_uid(ref.uid)
                return await self._retry.until(deadline, lambda: self._unprepare_once(Unprepare(claim=ref)))
            except Exception as exc:  # even a bug costs the other claims of the call nothing
                return as_outcome(exc)

        return await _each(refs, one)

    async def records(self) -> tuple[Record, ...]:
        """Return the claims that are prepared, or being prepared, in this boot.

        :raises StorageError: the state can't be read.
        """
        return tuple(record for record in await self._turns.run(self._state.records) if self._state.current(record))

    async def recover(self) -> None:
        """Clean up what a crash left. Call once, before serving.

        :raises StorageError: the state can't be used.
        """
        await self._turns.run(self._state.recover)

    async def refresh_cdi(self) -> None:
        """Rebuild CDI files that vanished or that another driver version changes. Call for each new snapshot.

        :raises StorageError: the state can't be read, or a file not be written; call again.
        """
        await self._turns.run(self._state.refresh_cdi)

    def cdi_is_missing(self) -> bool:
        """Say whether a prepared claim lacks its CDI file, as far as is known without a look at the disk's records."""
        return self._state.cdi_is_missing()

    async def reconcile(self) -> int:
        """Give up the records of claims that are gone and that no pod uses (S7), and strays; return how many records.

        Those that can't be read are among them, as far as their bytes still say whose they are.

        :raises DriverError: the state can't be read, or something could not be given up; all else is.
        """
        records = (*await self._turns.run(self._state.records), *await self._turns.run(self._state.doubtful))
        await self._remove_strays()
        return sum(await do_all(self._release_if_gone(record) for record in records))

    async def settle(self) -> int:
        """Undo what a crash left half done; return how many claims. Call when the devices answer.

        One that another instance is working on is waited for, and then found to be settled.

        :raises DriverError: something could not be undone now, all else is; call again.
        """
        half_done = [record for record in await self.records() if not record.ready]
        for record in half_done:
            log.warning("Undoing the preparation of claim %s, which a crash interrupted", record.claim)
        await self._remove_strays()
        await do_all(self._release(Unprepare(claim=record.claim, only_if=record)) for record in half_done)
        return len(half_done)

    async def resume(self) -> tuple[str, ...]:
        """Take over the MPS daemons that prepared claims have; return the ids of those that died meanwhile.

        :raises DriverError: it can't be told now; call again.
        """

        async def wanted(*, ready: bool) -> Mapping[str, MpsDaemon]:
            return daemons(one for one in await self.records() if one.ready or not ready)

        async def kept() -> Iterable[str]:
            return {*await wanted(ready=False), *await self._turns.run(self._state.suspected_daemons)}

        gone = await self._runner.adopt(lambda: wanted(ready=True))
        await self._runner.sweep(kept)
        return gone

    async def aclose(self) -> None:
        """Finish what is under way and stop the thread."""
        if self._changing:
            await asyncio.wait(self._changing)
        await self._turns.aclose()

    # --- one claim ---------------------------------------------------------------------------------------------------

    async def _prepare_once(self, ref: ClaimRef, since: int) -> Answer:
        try:
            with self._turns.reading():
                claim = await self._claims.claim(ref.namespace, ref.name)
        except ApiNotFoundError as exc:
            if not exc.reason:  # the API is away, not the claim
                raise ApiUnavailableError(f"claim {ref} can't be read: {exc}", status=exc.status) from exc
            raise ClaimRefusedError(f"claim {ref} does not exist any more: delete the pod that names it") from exc
        allocated = allocation.decode(claim, ref)
        known = self._state.recall(allocated)
        if known is not None:
            return known
        try:
            return await self._admit(allocated, since)
        except DeviceHeldError as exc:
            await self._contest(exc)
        except PlacementTakenError:  # perhaps by one of ours whose record is lost
            await self._remove_strays()
        return await self._admit(allocated, since)

    async def _admit(self, allocated: Allocation, since: int) -> Answer:
        outcome = await self._turns.do(Prepare(allocation=allocated, since=since))
        match outcome:
            case Observe():
                gpus = gpus_of(outcome.effects)
            case Undo():  # of a former allocation, or of a try that a crash interrupted
                gpus = gpus_of(outcome.record.effects)
            case _:
                return _answer(outcome)
        return await self._locked(gpus, lambda: self._change(allocated, since, gpus))

    async def _unprepare_once(self, operation: Unprepare) -> None:
        await self._release(operation)
        self._retry.wake()

    async def _contest(self, held: DeviceHeldError) -> None:
        """Return if the holder could be given up: it is gone, and no pod uses it.

        :raises DeviceNotReadyError: the holder is on its way out, so waiting helps.
        :raises DeviceHeldError: the holder has a right to the device.
        """
        records = (*await self.records(), *await self._turns.run(self._state.doubtful))
        holder = next((record for record in records if record.claim.uid == held.holder), None)
        if holder is None or await self._release_if_gone(holder):
            return
        if await self._is_gone(holder):
            raise DeviceNotReadyError(f"{held}; that claim is gone, but a pod still uses it") from held
        raise DeviceHeldError(held.device, held.held, held.holder, str(holder.claim)) from held

    async def _remove_strays(self) -> None:
        await remove_strays(
            self._runner,
            self._locked,
            is_owned=lambda made: self._turns.run(lambda: self._state.owns(made)),
            may_be_used=self._uses_unrecorded,
        )

    async def _uses_unrecorded(self) -> bool:
        """Say whether a pod may use a claim whose record is lost."""
        used = await self._used_claims()
        return used is None or not used <= {record.claim.key for record in await self.records()}

    async def _release_if_gone(self, record: Record) -> bool:
        if not await self._is_gone(record):
            return False
        used = await self._used_claims()
        if used is None or record.claim.key in used:
            return False
        log.warning("Claim %s is gone and no pod uses it: giving up its record", record.claim)
        await self._unprepare_once(Unprepare(claim=record.claim, only_if=record))
        return True

    async def _is_gone(self, record: Record) -> bool:
        """Say whether the API server is sure that the claim no longer has these devices."""
        ref = record.claim
        try:
            claim = await self._claims.claim(ref.namespace, ref.name)
            current = allocation.decode(claim, ref)
        except ApiNotFoundError as exc:
            return bool(exc.reason)  # without one the API is away, not the claim
        except ClaimRefusedError:
            return True  # replaced by another of the same name, or deallocated
        except DriverError:
            return False  # not known: keep it
        return {result.device for result in current.results}.isdisjoint(one.device for one in record.holdings)

    # --- effects -----------------------------------------------------------------------------------------------------

    async def _change(self, allocated: Allocation, since: int, gpus: tuple[str, ...]) -> Answer:
        """Prepare a claim that changes GPUs, or whose record did. To be called with their locks held."""
        outcome = within(gpus, await self._turns.do(Prepare(allocation=allocated, since=since)))
        if isinstance(outcome, Undo):
            await self._undo(outcome)
            outcome = within(gpus, await self._turns.do(Prepare(allocation=allocated, since=since)))
        found: Mapping[Key, object] = {}
        while isinstance(outcome, Observe):  # again, if meanwhile another claim gave up what was known of it
            found = {**found, **await self._runner.observe(outcome.unknown)}
            outcome = within(gpus, await self._turns.do(Prepare(allocation=allocated, since=since, found=found)))
        if isinstance(outcome, Pending):
            return await self._carry_out(outcome.record, since)
        return _answer(outcome)

    async def _carry_out(self, record: Record, since: int) -> Answer:
        """Do the effects of an intent and complete it; undo all of them if one fails."""
        done: list[Effect] = []
        try:
            for effect in record.effects:
                done.append(await self._runner.apply(effect, done, record.claim.uid))
            ready = replace(record, effects=tuple(done), ready=True)
            return _answer(await self._turns.do(Complete(record=ready, since=since)))
        except DriverError as exc:
            await self._roll_back(record, exc)
            raise

    async def _roll_back(self, record: Record, cause: DriverError) -> None:
        """Undo an intent. If that fails, too, the record stays, and the next try begins with it."""
        log.warning("Preparing claim %s failed: %s. Undoing it", record.claim, cause)
        try:
            outcome = await self._turns.do(Abandon(record=record))
            if isinstance(outcome, Undo):
                await self._undo(outcome)
        except DriverError as exc:
            log.warning("The preparation of claim %s can't be undone now, that is tried again: %s", record.claim, exc)

    async def _release(self, operation: Unprepare) -> None:
        outcome = await self._turns.do(operation)
        if isinstance(outcome, Undo):
            if operation.only_if is not None:
                operation = replace(operation, only_if=outcome.record)  # which now says that it is half undone
            gpus = gpus_of(outcome.record.effects)
            await self._locked(gpus, lambda: self._finish_release(operation, gpus))
        elif isinstance(outcome, DriverError):
            raise outcome

    async def _finish_release(self, operation: Unprepare, gpus: tuple[str, ...]) -> None:
        outcome = within(gpus, await self._turns.do(operation))
        if isinstance(outcome, Undo):
            await self._undo(outcome)
        elif isinstance(outcome, DriverError):
            raise outcome

    async def _undo(self, undo: Undo) -> None:
        outcome: Outcome = undo
        undone: tuple[Effect, ...] = ()
        while isinstance(outcome, Undo):  # again, if meanwhile another claim gave up what both had
            for effect in outcome.effects:
                await self._runner.undo(effect)
            undone += outcome.effects
            outcome = await self._turns.do(Drop(record=undo.record, undone=undone))
        if isinstance(outcome, DriverError):
            raise outcome

    async def _locked(self, gpus: tuple[str, ...], work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Do work with GPUs locked. They are waited for as long as the caller is there: nothing is under way yet.

        From then on the work is finished whatever becomes of the caller: half of it done would be nobody's.
        """
        async with contextlib.AsyncExitStack() as stack:
            await stack.enter_async_context(self._locks.hold(gpus))
            task = asyncio.create_task(_holding(stack.pop_all(), work))
        self._changing.add(task)
        task.add_done_callback(self._ended)
        return await asyncio.shield(task)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._changing.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.debug("a change of GPUs failed: %s", error)


async def _holding(locks: contextlib.AsyncExitStack, work: Callable[[], Awaitable[T]]) -> T:
    async with locks:
        return await work()


def _answer(outcome: Outcome) -> Answer:
    if isinstance(outcome, tuple):
        return outcome
    raise outcome if isinstance(outcome, DriverError) else DriverError("internal error: a prepare without an answer")


async def _each(refs: Sequence[ClaimRef], one: Callable[[ClaimRef], Awaitable[T]]) -> dict[str, T]:
    """Do all claims side by side; a single one without the cost of a task."""
    by_uid = {ref.uid: ref for ref in refs}
    if len(by_uid) == 1:
        return {uid: await one(ref) for uid, ref in by_uid.items()}
    results = await asyncio.gather(*(one(ref) for ref in by_uid.values()))
    return dict(zip(by_uid, results, strict=True))
