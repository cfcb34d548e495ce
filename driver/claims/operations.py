"""What can be asked of the critical section (`claims.state`), and what it answers."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from driver.claims.effect import gpus_of
from driver.claims.record import PreparedDevice
from driver.errors import DriverError, TemporaryError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Iterable, Mapping, Sequence

    from driver.claims.allocation import Allocation, ClaimRef
    from driver.claims.effect import Effect, Key
    from driver.claims.record import Record

log = logging.getLogger(__name__)

T = TypeVar("T")

Answer = tuple[PreparedDevice, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepare:
    """Prepare an allocation for a call that began at `since` (CLOCK_MONOTONIC, ns).

    `found` is what was observed of the things that its effects will change; without it nothing that has effects is
    recorded, and the answer is `Observe`.
    """

    allocation: Allocation
    since: int
    found: Mapping[Key, object] | None = None

    @property
    def uid(self) -> str:
        """The claim's UID."""
        return self.allocation.claim.uid


@dataclass(frozen=True, slots=True, kw_only=True)
class Complete:
    """The effects of a record are done: write the CDI file, then the record as ready."""

    record: Record
    since: int

    @property
    def uid(self) -> str:
        """The claim's UID."""
        return self.record.claim.uid


@dataclass(frozen=True, slots=True, kw_only=True)
class Unprepare:
    """Release a claim. With `only_if`, only while its record is still that one (reconciliation)."""

    claim: ClaimRef
    only_if: Record | None = None

    @property
    def uid(self) -> str:
        """The claim's UID."""
        return self.claim.uid


@dataclass(frozen=True, slots=True, kw_only=True)
class Drop:
    """`undone` is undone: remove the record, if it is still that one and nothing else is left to undo.

    Meanwhile another claim may have given up what it had in common with this one; then the answer is `Undo`.
    """

    record: Record
    undone: tuple[Effect, ...]

    @property
    def uid(self) -> str:
        """The claim's UID."""
        return self.record.claim.uid


@dataclass(frozen=True, slots=True, kw_only=True)
class Abandon:
    """Give up an intent whose effects failed."""

    record: Record

    @property
    def uid(self) -> str:
        """The claim's UID."""
        return self.record.claim.uid


Operation = Prepare | Complete | Abandon | Unprepare | Drop


@dataclass(frozen=True, slots=True, kw_only=True)
class Observe:
    """Preparing has these effects: lock their GPUs, observe what is `unknown`, ask again with all that was found."""

    effects: tuple[Effect, ...]
    unknown: tuple[Effect, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pending:
    """The intent is recorded: do the record's effects, then `Complete`."""

    record: Record


@dataclass(frozen=True, slots=True, kw_only=True)
class Undo:
    """Undo these effects of a record, in this order, then `Drop` it."""

    record: Record
    effects: tuple[Effect, ...]


Outcome = Answer | Observe | Pending | Undo | DriverError | None


def as_outcome(error: Exception) -> DriverError:
    """Return an error as what a claim is told; a bug goes to the log with all that is known of it."""
    if isinstance(error, DriverError):
        return error
    log.error("Internal error while changing claims", exc_info=error)
    return DriverError(f"internal error: {error!r}; see the driver's log")


async def do_all(works: Iterable[Awaitable[T]]) -> list[T]:
    """Do all of them side by side; one that fails costs no other.

    :raises DriverError: what failed, when all have ended.
    """
    outcomes = await asyncio.gather(*works, return_exceptions=True)
    errors = [as_outcome(one) for one in outcomes if isinstance(one, Exception)]
    if errors:
        raise DriverError("; ".join(map(str, errors)))
    return [one for one in outcomes if not isinstance(one, BaseException)]


def within(gpus: tuple[str, ...], outcome: Outcome) -> Outcome:
    """Refuse what concerns more GPUs than those that are locked: another instance was here before the lock was had.

    :raises TemporaryError: it does; the next try locks them.
    """
    if isinstance(outcome, Observe | Undo) and not set(gpus_of(outcome.effects)) <= set(gpus):
        raise TemporaryError("the claim now concerns other GPUs than those that were locked")
    return outcome


def runs_of(operations: Sequence[Operation]) -> list[list[Operation]]:
    """Split operations into runs of one kind without a repeated claim: within a run the order does not matter."""
    groups: list[list[Operation]] = []
    seen: set[str] = set()
    for operation in operations:
        if not groups or type(groups[-1][0]) is not type(operation) or operation.uid in seen:
            groups.append([])
            seen = set()
        groups[-1].append(operation)
        seen.add(operation.uid)
    return groups
