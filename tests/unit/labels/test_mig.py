"""The labels of GPUs with MIG devices, by each strategy."""

from __future__ import annotations

from dataclasses import replace

import pytest

from driver.labels import labels
from tests.unit.labels.helpers import H100, SHARED, options, plugins, sharing, short, some
from tests.unit.slices.helpers import partitioned, snapshot

ONE_G = {
    "memory": "9984",
    "multiprocessors": "16",
    "slices.gi": "1",
    "slices.ci": "1",
    "engines.copy": "1",
    "engines.decoder": "1",
    "engines.encoder": "0",
    "engines.jpeg": "1",
    "engines.ofa": "0",
}


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("h100:2", [H100, "2", "4"]),
        ("h100@mig=1g.10gb*2", [H100, "1", "0"]),
        ("h100@mig=1g.10gb,h100", [H100, "2", "4"]),
    ],
)
def test_strategy_none_shows_whole_gpus_and_shares_none_in_mig_mode(spec, expected):
    found = labels(plugins(spec), options(shared=sharing(gpu=4, rename=True)))
    assert some(found, "gpu.product", "gpu.count", "gpu.replicas") == expected
    assert some(found, "mig.strategy", "gpu.multiprocessors", "mig-1g.10gb.count") == ["-"] * 3
    assert short(found)["memory"] == "81559"


def test_strategy_single_shows_mig_devices_as_gpus():
    found = labels(plugins("h100@mig=1g.10gb*3,h100@mig=1g.10gb*2"), options("single"))
    assert short(found) == {
        **ONE_G,
        "product": f"{H100}-MIG-1g.10gb",
        "products": H100,
        "count": "5",
        "replicas": "1",
        "health": "healthy",
        "unhealthy": "0",
        "sharing-strategy": "none",
        "family": "hopper",
        "compute.major": "9",
        "compute.minor": "0",
        "machine": "unknown",
        "mode": "unknown",
    }
    assert some(found, "mig.strategy", "mig.capable") == ["single", "true"]


@pytest.mark.parametrize(("rename", "product"), [(False, f"{H100}-MIG-1g.10gb-SHARED"), (True, f"{H100}-MIG-1g.10gb")])
def test_strategy_single_shared(rename, product):
    found = labels(plugins("h100@mig=1g.10gb*3"), options("single", sharing(gpu=2, rename=rename)))
    names = ("gpu.product", "gpu.count", "gpu.replicas", "gpu.sharing-strategy")
    assert some(found, *names) == [product, "3", "2", "time-slicing"]


@pytest.mark.parametrize(
    "spec",
    [
        "h100@mig=1g.10gb+2g.20gb",
        "h100@mig=1g.10gb,h100@mig=2g.20gb",
        "h100@mig=1g.10gb,h100",
        "h100@mig,h100@mig=1g.10gb",
        "h100@mig",
    ],
)
def test_strategy_single_is_invalid_where_devices_differ_or_are_missing(spec):
    found = labels(plugins(spec), options("single", SHARED))
    names = ("gpu.product", "gpu.count", "gpu.replicas", "gpu.memory", "gpu.sharing-strategy", "gpu.multiprocessors")
    assert some(found, *names) == [f"{H100}-MIG-INVALID", "0", "0", "0", "none", "-"]
    assert some(found, "mig.strategy", "gpu.family") == ["single", "hopper"]


def test_strategy_single_without_mig_mode_is_as_none():
    plain, single = labels(snapshot("h100:2"), options()), labels(snapshot("h100:2"), options("single"))
    assert single == dict(sorted({**plain, "nvidia.com/mig.strategy": "single"}.items()))


def test_strategy_single_is_about_the_device_plugins_gpus():
    found = labels(plugins("h100@mig=1g.10gb*2,h100", 0), options("single"))
    assert some(found, "gpu.product", "gpu.count") == [f"{H100}-MIG-1g.10gb", "2"]


def test_strategy_mixed_shows_both():
    found = labels(plugins("h100@mig=1g.10gb*3+2g.20gb,h100"), options("mixed"))
    assert some(found, "mig.strategy", "gpu.product", "gpu.count", "gpu.memory") == ["mixed", H100, "2", "81559"]
    assert short(found, of="mig-1g.10gb.") == {
        **ONE_G,
        "product": f"{H100}-MIG-1g.10gb",
        "count": "3",
        "replicas": "1",
        "sharing-strategy": "none",
    }
    assert some(found, "mig-2g.20gb.count", "mig-2g.20gb.slices.gi") == ["1", "2"]


def test_strategy_mixed_shared_by_profile():
    found = labels(plugins("h100@mig=1g.10gb*2+2g.20gb"), options("mixed", sharing(**{"mig-1g.10gb": 3})))
    names = ("product", "replicas", "sharing-strategy")
    one, two = ([short(found, of=f"mig-{profile}.")[name] for name in names] for profile in ("1g.10gb", "2g.20gb"))
    assert one == [f"{H100}-MIG-1g.10gb-SHARED", "3", "time-slicing"]
    assert two == [f"{H100}-MIG-2g.20gb", "1", "none"]


def test_a_plus_of_a_profile_is_a_dot():
    found = labels(snapshot("h100@mig=1g.10gb+me"), options("mixed"))
    assert some(found, "mig-1g.10gb.me.count", "mig-1g.10gb.me.engines.ofa") == ["1", "1"]
    assert some(found, "mig-1g.10gb.me.product") == [f"{H100}-MIG-1g.10gb.me"]
    alone = labels(plugins("h100@mig=1g.10gb+me"), options("single"))
    assert some(alone, "gpu.product", "gpu.count") == [f"{H100}-MIG-1g.10gb.me", "1"]


def test_a_part_of_a_gpu_instance_has_its_part_of_the_multiprocessors():
    found = snapshot("h100@mig=3g.40gb")
    (gpu,) = found.gpus
    assert gpu.mig is not None
    part = replace(gpu.mig.instances[0], compute_slices=1)
    cut = replace(found, gpus=(replace(gpu, mig=replace(gpu.mig, instances=(part,))),))
    names = [f"mig-1c.3g.40gb.{name}" for name in ("slices.gi", "slices.ci", "multiprocessors", "memory")]
    assert some(labels(cut, options("mixed")), *names) == ["3", "1", "20", "40448"]


@pytest.mark.parametrize("strategy", ["none", "single", "mixed"])
def test_what_claims_partition_is_a_whole_gpu(strategy):
    found = labels(partitioned("h100@mig=1g.10gb*3"), options(strategy))
    assert some(found, "gpu.product", "gpu.count", "gpu.replicas", "mig-1g.10gb.count") == [H100, "1", "1", "-"]


def test_the_product_of_a_profile_is_that_of_most_of_its_devices():
    found = snapshot("a100-80@mig=1g.10gb,h100@mig=1g.10gb*2")
    assert some(labels(found, options("single")), "gpu.product", "gpu.count") == [f"{H100}-MIG-1g.10gb", "3"]


def test_mps_does_not_go_with_mig():
    found = labels(plugins("h100@mig=1g.10gb"), options("mixed", sharing("mps", gpu=2)))
    assert some(found, "mps.capable") == ["false"]
