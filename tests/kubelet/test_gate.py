from __future__ import annotations

import asyncio
import time

from driver.claims.allocation import ClaimRef
from driver.errors import DeviceNotReadyError
from driver.kubelet.gate import GatedClaims
from tests.waiting import until

from .conftest import ScriptedClaims, prepared

REFS = (ClaimRef(namespace="ns", name="a", uid="u1"), ClaimRef(namespace="ns", name="b", uid="u2"))


def soon(seconds: float) -> float:
    return asyncio.get_running_loop().time() + seconds


async def test_prepare_waits_for_the_first_reading(claims: ScriptedClaims) -> None:
    ready = asyncio.Event()
    gated = GatedClaims(claims, ready)
    call = asyncio.create_task(gated.prepare(REFS, deadline=soon(30)))
    done, _ = await asyncio.wait([call], timeout=0.05)
    assert not done
    assert claims.calls == []
    ready.set()
    assert (await call)["u1"] == (prepared("u1"),)


async def test_prepare_gives_up_at_the_deadline(claims: ScriptedClaims) -> None:
    answers = await GatedClaims(claims, asyncio.Event()).prepare(REFS, deadline=soon(0.01))
    assert {uid: type(answer) for uid, answer in answers.items()} == dict.fromkeys(("u1", "u2"), DeviceNotReadyError)
    assert claims.calls == []


async def test_K2_unprepare_never_waits(claims: ScriptedClaims) -> None:
    assert await GatedClaims(claims, asyncio.Event()).unprepare(REFS, deadline=soon(30)) == {"u1": None, "u2": None}


async def test_S10_what_is_unprepared_while_a_prepare_waits_is_later_than_it(claims: ScriptedClaims) -> None:
    ready = asyncio.Event()
    gated = GatedClaims(claims, ready)
    call = asyncio.create_task(gated.prepare(REFS, deadline=soon(30)))
    await asyncio.sleep(0)
    unprepared = time.monotonic_ns()
    await gated.unprepare(REFS, deadline=soon(30))
    ready.set()
    await call
    assert claims.since is not None
    assert claims.since < unprepared


async def test_a_cancelled_prepare_stops_waiting(claims: ScriptedClaims) -> None:
    ready = asyncio.Event()
    call = asyncio.create_task(GatedClaims(claims, ready).prepare(REFS, deadline=soon(30)))
    await asyncio.sleep(0)
    call.cancel()
    await asyncio.wait([call])
    assert call.cancelled()
    ready.set()
    await until(call.done)
    assert claims.calls == []
