"""Two claims for one GPU: who has it, who is refused, and when a holder gives way."""

from __future__ import annotations

import asyncio

from driver.errors import ApiUnavailableError, DeviceHeldError
from tests.unit.claims.harness import SHARE, Harness, devices, instance
from tests.unit.claims.helpers import Claims, Node, claim, ref, result, uid


async def test_S11_a_second_claim_on_a_gpu_is_refused_and_the_holder_named(harness: Harness) -> None:
    harness.claims.add(claim(1, result("gpu-0")))
    harness.claims.add(claim(2, result("gpu-0")))
    await harness.prepare(1)
    refused = await harness.prepare(2, within=30)
    assert isinstance(refused, DeviceHeldError)
    assert f"gpu-0 can't be prepared: it is held by the prepared claim default/claim-1 (uid {uid(1)})" in str(refused)
    assert "gpu-dra status" in str(refused)
    assert harness.node.leftovers() == [f"{uid(1)}.json", uid(1)]


async def test_S11_admin_access_and_distinct_shares_are_exempt(harness: Harness) -> None:
    harness.claims.add(claim(1, result("gpu-0", shareID=f"{SHARE}1")))
    harness.claims.add(claim(2, result("gpu-0", shareID=f"{SHARE}2")))
    harness.claims.add(claim(3, result("gpu-0", adminAccess=True)))
    harness.claims.add(claim(4, result("gpu-0")))
    first, second, admin, exclusive = await harness.prepare(1, 2, 3, 4)
    assert (first[0].share_id, second[0].share_id) == (f"{SHARE}1", f"{SHARE}2")
    assert devices(admin) == ["gpu-0"]
    assert isinstance(exclusive, DeviceHeldError)


async def test_two_shares_of_one_gpu_in_one_claim_have_two_cdi_devices(harness: Harness) -> None:
    harness.claims.add(claim(1, result("gpu-0", shareID=f"{SHARE}1"), result("gpu-0", shareID=f"{SHARE}2")))
    answer = await harness.prepare(1)
    assert len({one.cdi_ids for one in answer}) == 2
    assert len(harness.node.cdi.devices(uid(1))) == 2


async def test_of_claims_that_race_for_one_gpu_exactly_one_wins(node: Node, claims: Claims) -> None:
    for number in range(1, 9):
        claims.add(claim(number, result("gpu-0")))
    async with instance(node, claims) as one, instance(node, claims) as other:
        instances = [one, other] * 4
        answers = await asyncio.gather(*(which.prepare(n) for n, which in enumerate(instances, 1)))
    assert sum(isinstance(answer, tuple) for answer in answers) == 1
    assert sum(isinstance(answer, DeviceHeldError) for answer in answers) == 7


async def test_two_instances_share_state_as_in_a_rolling_update(node: Node, claims: Claims) -> None:
    claims.add(claim(1, result("gpu-0")))
    async with instance(node, claims) as old, instance(node, claims) as new:
        assert await old.prepare(1) == await new.prepare(1)
        assert await new.unprepare(1) is None
        assert await old.unprepare(1) is None
        assert node.leftovers() == []
        assert devices(await old.prepare(1)) == ["gpu-0"]


async def test_S7_the_record_of_a_deleted_claim_gives_way(harness: Harness) -> None:
    harness.claims.add(claim(1, result("gpu-0")))
    await harness.prepare(1)
    del harness.claims.objects["claim-1"]
    harness.claims.add(claim(2, result("gpu-0")))
    assert devices(await harness.prepare(2)) == ["gpu-0"]
    assert harness.node.leftovers() == [f"{uid(2)}.json", uid(2)]


async def test_S7_reconcile_drops_what_is_gone_and_keeps_what_is_used_or_unknown(harness: Harness) -> None:
    for number in range(1, 5):
        harness.claims.add(claim(number, result(f"gpu-{number - 1}")))
    await harness.prepare(1, 2, 3, 4)
    del harness.claims.objects["claim-1"]  # deleted
    harness.claims.objects["claim-2"] = claim(99, result("gpu-1"))  # replaced by another of its name
    harness.claims.objects["claim-3"]["status"] = {}  # deallocated, but a pod still runs
    harness.used = frozenset({ref(3).key})
    assert await harness.engine.reconcile() == 2
    assert sorted(harness.node.cdi.claim_uids()) == [uid(3), uid(4)]
    harness.used = frozenset()
    assert await harness.engine.reconcile() == 1
    assert sorted(harness.node.cdi.claim_uids()) == [uid(4)]


async def test_S7_nothing_is_given_up_while_the_api_server_or_the_kubelet_is_away(harness: Harness) -> None:
    harness.claims.add(claim(1, result("gpu-0")))
    await harness.prepare(1)
    del harness.claims.objects["claim-1"]
    harness.used = None
    assert await harness.engine.reconcile() == 0
    harness.used = frozenset()
    harness.claims.errors = [ApiUnavailableError("connection refused")]
    assert await harness.engine.reconcile() == 0
    assert await harness.engine.reconcile() == 1


async def test_a_claim_waits_for_a_holder_that_is_on_its_way_out(harness: Harness) -> None:
    harness.claims.add(claim(1, result("gpu-0")))
    harness.claims.add(claim(2, result("gpu-0")))
    await harness.prepare(1)
    del harness.claims.objects["claim-1"]
    harness.used = frozenset({ref(1).key})  # its pod is still terminating
    waiting = asyncio.create_task(harness.prepare(2, within=30))
    while harness.claims.gets < 3:
        await asyncio.sleep(0)
    assert await harness.unprepare(1) is None
    assert devices(await waiting) == ["gpu-0"]
