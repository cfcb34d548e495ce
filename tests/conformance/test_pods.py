"""Pods get the GPUs of their claims: the first things that anybody tries."""

from __future__ import annotations

from tests.conformance import manifests as m
from tests.conformance.case import uuids


async def test_one_pod_gets_one_gpu(case):
    await case.create(m.template("one"), m.pod("pod", [m.from_template("one")]))
    await case.running("pod")
    given = await case.given("pod")
    assert len(given) == 1
    assert await case.seen("pod") == uuids(given)


async def test_two_pods_get_different_gpus(case):
    case.gpus.require(2)
    await case.create(m.template("one"), m.pod("a", [m.from_template("one")]), m.pod("b", [m.from_template("one")]))
    await case.running("a", "b")
    seen = [await case.seen(name) for name in ("a", "b")]
    assert seen == [uuids(await case.given(name)) for name in ("a", "b")]
    assert len(seen[0] | seen[1]) == 2


async def test_two_containers_of_a_pod_share_a_gpu(case):
    pod = m.pod("pod", [m.from_template("one")], m.container("left", "gpu"), m.container("right", "gpu"))
    await case.create(m.template("one"), pod)
    await case.running("pod")
    assert await case.seen("pod", "left") == await case.seen("pod", "right") == uuids(await case.given("pod"))


async def test_two_pods_share_a_claim(case):
    await case.create(m.claim("shared"), m.pod("a", [m.from_claim("shared")]), m.pod("b", [m.from_claim("shared")]))
    first, second = await case.running("a", "b")
    assert first["spec"]["nodeName"] == second["spec"]["nodeName"]
    assert await case.seen("a") == await case.seen("b") == uuids(await case.given("a"))


async def test_a_selector_that_nothing_matches_keeps_the_pod_pending_with_the_reason(case):
    nothing = m.devices(m.request("gpu", 1, f'{m.attribute("productName")}.matches("Voodoo2")'))
    await case.create(m.template("none", nothing), m.pod("pod", [m.from_template("none")]))
    assert "cannot allocate all claims" in await case.unschedulable("pod")
