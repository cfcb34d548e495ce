"""Every example for workload authors runs as its comment says."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from tests.conformance import examples
from tests.conformance.case import uuids


@dataclass(frozen=True, kw_only=True)
class Expected:
    """How many GPUs each container (`pod/container`) sees, how many they are in all, and of what kind."""

    sees: dict[str, int]
    total: int
    pattern: str = ""
    linked: bool = False
    settings: dict[str, str] = field(default_factory=dict)
    """Of the driver, where the usual ones don't do."""


EXPECTED = {
    "whole-gpu": Expected(sees={"whole-gpu/main": 1}, total=1),
    "four-h100": Expected(sees={"four-h100/main": 4}, total=4, pattern="H100", linked=True),
    "by-memory": Expected(sees={"by-memory/main": 1}, total=1, pattern="H[12]00|A100|B200|L40"),
    "nvlink-pair": Expected(sees={"nvlink-pair/main": 2}, total=2, linked=True),
    "shared-between-containers": Expected(
        sees={"shared-between-containers/one": 1, "shared-between-containers/two": 2}, total=2
    ),
    "shared-between-pods": Expected(sees={"shared-between-pods-1/main": 1, "shared-between-pods-2/main": 1}, total=1),
    "fallback-list": Expected(sees={"fallback-list/main": 1}, total=1, pattern="H[12]00"),
    "mig-partition": Expected(
        sees={"mig-partition/main": 1}, total=1, pattern="H100", settings={"gpus": "h100", "dynamic_mig": "all"}
    ),
    "time-slicing": Expected(sees={"time-slicing/main": 1}, total=1),
    "mps": Expected(sees={"mps/main": 1}, total=1),
    "gpu-share": Expected(
        sees={"gpu-share-1/main": 1, "gpu-share-2/main": 1}, total=1, settings={"gpus": "h100", "shares": "memory"}
    ),
    "extended-resource": Expected(sees={"extended-resource/main": 2}, total=2),
    "vllm": Expected(sees={"vllm/vllm": 4}, total=4, pattern="H[12]00|B200|A100.*80", linked=True),
}


def test_every_example_is_here():
    assert sorted(EXPECTED) == examples.names()


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.driver(**one.settings), id=name) for name, one in EXPECTED.items()],
)
async def test_example(case, name):
    expected = EXPECTED[name]
    case.gpus.require(expected.total, expected.pattern, linked=expected.linked)
    if name == "extended-resource":
        assert await case.extended_resource() == "nvidia.com/gpu"
    objects = examples.load(name)
    await case.create(*objects)
    pods = await running_pods(case, objects)
    seen = {}
    for place, count in expected.sees.items():
        owner, container = place.split("/")
        seen[place] = await case.seen(pods[owner], container, count=count)
    assert {place: len(found) for place, found in seen.items()} == expected.sees
    together = set.union(*seen.values())
    assert len(together) == expected.total
    gpus = [gpu for gpu in case.gpus.all if gpu.uuid in together]
    assert uuids(gpus) == together
    assert all(gpu in case.gpus.like(expected.pattern) for gpu in gpus)
    if expected.linked:
        assert len({gpu.attributes["nvlinkDomain"] for gpu in gpus}) == 1


async def running_pods(case, objects):
    """Return the names of the running pods by the names of the objects that they are or belong to."""
    found = {}
    for item in objects:
        name = item["metadata"]["name"]
        if item["kind"] == "Deployment":
            await case.wait.one("Deployment", name, lambda it: it["status"].get("availableReplicas"), "is available")
            (pod,) = await case.pods(f"app={name}")
            found[name] = pod["metadata"]["name"]
        elif item["kind"] == "Pod":
            await case.running(name)
            found[name] = name
    return found
