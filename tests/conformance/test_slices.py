"""What the driver publishes, and that it defends it."""

from __future__ import annotations

import pytest

from tests.conformance import manifests as m
from tests.conformance.gpus import is_complete

ATTRIBUTES = {
    "type": str,
    "uuid": str,
    "productName": str,
    "brand": str,
    "architecture": str,
    "cudaComputeCapability": str,
    "driverVersion": str,
    "driverVersionString": str,
    "nvlinkDomain": str,
    "nvlinkDomainSize": int,
    "nvlinkLinks": int,
    "migCapable": bool,
    "minor": int,
}


async def test_every_pool_is_complete_and_of_one_generation(case):
    slices = await case.slices()
    assert is_complete(slices)
    for pool in {item["spec"]["pool"]["name"] for item in slices}:
        generations = {item["spec"]["pool"]["generation"] for item in slices if item["spec"]["pool"]["name"] == pool}
        assert len(generations) == 1


async def test_every_gpu_has_every_attribute_as_selectors_need(case):
    for gpu in case.gpus.all:
        found = {name: type(gpu.attributes.get(name)) for name in ATTRIBUTES}
        assert found == ATTRIBUTES, gpu.name


async def test_uuids_are_unique(case):
    assert len({gpu.uuid for gpu in case.gpus.all}) == len(case.gpus.all)


async def test_slices_belong_to_their_node(case):
    for item in await case.slices():
        (owner,) = item["metadata"]["ownerReferences"]
        node = await case.api.get(case.path("Node", item["spec"]["nodeName"]))
        assert (owner["kind"], owner["name"], owner["uid"]) == (
            "Node",
            node["metadata"]["name"],
            node["metadata"]["uid"],
        )


@pytest.mark.needs("disrupt")
async def test_a_deleted_slice_comes_back(case):
    first, *_ = await case.slices()
    await case.api.delete(case.path("ResourceSlice", first["metadata"]["name"]))
    again = await case.published()
    assert _content(first) in [_content(item) for item in again]


@pytest.mark.needs("disrupt")
async def test_a_changed_slice_is_put_right(case):
    first, *_ = await case.slices()
    path = case.path("ResourceSlice", first["metadata"]["name"])
    await case.api.patch(path, {"spec": {"devices": [], "sharedCounters": []}})
    right = {device["name"] for device in first["spec"].get("devices") or ()}

    def names(slices):
        return {device["name"] for item in slices for device in item["spec"].get("devices") or ()}

    await case.wait.until("ResourceSlice", lambda items: right <= names(items), "the slices are put right")


async def test_a_slice_names_its_driver(case):
    assert {item["spec"]["driver"] for item in await case.slices()} == {m.DRIVER}


def _content(item):
    return {name: value for name, value in item["spec"].items() if name != "pool"}
