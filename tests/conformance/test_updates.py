"""Updates of the driver: the new instance runs beside the old one for a while, and it may fail."""

from __future__ import annotations

import pytest

from tests.conformance import manifests as m
from tests.conformance.case import uuids, versions
from tests.conformance.cluster import REGISTERED

pytestmark = [pytest.mark.needs("restart-driver"), pytest.mark.gpus(2)]

NEW = {"pod_uid": "new"}


async def works(case, name):
    """Say by a pod that GPUs are given, and none twice."""
    await case.create(m.pod(name, [m.from_template("one")]))
    await case.running(name)
    given = uuids(await case.given(name))
    assert await case.seen(name) == given
    assert given.isdisjoint(uuids(await case.given("pod")))
    claim = await case.claim_of(name)
    await case.delete("Pod", name)
    await case.unprepared(claim)


async def test_a_rolling_update_goes_on_with_what_the_old_one_prepared(case, pod_with_gpu):
    before = await case.slices()
    async with case.cluster.another_driver(NEW) as new:
        await new.says(REGISTERED, case.cluster.patience)
        await works(case, "both")
        await case.cluster.stop_driver()
        await works(case, "new-alone")
        assert versions(await case.slices()) == versions(before)
        await case.delete("Pod", "pod")
        await case.unprepared(pod_with_gpu)
        await case.cluster.start_driver()
        assert await new.ended() == 0
    assert versions(await case.slices()) == versions(before)


async def test_a_failed_update_removes_nothing(case, pod_with_gpu):
    before = await case.slices()
    async with case.cluster.another_driver({**NEW, "http_address": "256.0.0.1:1"}) as new:
        assert await new.exits(case.cluster.patience) != 0
    await works(case, "old-alone")
    assert versions(await case.slices()) == versions(before)


async def test_an_update_that_dies_leaves_the_old_one_in_service(case, pod_with_gpu):
    before = await case.slices()
    async with case.cluster.another_driver(NEW) as new:
        await new.says(REGISTERED, case.cluster.patience)
        await new.ended(9)
        await works(case, "old-alone")
    assert versions(await case.slices()) == versions(before)
    await case.delete("Pod", "pod")
    await case.unprepared(pod_with_gpu)


async def test_the_sockets_of_dead_instances_are_taken_over(case, pod_with_gpu):
    async with case.cluster.another_driver(NEW) as new:
        await new.says(REGISTERED, case.cluster.patience)
        await new.ended(9)
    await case.cluster.kill_driver()
    async with case.cluster.another_driver(NEW) as again:
        await again.says(REGISTERED, case.cluster.patience)
        await works(case, "new-alone")
        await case.cluster.start_driver()
        assert await again.ended() == 0
    await works(case, "old-alone")
