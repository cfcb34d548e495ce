"""Turns, with a state that notes what it is asked and can be held up."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

import pytest

from driver.claims.operations import Unprepare
from driver.claims.turns import Turns
from driver.errors import DriverError, StorageError
from tests.unit.claims.helpers import ref, uid

if TYPE_CHECKING:
    from collections.abc import Sequence

    from driver.claims.operations import Operation, Outcome


class NotingState:
    """Stands where `ClaimState` is: answers None to all. The first turn waits for `gate`."""

    def __init__(self) -> None:
        self.turns: list[list[str]] = []
        self.gate = threading.Event()
        self.gate.set()
        self.error: Exception | None = None

    def run(self, operations: Sequence[Operation]) -> list[Outcome]:
        self.turns.append([operation.uid for operation in operations])
        assert self.gate.wait(10)
        if self.error is not None:
            raise self.error
        return [None] * len(operations)


@pytest.fixture
def state() -> NotingState:
    return NotingState()


@pytest.fixture
async def turns(state: NotingState):
    one = Turns(state)  # type: ignore[arg-type]
    yield one
    state.gate.set()
    await one.aclose()


def operation(number: int) -> Unprepare:
    return Unprepare(claim=ref(number))


async def start(turns: Turns, *numbers: int) -> list[asyncio.Task[Outcome]]:
    tasks = [asyncio.create_task(turns.do(operation(number))) for number in numbers]
    await asyncio.sleep(0)  # lets each hand its operation over
    return tasks


async def test_a_lone_operation_begins_at_once(turns: Turns, state: NotingState) -> None:
    assert await turns.do(operation(1)) is None
    assert state.turns == [[uid(1)]]


async def test_what_comes_during_a_turn_makes_up_the_next(turns: Turns, state: NotingState) -> None:
    state.gate.clear()
    tasks = await start(turns, 1, 2, 3, 4)
    state.gate.set()
    await asyncio.gather(*tasks)
    assert state.turns == [[uid(1)], [uid(2), uid(3), uid(4)]]


async def test_claims_that_are_being_read_together_share_a_turn(turns: Turns, state: NotingState) -> None:
    reads = [asyncio.Event() for _ in range(4)]

    async def one(number: int) -> None:
        with turns.reading():
            await reads[number].wait()
        await turns.do(operation(number))

    tasks = [asyncio.create_task(one(number)) for number in range(4)]
    await asyncio.sleep(0)
    for read in reads:
        read.set()
    await asyncio.gather(*tasks)
    assert state.turns == [[uid(0), uid(1), uid(2), uid(3)]]


async def test_a_claim_that_is_read_for_ever_holds_up_no_other(turns: Turns, state: NotingState) -> None:
    with turns.reading():
        await turns.do(operation(1))
    assert state.turns == [[uid(1)]]


async def test_an_operation_that_nobody_waits_for_any_more_is_not_done(turns: Turns, state: NotingState) -> None:
    state.gate.clear()
    tasks = await start(turns, 1, 2, 3)
    tasks[1].cancel()
    await asyncio.sleep(0)
    state.gate.set()
    await asyncio.gather(tasks[0], tasks[2])
    assert state.turns == [[uid(1)], [uid(3)]]


async def test_operations_that_were_given_up_do_not_pile_up_before_a_turn_that_never_comes(
    turns: Turns, state: NotingState
) -> None:
    state.gate.clear()
    tasks = await start(turns, *range(100))
    for task in tasks[1:]:
        task.cancel()
    await asyncio.gather(*tasks[1:], return_exceptions=True)
    assert not turns._queue
    state.gate.set()
    assert await tasks[0] is None


@pytest.mark.parametrize(
    ("error", "told"),
    [(StorageError("disk full"), "disk full"), (ValueError("a bug"), r"internal error: ValueError\('a bug'\)")],
)
async def test_a_turn_that_fails_is_an_error_to_each_of_its_operations(
    turns: Turns, state: NotingState, error: Exception, told: str
) -> None:
    state.error = error
    outcomes = await asyncio.gather(*await start(turns, 1, 2))
    for outcome in outcomes:
        assert isinstance(outcome, DriverError)
        with pytest.raises(DriverError, match=told):
            raise outcome
    state.error = None
    assert await turns.do(operation(3)) is None


async def test_closing_waits_for_what_is_under_way(state: NotingState) -> None:
    turns = Turns(state)  # type: ignore[arg-type]
    state.gate.clear()
    tasks = await start(turns, 1, 2)
    closing = asyncio.create_task(turns.aclose())
    await asyncio.sleep(0)
    assert not closing.done()
    state.gate.set()
    await closing
    assert state.turns == [[uid(1)], [uid(2)]]
    await asyncio.gather(*tasks)
