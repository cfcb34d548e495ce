"""The label sets of NVIDIA's feature discovery, case by case."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING

import pytest

from driver.config.device_plugin import decode_config
from driver.labels import LabelOptions, labels
from driver.model.device import Fabric
from driver.model.health import LOST
from driver.model.health_facts import Fact, Kind
from driver.model.health_rules import judge
from driver.model.ownership import Owner, Ownership
from driver.model.snapshot import DriverVersions, Snapshot
from tests.unit.slices.helpers import partitioned, snapshot

if TYPE_CHECKING:
    from typing import Any

PLUGINS = Ownership(owner=Owner.DEVICE_PLUGIN, wanted=Owner.DEVICE_PLUGIN)


def sharing(kind: str = "timeSlicing", *, rename: bool = False, **names: int) -> dict[str, Any]:
    """A config in which resources (`gpu`, `mig-1g.10gb`, …) have replicas."""
    resources = [{"name": f"nvidia.com/{name}", "replicas": count} for name, count in names.items()]
    return {kind: {"renameByDefault": rename, "resources": resources}}


def options(strategy: str = "none", shared: dict[str, Any] | None = None, **more: Any) -> LabelOptions:
    document: dict[str, Any] = {"version": "v1", "flags": {"migStrategy": strategy}, **more}
    if shared:
        document["sharing"] = shared
    return LabelOptions(config=decode_config(document, "config"))


def plugins(spec: str, *indices: int) -> Snapshot:
    """GPUs that the device-plugin API has: all, or those at some indices."""
    found = snapshot(spec)
    chosen = [gpu.uuid for gpu in found.gpus if not indices or gpu.index in indices]
    return replace(found, ownership=MappingProxyType(dict.fromkeys(chosen, PLUGINS)))


def short(found: dict[str, str], *, of: str = "gpu.") -> dict[str, str]:
    """Labels of one resource without their common prefix."""
    prefix = f"nvidia.com/{of}"
    return {key.removeprefix(prefix): value for key, value in found.items() if key.startswith(prefix)}


def some(found: dict[str, str], *names: str) -> list[str]:
    return [found.get(f"nvidia.com/{name}", "-") for name in names]


# --- whole GPUs -------------------------------------------------------------------------------------------------------


def test_a_node_of_eight_gpus_has_all_labels_of_feature_discovery():
    found = snapshot("h100:8")
    modes = {gpu.uuid: "compute" for gpu in found.gpus}
    assert labels(found, LabelOptions(machine="PowerEdge XE9680", modes=modes)) == {
        "nvidia.com/cuda.driver-version.full": "580.105.08",
        "nvidia.com/cuda.driver-version.major": "580",
        "nvidia.com/cuda.driver-version.minor": "105",
        "nvidia.com/cuda.driver-version.revision": "08",
        "nvidia.com/cuda.driver.major": "580",
        "nvidia.com/cuda.driver.minor": "105",
        "nvidia.com/cuda.driver.rev": "08",
        "nvidia.com/cuda.runtime-version.full": "13.0",
        "nvidia.com/cuda.runtime-version.major": "13",
        "nvidia.com/cuda.runtime-version.minor": "0",
        "nvidia.com/cuda.runtime.major": "13",
        "nvidia.com/cuda.runtime.minor": "0",
        "nvidia.com/gpu.compute.major": "9",
        "nvidia.com/gpu.compute.minor": "0",
        "nvidia.com/gpu.count": "8",
        "nvidia.com/gpu.family": "hopper",
        "nvidia.com/gpu.health": "healthy",
        "nvidia.com/gpu.machine": "PowerEdge-XE9680",
        "nvidia.com/gpu.memory": "81559",
        "nvidia.com/gpu.mode": "compute",
        "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3",
        "nvidia.com/gpu.products": "NVIDIA-H100-80GB-HBM3",
        "nvidia.com/gpu.replicas": "1",
        "nvidia.com/gpu.sharing-strategy": "none",
        "nvidia.com/gpu.unhealthy": "0",
        "nvidia.com/mig.capable": "true",
        "nvidia.com/mps.capable": "false",
        "nvidia.com/vgpu.present": "false",
    }


@pytest.mark.parametrize(("bad", "word"), [(0, "healthy"), (1, "degraded"), (2, "unhealthy")])
def test_health_is_told_and_those_out_of_service_still_count(bad, word):
    found = snapshot("h100:2")
    notice = judge([Fact(Kind.XID, 31)])  # leaves a GPU in service
    health = {gpu.uuid: LOST if n < bad else notice for n, gpu in enumerate(found.gpus)}
    told = labels(replace(found, health=MappingProxyType(health)), options())
    assert some(told, "gpu.health", "gpu.unhealthy", "gpu.count") == [word, str(bad), "2"]


def test_keys_are_in_order_whatever_the_order_of_gpus():
    found = snapshot("h100:2,l4:2,t4")
    backwards = replace(found, gpus=found.gpus[::-1])
    assert list(labels(found, options()).items()) == sorted(labels(found, options()).items())
    assert labels(found, options()) == labels(backwards, options())


def test_a_node_without_gpus_has_no_labels():
    assert labels(Snapshot(), options("mixed")) == {}


@pytest.mark.parametrize(
    ("product", "label"),
    [
        ("TITAN X (Pascal)", "TITAN-X-Pascal"),
        ("Quadro RTX 6000/8000", "Quadro-RTX-60008000"),
        ("NVIDIA  A100\tSXM4 ", "NVIDIA-A100-SXM4"),
        ("_Tesla.", "Tesla"),
        ("N" * 64, "N" * 63),
        ("A" * 62 + " B", "A" * 62),
        ("Größe ™ X", "Gre-X"),
        ("", "Unknown"),
        ("(???)", "Unknown"),
    ],
)
def test_A15_any_product_is_a_label_value(product, label):
    found = labels(snapshot("l4", product=product), options())
    assert some(found, "gpu.product", "gpu.products") == [label, label]


@pytest.mark.parametrize(
    ("capability", "family"),
    [
        ((1, 3), "tesla"),
        ((2, 1), "fermi"),
        ((3, 7), "kepler"),
        ((5, 2), "maxwell"),
        ((6, 1), "pascal"),
        ((7, 0), "volta"),
        ((7, 2), "volta"),
        ((7, 5), "turing"),
        ((8, 0), "ampere"),
        ((8, 7), "ampere"),
        ((8, 9), "ada-lovelace"),
        ((9, 0), "hopper"),
        ((10, 0), "blackwell"),
        ((12, 0), "blackwell"),
        ((99, 9), "undefined"),
    ],
)
def test_families(capability, family):
    found = labels(snapshot("l4", compute_capability=capability), options())
    major, minor = capability
    assert some(found, "gpu.family", "gpu.compute.major", "gpu.compute.minor") == [family, str(major), str(minor)]


@pytest.mark.parametrize(
    ("changes", "absent"),
    [
        ({"memory": None}, ["gpu.memory"]),
        ({"memory": 0}, ["gpu.memory"]),
        ({"compute_capability": (0, 0)}, ["gpu.family", "gpu.compute.major", "gpu.compute.minor"]),
    ],
)
def test_what_is_unknown_is_left_out(changes, absent):
    found = labels(snapshot("l4", **changes), options())
    assert some(found, *absent) == ["-"] * len(absent)
    assert labels(snapshot("l4"), options()).keys() - found.keys() == {f"nvidia.com/{name}" for name in absent}


@pytest.mark.parametrize(
    ("driver", "cuda", "values"),
    [
        ("570.169", "12.8", ["570.169", "570", "169", "", "12.8", "12", "8"]),
        ("580.82.07", "13.0", ["580.82.07", "580", "82", "07", "13.0", "13", "0"]),
        ("6.19.14.31400000", "", ["6.19.14.31400000", "6", "19", "14.31400000", "-", "-", "-"]),
        ("580 (beta)", "13", ["580-beta", "580-beta", "", "", "13", "13", ""]),
        ("", "", ["-"] * 7),
    ],
)
def test_versions(driver, cuda, values):
    found = labels(replace(snapshot("l4"), versions=DriverVersions(driver=driver, cuda=cuda)), options())
    parts = ("full", "major", "minor", "revision")
    names = [f"cuda.driver-version.{part}" for part in parts] + [f"cuda.runtime-version.{part}" for part in parts[:3]]
    assert some(found, *names) == values
    older = ("cuda.driver.major", "cuda.driver.minor", "cuda.driver.rev", "cuda.runtime.major", "cuda.runtime.minor")
    assert some(found, *older) == [*values[1:4], *values[5:]]


def test_the_mode_is_that_of_the_product_and_unknown_without_pci():
    found = snapshot("h100:2,l4")
    modes = {found.gpus[0].uuid: "graphics", found.gpus[2].uuid: "compute"}
    assert some(labels(found, LabelOptions(modes=modes)), "gpu.mode") == ["graphics"]
    assert some(labels(found, LabelOptions()), "gpu.mode") == ["unknown"]


@pytest.mark.parametrize(
    ("brand", "present"), [("Nvidia", "false"), ("Grid", "false"), ("NvidiaVCS", "true"), ("NvidiaVWS", "true")]
)
def test_virtual_gpus(brand, present):
    assert some(labels(snapshot("l4", brand=brand), options()), "vgpu.present") == [present]


def test_A16_a_zero_fabric_is_none():
    assert some(labels(snapshot("h100:8"), options()), "gpu.clique") == ["-"]


def test_the_clique_is_that_of_all_gpus_that_have_one():
    fabric = Fabric(cluster_uuid="2e0a6b9c-3a5e-4d29-8a52-1a83c7d0f6aa", clique=3)
    found = snapshot("h100:3")
    one = replace(found, gpus=(replace(found.gpus[0], fabric=fabric), *found.gpus[1:]))
    assert some(labels(one, options()), "gpu.clique") == ["2e0a6b9c-3a5e-4d29-8a52-1a83c7d0f6aa.3"]
    other = replace(found.gpus[1], fabric=replace(fabric, clique=4))
    two = replace(found, gpus=(one.gpus[0], other, found.gpus[2]))
    assert some(labels(two, options()), "gpu.clique") == ["-"]


# --- several products -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "product", "count", "products"),
    [
        ("l4:1,h100:2", "NVIDIA-H100-80GB-HBM3", "2", "NVIDIA-H100-80GB-HBM3_NVIDIA-L4"),
        ("l4:2,h100:1", "NVIDIA-L4", "2", "NVIDIA-L4_NVIDIA-H100-80GB-HBM3"),
        ("l4:1,h100:1", "NVIDIA-H100-80GB-HBM3", "1", "NVIDIA-H100-80GB-HBM3_NVIDIA-L4"),
        ("h100:1,l4:1,h100:1", "NVIDIA-H100-80GB-HBM3", "2", "NVIDIA-H100-80GB-HBM3_NVIDIA-L4"),
        (
            "rtx-pro-6000:2,h100:1",
            "NVIDIA-RTX-PRO-6000-Blackwell-Server-Edition",
            "2",
            "RTX-PRO-6000-Blackwell-Server-Edition_H100-80GB-HBM3",
        ),
        (
            "rtx-pro-6000:3,h100:2,a100-80:1,t4:1",
            "NVIDIA-RTX-PRO-6000-Blackwell-Server-Edition",
            "3",
            "RTX-PRO-6000-Blackwell-Server-Edition_H100-80GB-HBM3_and-2-more",
        ),
    ],
)
def test_several_products(spec, product, count, products):
    found = labels(snapshot(spec), options())
    assert some(found, "gpu.product", "gpu.count", "gpu.products") == [product, count, products]


def test_the_companions_are_of_the_product():
    found = labels(snapshot("l4:2,h100:1"), options())
    assert some(found, "gpu.memory", "gpu.family", "mig.capable") == ["23034", "ada-lovelace", "true"]


def test_a_product_too_long_to_stand_beside_others_is_cut():
    found = snapshot("l4:2,t4")
    long = tuple(replace(gpu, product=gpu.product if gpu.index == 2 else "X" * 63) for gpu in found.gpus)
    assert some(labels(replace(found, gpus=long), options()), "gpu.products") == ["X" * 52 + "_and-1-more"]


# --- sharing ----------------------------------------------------------------------------------------------------------

SHARED = sharing(gpu=4)
H100 = "NVIDIA-H100-80GB-HBM3"


@pytest.mark.parametrize(
    ("shared", "expected"),
    [
        (None, [H100, "2", "1", "none", "false"]),
        (SHARED, [f"{H100}-SHARED", "2", "4", "time-slicing", "false"]),
        (sharing(gpu=4, rename=True), [H100, "2", "4", "time-slicing", "false"]),
        (sharing("mps", gpu=10), [f"{H100}-SHARED", "2", "10", "mps", "true"]),
        (sharing("mps", gpu=10, rename=True), [H100, "2", "10", "mps", "true"]),
        (sharing(**{"not-gpu": 2}), [H100, "2", "1", "none", "false"]),
    ],
)
def test_sharing(shared, expected):
    found = labels(plugins("h100:2"), options(shared=shared))
    names = ("gpu.product", "gpu.count", "gpu.replicas", "gpu.sharing-strategy", "mps.capable")
    assert some(found, *names) == expected


def test_the_suffix_survives_a_long_product():
    found = replace(plugins("l4"), gpus=tuple(replace(gpu, product="N" * 80) for gpu in plugins("l4").gpus))
    assert some(labels(found, options(shared=SHARED)), "gpu.product") == ["N" * 56 + "-SHARED"]


def test_sharing_of_the_resource_that_a_product_is_renamed_to():
    more = {"resources": {"gpus": [{"pattern": "*H100*", "name": "big"}, {"pattern": "*", "name": "gpu"}]}}
    assert some(labels(plugins("h100:2"), options(shared=sharing(big=2), **more)), "gpu.replicas") == ["2"]
    assert some(labels(plugins("l4:2"), options(shared=sharing(big=2), **more)), "gpu.replicas") == ["1"]


def test_sharing_is_the_device_plugins_alone():
    names = ("gpu.product", "gpu.replicas")
    assert some(labels(snapshot("h100:2"), options(shared=SHARED)), *names) == [H100, "1"]
    assert some(labels(plugins("h100:2", 1), options(shared=SHARED)), *names) == [f"{H100}-SHARED", "4"]


# --- MIG --------------------------------------------------------------------------------------------------------------

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


def test_a_profile_with_a_plus_is_a_dot_in_keys():
    found = labels(snapshot("h100@mig=1g.10gb+me"), options("mixed"))
    assert some(found, "mig-1g.10gb.me.count", "mig-1g.10gb.me.engines.ofa") == ["1", "1"]
    assert some(found, "mig-1g.10gb.me.product") == [f"{H100}-MIG-1g.10gbme"]


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
