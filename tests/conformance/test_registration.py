"""How the kubelet and the driver find each other, and stay connected (upstream's tests of a node)."""

from __future__ import annotations

import pytest

from tests.conformance import manifests as m
from tests.conformance.case import uuids
from tests.conformance.cluster import REGISTERED

pytestmark = pytest.mark.needs("see-node", "restart-driver")

REFUSED = "the kubelet did not register the driver"


async def pods_run(case, *names):
    """Say by pods that claims are prepared, and unprepared."""
    await case.create(m.template("one"), *(m.pod(name, [m.from_template("one")]) for name in names))
    await case.running(*names)
    claims = [await case.claim_of(name) for name in names]
    for name in names:
        assert await case.seen(name) == uuids(await case.given(name))
        await case.delete("Pod", name)
    for claim in claims:
        await case.unprepared(claim)
    await case.api.delete(case.path("ResourceClaimTemplate", "one"))


def announced(case):
    """Have the driver's endpoint registered by somebody else."""
    return case.cluster.node.announced(case.namespace[-6:], case.wait.patience)


async def test_a_refused_registration_is_made_good(case):
    """The kubelet takes an endpoint once: as long as it is somebody else's, it refuses the driver's registration."""
    await case.cluster.stop_driver()
    async with announced(case):
        await case.cluster.start_driver()
        await case.cluster.driver_says(REFUSED)
    await case.cluster.driver_says(REGISTERED)
    await pods_run(case, "pod")


async def test_the_service_may_come_up_after_it_was_registered(case):
    await case.cluster.stop_driver()
    async with announced(case):
        await case.create(m.template("one"), m.pod("pod", [m.from_template("one")]))
        await case.event("FailedPrepareDynamicResources", about="pod")
        await case.cluster.start_driver()
        await case.running("pod")
        assert await case.seen("pod") == uuids(await case.given("pod"))
        claim = await case.claim_of("pod")
        await case.delete("Pod", "pod")
        await case.unprepared(claim)
    await case.cluster.driver_says(REGISTERED)


async def test_a_service_socket_that_was_deleted_comes_back(case):
    await pods_run(case, "before")
    before = case.cluster.connections().kubelet
    await case.cluster.node.service_socket_comes_back(case.wait.patience)
    await pods_run(case, "after")
    assert case.cluster.connections().kubelet - before


@pytest.mark.gpus(4)
async def test_connections_are_kept(case):
    """The kubelet's one to the driver, and the driver's to the API server: those of a burst do for what follows."""
    await case.cluster.stop_driver()
    await case.cluster.start_driver()
    await case.cluster.driver_says(REGISTERED)
    await pods_run(case, *(f"burst-{number}" for number in range(4)))
    before = case.cluster.connections()
    for _ in range(4):
        await pods_run(case, "pod")
    after = case.cluster.connections()
    assert len(before.kubelet) == 1
    assert after.kubelet == before.kubelet
    assert before.api_server
    assert after.api_server <= before.api_server
