"""The embedded scheduler allocates from slices as the driver builds them what the real one was seen to allocate."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from driver.model.shares import Shares
from driver.slices.build import build
from tests.unit.localcluster import support
from tests.unit.slices.helpers import OPTIONS, PARTITIONS, partitioned, snapshot
from tests.unit.slices.scheduling import WHOLE, Cluster, wanted

RECORDED = {
    case["id"]: case for case in json.loads((Path(__file__).parents[2] / "data/recordings/allocation.json").read_text())
}


def recorded_kinds(case: dict[str, Any]) -> list[list[tuple[str, str]] | None]:
    """Return per claim the request and kind of each device that the real scheduler gave, None if it stayed pending."""
    kinds = {
        device["name"]: device["attributes"].get("profile", {"string": "gpu"})["string"]
        for spec in case["slices"]
        for device in spec.get("devices", ())
    }
    return [
        [(one["request"], kinds[one["device"]]) for one in result["allocation"]["devices"]["results"]]
        if "allocation" in result
        else None
        for result in case["results"]
    ]


MIG_CASES = [name for name in RECORDED if "mig" in name]


@pytest.mark.parametrize("name", MIG_CASES)
def test_recorded_mig_claims_get_the_same_kinds_of_devices(name: str) -> None:
    case = RECORDED[name]
    cluster = Cluster(build(partitioned("h100"), PARTITIONS))
    outcomes = [cluster.allocate(spec) for spec in case["claims"]]
    found = [
        None if one is None else [(result["request"], cluster.kind(result["device"])) for result in one]
        for one in outcomes
    ]
    expected = recorded_kinds(case)
    if name == "mig-by-memory":  # the real one had no 1g.20gb to choose from
        assert (found, expected) == ([[("r", "1g.20gb")]], [[("r", "2g.20gb")]])
    else:
        assert found == expected


@pytest.mark.parametrize("name", [name for name in RECORDED if name.startswith("share-")])
def test_recorded_shares_come_out_the_same(name: str) -> None:
    case = RECORDED[name]
    cluster = Cluster(build(snapshot("h100", memory=80 << 30), replace(OPTIONS, shares=Shares.parse("memory"))))
    for spec, result in zip(case["claims"], case["results"], strict=True):
        found = cluster.allocate(spec)
        if "allocation" not in result:
            assert found is None
            continue
        assert found is not None
        expected = [one["consumedCapacity"] for one in result["allocation"]["devices"]["results"]]
        assert [one["consumedCapacity"] for one in found] == expected
        assert all(one["shareID"] for one in found)


def capacity(**requests: str) -> dict[str, Any]:
    asked = support.request("r", cls="gpu.nvidia.com", capacity={"requests": requests} if requests else {})
    return support.claim("c", asked)["spec"]  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("shares", "claims", "served"),
    [
        ("disabled", [capacity(), capacity()], 1),
        ("3", [capacity()] * 4, 3),
        ("3", [capacity(shares="2"), capacity(shares="2"), capacity()], 2),
        ("3", [capacity(memory="60Gi"), capacity(memory="60Gi"), capacity()], 2),
        ("unlimited", [capacity()] * 20, 20),
        ("unlimited", [capacity(memory="79Gi"), capacity(memory="2Gi"), capacity()], 2),
        ("memory", [capacity(memory="1500Ki"), capacity(memory="79Gi"), capacity(memory="1Gi")], 2),
        ("memory", [capacity(memory="100Gi")], 0),
    ],
)
def test_each_mode_serves_as_many_claims_as_it_says(shares: str, claims: list[dict[str, Any]], served: int) -> None:
    cluster = Cluster(build(snapshot("h100"), replace(OPTIONS, shares=Shares.parse(shares))))
    assert sum(cluster.allocate(spec) is not None for spec in claims) == served


@pytest.mark.parametrize("shares", ["memory", "unlimited", "2"])
def test_a_mig_device_can_really_be_shared(shares: str) -> None:
    """Without policies on its other capacities, the first claim would take all engines."""
    spec = support.claim("c", support.request("r", cls="mig.nvidia.com", capacity={"requests": {"memory": "1Gi"}}))[
        "spec"
    ]
    for node, options in ((snapshot("h100@mig=3g.40gb"), OPTIONS), (partitioned("h100"), PARTITIONS)):
        cluster = Cluster(build(node, replace(options, shares=Shares.parse(shares))))
        first, second = cluster.allocate(spec), cluster.allocate(spec)
        assert first is not None
        assert second is not None
        assert first[0]["device"] == second[0]["device"]
        assert first[0]["shareID"] != second[0]["shareID"]


def test_a_shared_gpu_is_not_cut_and_a_shared_partition_not_overlapped() -> None:
    options = replace(PARTITIONS, shares=Shares.parse("unlimited"))
    cluster = Cluster(build(partitioned("h100"), options))
    assert cluster.allocate(WHOLE)
    assert cluster.allocate(WHOLE)
    assert cluster.allocate(wanted("1g.10gb")) is None
    cluster = Cluster(build(partitioned("h100"), options))
    assert cluster.allocate(wanted("3g.40gb"))
    assert cluster.allocate(wanted("3g.40gb"))
    assert cluster.allocate(WHOLE) is None
    assert cluster.allocate(wanted("7g.80gb")) is None


@pytest.mark.parametrize(
    ("spec", "profiles", "served"),
    [
        ("h100", ["1g.10gb"] * 8, 7),
        ("h100", ["1g.20gb"] * 5, 4),
        ("h100", ["2g.20gb"] * 4, 3),
        ("h100", ["3g.40gb", "4g.40gb"], 2),
        ("h100", ["1g.10gb", "1g.10gb", "1g.10gb", "4g.40gb"], 4),
        ("h100", ["2g.20gb", "1g.10gb", "4g.40gb"], 3),
        ("h100:2", ["1g.10gb+me"] * 3, 2),
        ("a30@mig", ["1g.6gb+me", "2g.12gb+me"], 1),
        ("rtx-pro-6000", ["1g.24gb"] * 5, 4),
        ("gb200:2", ["7g.186gb"] * 3, 2),
    ],
)
def test_first_fit_serves_what_the_hardware_can(spec: str, profiles: list[str], served: int) -> None:
    cluster = Cluster(build(partitioned(spec), PARTITIONS))
    assert sum(cluster.allocate(wanted(profile)) is not None for profile in profiles) == served
