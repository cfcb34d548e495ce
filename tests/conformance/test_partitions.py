"""MIG: devices that are there, partitions that are made for claims, and how both go with whole GPUs."""

from __future__ import annotations

import re

import pytest

from tests.conformance import manifests as m
from tests.conformance.case import results
from tests.conformance.cluster import REGISTERED

MIG = "mig.nvidia.com"
UUID = re.compile(r"MIG-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
STATIC = pytest.mark.driver(gpus="h100@mig=1g.10gb*2+3g.40gb:4,l4")
DYNAMIC = pytest.mark.driver(gpus="h100,l4", dynamic_mig="0")


def partition(name="gpu", profile="1g.10gb", *selectors, **more):
    """Return a request for a MIG device of a profile."""
    return m.request(name, 1, f"{m.attribute('profile')} == '{profile}'", *selectors, class_=MIG, **more)


def whole(product="H100"):
    """Return a request for a whole GPU of a product."""
    return m.request("gpu", 1, f"{m.attribute('productName')}.matches('{product}')")


async def create(case, name, *requests, containers=(), **more):
    """Create a pod with a claim of its own."""
    await case.create(m.template(name, m.devices(*requests, **more)), m.pod(name, [m.from_template(name)], *containers))


async def seen(case, pod, container="main"):
    """Return the UUIDs of the MIG devices that a container sees."""
    return set(UUID.findall(await case.output(pod, container)))


async def given(case, pod):
    """Return the names of a pod's devices."""
    return [one["device"] for one in results(await case.claim_of(pod))]


async def published(case):
    """Return the MIG devices of the slices: their attributes by name."""
    devices = [device for item in await case.slices() for device in item["spec"].get("devices") or ()]
    found = {one["name"]: one["attributes"] for one in devices if one["attributes"]["type"]["string"] == "mig"}
    return {name: {key: next(iter(value.values())) for key, value in one.items()} for name, one in found.items()}


def made(case):
    """Return the MIG devices on the node, where that can be seen."""
    return case.cluster.node.mig_devices() if case.cluster.can("see-node") else None


# --- devices that are there ------------------------------------------------------------------------------------------


@STATIC
async def test_a_mig_device_is_given_as_it_is_published(case):
    await create(case, "pod", partition(profile="3g.40gb"))
    await case.running("pod")
    (name,) = await given(case, "pod")
    assert await seen(case, "pod") == {(await published(case))[name]["uuid"]}


@STATIC
async def test_mig_devices_of_one_gpu_go_to_different_pods_and_stay_when_these_go(case):
    before = await published(case)
    for name in ("a", "b"):
        await create(case, name, partition())
    await case.running("a", "b")
    assert len(await seen(case, "a") | await seen(case, "b")) == 2
    await create(case, "c", partition())
    assert "cannot allocate all claims" in await case.unschedulable("c")
    await case.gone("a", "b")
    assert await published(case) == before


@STATIC
async def test_a_gpu_in_mig_mode_is_not_given_whole(case):
    await create(case, "pod", whole())
    assert "cannot allocate all claims" in await case.unschedulable("pod")


# --- partitions that are made for claims -----------------------------------------------------------------------------


@DYNAMIC
async def test_a_partition_is_made_for_a_pod_and_removed_with_it(case):
    await create(case, "pod", partition(profile="2g.20gb"))
    await case.running("pod")
    uuids = await seen(case, "pod")
    assert len(uuids) == 1
    assert made(case) in (None, uuids)
    assert "MIG 2g.20gb" in await case.output("pod")
    await case.gone("pod")
    assert not made(case)


@DYNAMIC
async def test_each_partition_is_a_new_device(case):
    await create(case, "first", partition())
    await case.running("first")
    uuids = await seen(case, "first")
    await case.gone("first")
    await create(case, "second", partition())
    await case.running("second")
    assert uuids.isdisjoint(await seen(case, "second"))


@DYNAMIC
async def test_seven_partitions_fit_on_a_gpu_and_an_eighth_waits(case):
    names = [f"pod-{number}" for number in range(7)]
    for name in names:
        await create(case, name, partition())
    await case.running(*names)
    assert len(set.union(*[await seen(case, name) for name in names])) == 7
    await create(case, "eighth", partition())
    assert "cannot allocate all claims" in await case.unschedulable("eighth")
    await case.gone(names[3])
    await case.running("eighth")


@DYNAMIC
async def test_a_partition_keeps_its_gpu_from_being_given_whole(case):
    await create(case, "part", partition())
    await case.running("part")
    await create(case, "whole", whole())
    assert "cannot allocate all claims" in await case.unschedulable("whole")
    await case.gone("part")
    await case.running("whole")
    assert len(await case.seen("whole")) == 1
    assert not made(case)


@DYNAMIC
async def test_a_gpu_that_is_given_whole_is_not_partitioned(case):
    await create(case, "whole", whole())
    await case.running("whole")
    await create(case, "part", partition())
    assert "cannot allocate all claims" in await case.unschedulable("part")
    await case.gone("whole")
    await case.running("part")
    assert len(await seen(case, "part")) == 1


@DYNAMIC
async def test_two_profiles_of_one_gpu_in_one_claim(case):
    containers = (
        m.container("large", "gpu/large"),
        m.container("small", "gpu/small"),
        m.container("both", "gpu"),
    )
    requests = (partition("large", "4g.40gb"), partition("small", "3g.40gb"))
    same = m.match("parentUUID", "large", "small")
    await create(case, "pod", *requests, containers=containers, constraints=(same,))
    await case.running("pod")
    large, small, both = [await seen(case, "pod", name) for name in ("large", "small", "both")]
    assert (len(large), len(small)) == (1, 1)
    assert both == large | small
    assert made(case) in (None, both)


@DYNAMIC
async def test_partitions_are_chosen_by_memory(case):
    at_least = f'device.capacity["{m.DRIVER}"].memory.compareTo(quantity("15Gi")) >= 0'
    at_most = f'device.capacity["{m.DRIVER}"].memory.compareTo(quantity("25Gi")) <= 0'
    await create(case, "pod", m.request("gpu", 1, at_least, at_most, class_=MIG))
    await case.running("pod")
    (name,) = await given(case, "pod")
    assert (await published(case))[name]["profile"] in ("1g.20gb", "2g.20gb")


@DYNAMIC
async def test_making_partitions_changes_no_slice(case):
    before = {item["metadata"]["name"]: item["metadata"]["resourceVersion"] for item in await case.slices()}
    await create(case, "pod", partition())
    await case.running("pod")
    await case.gone("pod")
    assert {item["metadata"]["name"]: item["metadata"]["resourceVersion"] for item in await case.slices()} == before


@DYNAMIC
@pytest.mark.needs("restart-driver", "see-node")
async def test_a_killed_driver_finds_its_partitions_again(case):
    await create(case, "pod", partition())
    await case.running("pod")
    uuids = await seen(case, "pod")
    await case.cluster.kill_driver()
    await case.cluster.start_driver()
    await case.cluster.driver_says(REGISTERED)
    await create(case, "next", partition())
    await case.running("next")
    assert made(case) == uuids | await seen(case, "next")
    await case.gone("pod", "next")
    assert not made(case)


@DYNAMIC
async def test_admin_access_to_a_partition_that_nobody_has_makes_none(case):
    await create(case, "pod", partition(adminAccess=True))
    assert "admin access makes none" in await case.event("FailedPrepareDynamicResources", about="pod")
    assert not made(case)


@DYNAMIC
async def test_admin_access_sees_a_partition_that_another_pod_holds(case):
    await create(case, "worker", partition())
    await case.running("worker")
    await create(case, "monitor", partition(adminAccess=True))
    await case.running("monitor")
    assert await given(case, "monitor") == await given(case, "worker")
    assert await seen(case, "monitor") == await seen(case, "worker")
    await case.gone("monitor")
    assert made(case) in (None, await seen(case, "worker"))
