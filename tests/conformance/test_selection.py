"""Which GPUs a claim gets: by product, memory, capability, version, topology; what it may fall back to."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from tests.conformance import manifests as m
from tests.conformance.case import results, uuids

MOST = 32
"""Devices that a claim may ask for."""


async def given_to(case, spec):
    """Run a pod with a claim; return its GPUs, which must be what the container sees."""
    await case.create(m.template("wanted", spec), m.pod("pod", [m.from_template("wanted")]))
    await case.running("pod")
    given = await case.given("pod")
    assert await case.seen("pod") == uuids(given)
    return given


async def refusal(case, spec):
    """Create a pod whose claim can't be met; return the scheduler's reason."""
    await case.create(m.template("wanted", spec), m.pod("pod", [m.from_template("wanted")]))
    return await case.unschedulable("pod")


def rarest(case):
    """Return a GPU of the product of which there are fewest: first-fit alone would rarely take it."""
    counts = Counter(gpu.product for gpu in case.gpus.all)
    return min(case.gpus.all, key=lambda gpu: counts[gpu.product])


def literal(version):
    """Return an attribute that is a version as CEL has it."""
    return f'semver("{version}")'


async def test_by_product(case):
    wanted = rarest(case)
    pattern = re.sub(r"[^A-Za-z0-9 ]", ".", wanted.product)
    given = await given_to(case, m.devices(m.request("gpu", 1, f'{m.attribute("productName")}.matches("^{pattern}$")')))
    assert [gpu.product for gpu in given] == [wanted.product]


async def test_by_product_in_lower_case(case):
    wanted = rarest(case)
    expression = f'{m.attribute("productName")}.lowerAscii() == "{wanted.product.lower()}"'
    given = await given_to(case, m.devices(m.request("gpu", 1, expression)))
    assert [gpu.product for gpu in given] == [wanted.product]


async def test_by_memory(case):
    wanted = rarest(case)
    expression = f'device.capacity["{m.DRIVER}"].memory.compareTo(quantity("{wanted.memory}")) == 0'
    given = await given_to(case, m.devices(m.request("gpu", 1, expression)))
    assert [gpu.memory for gpu in given] == [wanted.memory]


async def test_by_compute_capability(case):
    wanted = rarest(case).attributes["cudaComputeCapability"]
    expression = f"{m.attribute('cudaComputeCapability')}.compareTo({literal(wanted)}) == 0"
    given = await given_to(case, m.devices(m.request("gpu", 1, expression)))
    assert [gpu.attributes["cudaComputeCapability"] for gpu in given] == [wanted]


async def test_by_driver_version(case):
    wanted = case.gpus.all[0].attributes["driverVersion"]
    at_least = f"{m.attribute('driverVersion')}.compareTo({literal(wanted)}) >= 0"
    assert await given_to(case, m.devices(m.request("gpu", 1, at_least)))


async def test_a_driver_that_is_too_old_keeps_the_pod_pending(case):
    newer = f"{m.attribute('driverVersion')}.compareTo({literal('9999.0.0')}) >= 0"
    assert "cannot allocate all claims" in await refusal(case, m.devices(m.request("gpu", 1, newer)))


async def test_a_product_that_is_not_there_keeps_the_pod_pending(case):
    nothing = m.devices(m.request("gpu", 1, f'{m.attribute("productName")}.matches("Voodoo2")'))
    assert "cannot allocate all claims" in await refusal(case, nothing)


async def test_a_selector_on_an_attribute_that_there_is_not_keeps_the_pod_pending(case):
    """A runtime error in Kubernetes, whatever other GPUs there are: hence all have the same attributes."""
    message = await refusal(case, m.devices(m.request("gpu", 1, f"{m.attribute('wings')} == 2")))
    assert "no such key" in message


async def test_a_class_that_there_is_not_keeps_the_pod_pending(case):
    assert "no-such-class" in await refusal(case, m.devices(m.request("gpu", class_="no-such-class.example.com")))


@pytest.mark.needs("explain")
async def test_the_reason_tells_which_device_fails_at_what(case):
    needs = f'device.capacity["{m.DRIVER}"].memory.compareTo(quantity("900Gi")) >= 0'
    message = await refusal(case, m.devices(m.request("gpu", 1, needs)))
    gpu = case.gpus.all[0]
    assert f"memory {gpu.memory} is below 900Gi" in message


async def test_more_gpus_than_there_are_keep_the_pod_pending(case):
    too_many = max(Counter(gpu.pool for gpu in case.gpus.all).values()) + 1
    if too_many > MOST:
        pytest.skip(f"a claim can't ask for more than {MOST} devices")
    assert "cannot allocate all claims" in await refusal(case, m.devices(m.request("gpu", too_many)))


async def test_four_gpus_by_selector(case):
    wanted = case.gpus.require(4)
    product = Counter(gpu.product for gpu in wanted).most_common(1)[0][0]
    expression = f'{m.attribute("productName")} == "{product}"'
    case.gpus.require(4, re.escape(product))
    given = await given_to(case, m.devices(m.request("gpus", 4, expression)))
    assert len(uuids(given)) == 4
    assert {gpu.product for gpu in given} == {product}


async def test_two_requests_of_one_claim_get_different_gpus(case):
    first = rarest(case)
    case.gpus.other_than(first)
    spec = m.devices(
        m.request("first", 1, f'{m.attribute("productName")} == "{first.product}"'),
        m.request("second", 1, f'{m.attribute("productName")} != "{first.product}"'),
    )
    given = await given_to(case, spec)
    assert len(uuids(given)) == 2
    assert [gpu.product == first.product for gpu in given] == [True, False]


@pytest.mark.gpus(2, linked=True)
async def test_a_pair_that_is_connected_by_nvlink(case):
    given = await given_to(case, m.devices(m.request("pair", 2), constraints=(m.match("nvlinkDomain", "pair"),)))
    assert len(uuids(given)) == 2
    assert len({gpu.attributes["nvlinkDomain"] for gpu in given}) == 1
    assert all(gpu.attributes["nvlinkDomainSize"] >= 2 for gpu in given)


async def test_gpus_without_nvlink_never_make_a_pair(case):
    alone = [gpu for gpu in case.gpus.all if gpu.attributes["nvlinkDomainSize"] == 1]
    if len(alone) < 2:
        pytest.skip("needs two GPUs without NVLink")
    chosen = m.request("pair", 2, f"{m.attribute('nvlinkDomainSize')} == 1")
    spec = m.devices(chosen, constraints=(m.match("nvlinkDomain", "pair"),))
    assert "cannot allocate all claims" in await refusal(case, spec)


async def test_a_fallback_is_taken_when_the_first_choice_is_not_there(case):
    wanted = rarest(case)
    spec = m.devices(
        m.first_available(
            "gpu",
            m.subrequest("dream", 1, f'{m.attribute("productName")}.matches("Voodoo2")'),
            m.subrequest("real", 1, f'{m.attribute("productName")} == "{wanted.product}"'),
        )
    )
    container = m.container("main", "gpu/gpu")
    await case.create(m.template("list", spec), m.pod("pod", [m.from_template("list")], container))
    await case.running("pod")
    assert [one["request"] for one in results(await case.claim_of("pod"))] == ["gpu/real"]
    given = await case.given("pod")
    assert [gpu.product for gpu in given] == [wanted.product]
    assert await case.seen("pod") == uuids(given)


async def test_the_first_choice_is_taken_when_it_is_there(case):
    spec = m.devices(m.first_available("gpu", m.subrequest("first"), m.subrequest("second", 2)))
    await case.create(m.template("list", spec), m.pod("pod", [m.from_template("list")]))
    await case.running("pod")
    assert [one["request"] for one in results(await case.claim_of("pod"))] == ["gpu/first"]
    assert len(await case.seen("pod")) == 1


async def test_admin_access_sees_a_gpu_that_another_pod_holds(case):
    wanted = case.gpus.require(1)[0]
    mine = m.request("gpu", 1, m.is_gpu(wanted.uuid))
    watching = m.request("gpu", 1, m.is_gpu(wanted.uuid), adminAccess=True)
    await case.create(m.template("mine", m.devices(mine)), m.pod("worker", [m.from_template("mine")]))
    await case.running("worker")
    await case.create(m.template("all", m.devices(watching)), m.pod("monitor", [m.from_template("all")]))
    await case.running("monitor")
    assert await case.seen("worker") == await case.seen("monitor") == {wanted.uuid}
    await case.delete("Pod", "monitor")
    assert (await case.running("worker"))[0]["status"]["phase"] == "Running"


async def test_admin_access_to_all_gpus(case):
    everything = m.devices({"name": "gpu", "exactly": m.exactly(1, allocationMode="All", adminAccess=True)})
    given = await given_to(case, everything)
    assert uuids(given) == {gpu.uuid for gpu in case.gpus.all if gpu.pool == given[0].pool}
