"""The label sets of NVIDIA's feature discovery, case by case."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

import pytest

from driver.labels import LabelOptions, labels
from driver.model.device import Fabric
from driver.model.health import LOST
from driver.model.health_facts import Fact, Kind
from driver.model.health_rules import judge
from driver.model.snapshot import DriverVersions, Snapshot
from tests.unit.labels.helpers import H100, SHARED, options, plugins, sharing, some
from tests.unit.slices.helpers import snapshot

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
        ((13, 0), "rubin"),
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
