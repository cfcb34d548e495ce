"""Calls for one claim that come between each other: no ghost is left, and the last word counts."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import pytest

from driver.claims.allocation import decode
from driver.claims.effect import TimeSlice
from driver.claims.holding import Holding
from driver.claims.operations import Drop, Prepare, Undo, Unprepare
from driver.claims.record import Record, RecordedDevice
from driver.claims.store import RecordStore
from driver.errors import ApiUnavailableError, SupersededError
from tests.unit.claims.harness import SHARE, Harness, deadline, devices, instance
from tests.unit.claims.helpers import NODE, Claims, Node, claim, ref, result, uid

if TYPE_CHECKING:
    from driver.claims.effect import Effect


async def test_S10_an_unprepare_during_a_retrying_prepare_leaves_no_ghost(harness: Harness) -> None:
    harness.claims.add(claim(1, result("gpu-0")))
    harness.claims.errors = [ApiUnavailableError("connection refused")]
    late = asyncio.create_task(harness.prepare(1, within=30))
    while not harness.claims.gets:
        await asyncio.sleep(0)
    assert await harness.unprepare(1) is None
    assert isinstance(await late, SupersededError)
    assert harness.node.leftovers() == []


async def test_S10_a_prepare_that_came_before_the_unprepare_but_began_after_it_leaves_no_ghost(
    harness: Harness,
) -> None:
    harness.claims.add(claim(1, result("gpu-0")))
    came = time.monotonic_ns()
    await harness.unprepare(1)
    answers = await harness.engine.prepare([ref(1)], deadline=deadline(5), since=came)
    assert isinstance(answers[uid(1)], SupersededError)
    assert harness.node.leftovers() == []
    assert devices(await harness.prepare(1)) == ["gpu-0"]


async def test_S10_holds_across_instances_too(node: Node, claims: Claims) -> None:
    claims.add(claim(1, result("gpu-0")))
    claims.errors = [ApiUnavailableError("connection refused")]
    async with instance(node, claims) as old, instance(node, claims) as new:
        late = asyncio.create_task(old.prepare(1, within=30))
        while not claims.gets:
            await asyncio.sleep(0)
        await new.unprepare(1)
        assert isinstance(await late, SupersededError)
    assert node.leftovers() == []


async def test_a_prepare_after_an_unprepare_of_the_same_claim_is_served(harness: Harness) -> None:
    harness.claims.add(claim(1, result("gpu-0")))
    await harness.prepare(1)
    await harness.unprepare(1)
    assert devices(await harness.prepare(1)) == ["gpu-0"]


async def test_S10_a_cancelled_call_does_nothing(harness: Harness) -> None:
    harness.claims.add(claim(1, result("gpu-0")))
    blocked = asyncio.Event()

    async def never(namespace: str, name: str) -> dict[str, Any]:
        blocked.set()
        await asyncio.Event().wait()
        raise AssertionError

    harness.claims.claim = never  # type: ignore[method-assign]
    call = asyncio.create_task(harness.prepare(1, within=30))
    await blocked.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert harness.node.leftovers() == []


async def test_a_claim_allocated_anew_replaces_what_was_prepared(harness: Harness) -> None:
    harness.claims.add(claim(1, result("gpu-0")))
    await harness.prepare(1)
    harness.claims.add(claim(1, result("gpu-3")))
    assert devices(await harness.prepare(1)) == ["gpu-3"]
    assert harness.node.cdi.devices(uid(1)) == ("gpu-3",)
    harness.claims.add(claim(2, result("gpu-0")))
    assert devices(await harness.prepare(2)) == ["gpu-0"]


async def test_of_two_claims_that_leave_a_common_effect_in_one_turn_the_second_undoes_it(node: Node) -> None:
    """Both are allocated anew: each alone would think that the other still wants it."""
    state = node.state()
    state.recover()
    slice_ = TimeSlice(gpu="GPU-0", level=3, found=0)
    for number, share in ((1, SHARE), (2, SHARE[:-1] + "d")):
        RecordStore(node.claims_dir).put([_prepared(node, number, ("gpu-0", "GPU-0"), share=share, effects=(slice_,))])
    moved = [decode(claim(number, result(f"gpu-{number}")), ref(number)) for number in (1, 2)]
    outcomes = state.run([Prepare(allocation=one, since=time.monotonic_ns()) for one in moved])
    assert isinstance(outcomes[0], tuple)
    assert isinstance(outcomes[1], Undo)
    assert outcomes[1].effects == (slice_,)


async def test_what_another_claim_gives_up_while_a_claim_is_undone_is_undone_before_its_record_goes(
    node: Node,
) -> None:
    """The other one leaves what both have to this one's record, which has decided already what it undoes."""
    state = node.state()
    state.recover()
    own, common = (TimeSlice(gpu=gpu, level=3, found=0) for gpu in ("GPU-1", "GPU-0"))
    first = _prepared(node, 1, ("gpu-1", "GPU-1"), effects=(own, common))
    second = _prepared(node, 2, ("gpu-0", "GPU-0"), effects=(common,))
    RecordStore(node.claims_dir).put([first, second])
    (begun,) = state.run([Unprepare(claim=ref(1))])
    assert isinstance(begun, Undo)
    assert begun.effects == (own,)
    assert state.run([Unprepare(claim=ref(2))]) == [None]
    (more,) = state.run([Drop(record=begun.record, undone=begun.effects)])
    assert isinstance(more, Undo)
    assert more.effects == (common,)
    assert state.run([Drop(record=begun.record, undone=(own, common))]) == [None]
    assert state.records() == ()


def _prepared(
    node: Node, number: int, device: tuple[str, str], *, share: str | None = None, effects: tuple[Effect, ...]
) -> Record:
    """Return the record of a claim that is prepared; `device` is a name and its GPU's UUID."""
    holding = Holding(device=device[0], gpu_uuid=device[1], share_id=share)
    recorded = RecordedDevice(request="gpus", pool=NODE, holding=holding, kind="gpu")
    return Record(claim=ref(number), boot_id=node.boot_id, devices=(recorded,), effects=effects)
