from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from driver.model.device import Fabric, FullGpu, Gpu, MigDevice, MigPartition, NvLink
from driver.model.health import Effect, Health, Taint
from driver.model.mig import MigInstance
from driver.model.snapshot import DriverVersions
from driver.model.topology import nvlink_domains
from driver.slices.devices import Node, joined, render, render_taints
from tests.unit.slices.helpers import VERSIONS, gpus

BARE = Gpu(uuid="GPU-bare", index=0)  # a board and a driver that tell nothing

STANDARD = {
    "resource.kubernetes.io/pciBusID": "string",
    "resource.kubernetes.io/pcieRoot": "string",
    "resource.kubernetes.io/numaNode": "int",
}
COMMON = {
    "type": "string",
    "productName": "string",
    "brand": "string",
    "architecture": "string",
    "cudaComputeCapability": "version",
    "driverVersion": "version",
    "cudaDriverVersion": "version",
    "addressingMode": "string",
    "minor": "int",
}
FULL = {
    **COMMON,
    "uuid": "string",
    "driverVersionString": "string",
    "nvlinkDomain": "string",
    "nvlinkDomainSize": "int",
    "nvlinkLinks": "int",
    "fabricClusterUUID": "string",
    "fabricCliqueID": "string",
    "migCapable": "bool",
    "migProfiles": "string",
}
MIG = {**COMMON, "uuid": "string", "parentUUID": "string", "profile": "string"}
MIG_CAPACITY = ["memory", "multiprocessors", "copyEngines", "decoders", "encoders", "jpegEngines", "ofaEngines"]


def node(*found: Gpu, versions: DriverVersions = VERSIONS) -> Node:
    return Node(versions=versions, domains=nvlink_domains(found))


def show(gpu: Gpu, **about: Any) -> dict[str, Any]:
    return render(FullGpu(gpu=gpu), node(gpu, **about))


def types(item: dict[str, Any]) -> dict[str, str]:
    return {name: next(iter(value)) for name, value in item["attributes"].items()}


def value(item: dict[str, Any], name: str) -> Any:
    return next(iter(item["attributes"][name].values()))


def mig_device(spec: str = "h100@mig=1g.10gb", index: int = 0) -> MigDevice:
    gpu = gpus(spec)[0]
    assert gpu.mig is not None
    return MigDevice(gpu=gpu, instance=gpu.mig.instances[index])


def test_an_h100_shows_all_that_the_peer_shows_and_more() -> None:
    found = gpus("h100:8")
    item = render(FullGpu(gpu=found[3]), node(*found))
    assert item["name"] == "gpu-3"
    assert types(item) == {**FULL, **STANDARD}
    shown = {name: value(item, name) for name in item["attributes"]}
    assert shown["type"] == "gpu"
    assert shown["uuid"] == found[3].uuid
    assert shown["productName"] == "NVIDIA H100 80GB HBM3"
    assert (shown["brand"], shown["architecture"], shown["addressingMode"]) == ("Nvidia", "Hopper", "HMM")
    assert shown["cudaComputeCapability"] == "9.0.0"
    assert (shown["driverVersion"], shown["cudaDriverVersion"]) == ("580.105.8", "13.0.0")
    assert shown["driverVersionString"] == "580.105.08"
    assert (shown["minor"], shown["nvlinkDomainSize"], shown["nvlinkLinks"]) == (3, 8, 18)
    assert (shown["fabricClusterUUID"], shown["fabricCliqueID"]) == ("", "")
    assert shown["migCapable"] is True
    assert shown["migProfiles"].startswith("1g.10gb,")
    assert item["capacity"] == {"memory": {"value": "81559Mi"}}
    assert "taints" not in item


def test_all_gpus_of_an_nvlink_domain_bear_its_id() -> None:
    found = gpus("h100:4,l4:2")
    items = [render(FullGpu(gpu=gpu), node(*found)) for gpu in found]
    domains = [value(item, "nvlinkDomain") for item in items]
    assert len(set(domains[:4])) == 1
    assert domains[4:] == [found[4].uuid, found[5].uuid]
    assert [value(item, "nvlinkDomainSize") for item in items] == [4, 4, 4, 4, 1, 1]


def test_A6_a_gpu_that_tells_nothing_has_every_attribute_with_its_stated_value() -> None:
    item = show(BARE, versions=DriverVersions())
    assert types(item) == FULL
    assert {name: value(item, name) for name in FULL} == {
        "type": "gpu",
        "uuid": "GPU-bare",
        "productName": "Unknown",
        "brand": "Unknown",
        "architecture": "Unknown",
        "cudaComputeCapability": "0.0.0",
        "driverVersion": "0.0.0",
        "cudaDriverVersion": "0.0.0",
        "driverVersionString": "",
        "addressingMode": "Unknown",
        "minor": -1,
        "nvlinkDomain": "GPU-bare",
        "nvlinkDomainSize": 1,
        "nvlinkLinks": 0,
        "fabricClusterUUID": "",
        "fabricCliqueID": "",
        "migCapable": False,
        "migProfiles": "",
    }


@pytest.mark.parametrize("spec", ["t4", "l4", "a100-80", "h100", "b200", "gb200", "rtx-pro-6000"])
def test_A6_every_product_has_one_shape(spec: str) -> None:
    assert types(show(gpus(spec)[0])) == {**FULL, **STANDARD}


@pytest.mark.parametrize(
    ("raw", "version"),
    [
        ("6.19.14.31400000", "6.19.14+31400000"),
        ("580.105.08", "580.105.8"),
        ("570.169", "570.169.0"),
        ("", "0.0.0"),
        ("r580", "0.0.0+r580"),
    ],
)
def test_A1_any_driver_version_is_published_raw_and_as_semver(raw: str, version: str) -> None:
    item = show(BARE, versions=DriverVersions(driver=raw, cuda="13.2"))
    assert value(item, "driverVersionString") == raw
    assert value(item, "driverVersion") == version
    assert value(item, "cudaDriverVersion") == "13.2.0"


def test_A3_without_a_pcie_root_only_that_attribute_is_left_out() -> None:
    gpu = replace(gpus("h100")[0], pcie_root=None)
    assert STANDARD.keys() - types(show(gpu)).keys() == {"resource.kubernetes.io/pcieRoot"}


@pytest.mark.parametrize(
    ("change", "lost"),
    [
        ({"pci_bus_id": None}, "pciBusID"),
        ({"pci_bus_id": ""}, "pciBusID"),
        ({"pci_bus_id": "x" * 65}, "pciBusID"),
        ({"numa_node": None}, "numaNode"),
        ({"numa_node": -1}, "numaNode"),
    ],
)
def test_a_standard_attribute_is_left_out_where_it_is_no_fact(change: dict[str, Any], lost: str) -> None:
    item = show(replace(gpus("h100")[0], **change))
    assert STANDARD.keys() - types(item).keys() == {f"resource.kubernetes.io/{lost}"}


def test_A4_unknown_memory_costs_the_capacity_only() -> None:
    item = show(replace(gpus("h100")[0], memory=None))
    assert "capacity" not in item
    assert types(item) == {**FULL, **STANDARD}


def test_A16_only_a_real_fabric_is_shown() -> None:
    assert value(show(BARE), "fabricClusterUUID") == ""
    item = show(replace(BARE, fabric=Fabric(cluster_uuid="f7e3b1a2-0000-4000-8000-000000000001", clique=0)))
    assert value(item, "fabricClusterUUID") == "f7e3b1a2-0000-4000-8000-000000000001"
    assert value(item, "fabricCliqueID") == "0"


def test_P1_without_a_minor_number_the_uuid_names_it() -> None:
    item = show(replace(BARE, uuid="GPU-5F3A-1"))
    assert item["name"] == "gpu-5f3a-1"
    assert value(item, "minor") == -1


def test_nvlink_counts_active_links() -> None:
    assert value(show(replace(BARE, nvlink=NvLink(active_links=4))), "nvlinkLinks") == 4


# --- MIG -------------------------------------------------------------------------------------------------------------


def test_a_mig_device_shows_what_the_peer_shows_and_its_parents_minor() -> None:
    device = mig_device("h100@mig=3g.40gb:4+1g.10gb:0", index=1)
    item = render(device, node(device.gpu))
    assert types(item) == {**MIG, **STANDARD}
    assert value(item, "type") == "mig"
    assert value(item, "uuid") == device.instance.uuid
    assert value(item, "parentUUID") == device.gpu.uuid
    assert value(item, "profile") == device.instance.profile.name
    assert value(item, "minor") == 0
    assert list(item["capacity"])[:7] == MIG_CAPACITY


@pytest.mark.parametrize(
    ("spec", "slices"),
    [("h100@mig=1g.10gb:2", [2]), ("h100@mig=3g.40gb:4", [4, 5, 6, 7]), ("h100@mig=7g.80gb", [*range(8)])],
)
def test_a_mig_device_names_its_memory_slices(spec: str, slices: list[int]) -> None:
    device = mig_device(spec)
    capacity = render(device, node(device.gpu))["capacity"]
    assert [name for name in capacity if name not in MIG_CAPACITY] == [f"memorySlice{index}" for index in slices]
    assert all(capacity[f"memorySlice{index}"] == {"value": "1"} for index in slices)
    profile = device.instance.profile
    assert capacity["memory"] == {"value": f"{profile.memory >> 20}Mi"}
    assert capacity["copyEngines"] == {"value": str(profile.copy_engines)}


def test_twelve_memory_slices_would_pass_the_limit_and_are_left_out_together() -> None:
    device = mig_device("rtx-pro-6000@mig=4g.96gb")
    assert device.instance.placement.size == 12
    item = render(device, node(device.gpu))
    assert list(item["capacity"]) == MIG_CAPACITY
    half = mig_device("rtx-pro-6000@mig=2g.48gb")
    item = render(half, node(half.gpu))
    assert len(item["capacity"]) == 7 + 6
    assert len(item["capacity"]) + len(item["attributes"]) <= 32


def test_a_part_of_a_gpu_instance_bears_its_own_name() -> None:
    whole = mig_device("h100@mig=3g.40gb")
    part = MigInstance(
        uuid="MIG-part",
        gpu_instance_id=whole.instance.gpu_instance_id,
        compute_instance_id=1,
        profile=whole.instance.profile,
        placement=whole.instance.placement,
        compute_slices=1,
    )
    item = render(MigDevice(gpu=whole.gpu, instance=part), node(whole.gpu))
    assert value(item, "profile") == "1c.3g.40gb"
    assert item["name"] != render(whole, node(whole.gpu))["name"]


def test_a_partition_has_the_mig_devices_name_and_shape_but_no_uuid() -> None:
    device = mig_device("h100@mig=2g.20gb")
    planned = MigPartition(gpu=device.gpu, profile=device.instance.profile, placement=device.instance.placement)
    item = render(planned, node(device.gpu))
    assert item["name"] == render(device, node(device.gpu))["name"]
    assert MIG.keys() - item["attributes"].keys() == {"uuid"}
    assert list(item["capacity"]) == MIG_CAPACITY


# --- texts and taints ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a" * 64, "a" * 64),
        ("a" * 65, "a" * 64),
        ("a" * 63 + "\N{LATIN SMALL LETTER E WITH ACUTE}", "a" * 63),
        ("\N{SNOWMAN}" * 22, "\N{SNOWMAN}" * 21),
        ("\ud800", "?"),
    ],
)
def test_strings_are_cut_to_64_bytes_at_a_characters_end(text: str, shown: str) -> None:
    assert value(show(replace(BARE, product=text)), "productName") == shown


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ([], ""),
        (["a"], "a"),
        (["a" * 32, "b" * 31], "a" * 32 + "," + "b" * 31),
        (["a" * 32, "b" * 32], "a" * 32),
        (["a" * 65, "b"], ""),
    ],
)
def test_words_are_joined_while_they_fit_whole(words: list[str], text: str) -> None:
    assert joined(words) == text


def test_taints_come_the_most_severe_first() -> None:
    health = Health(
        healthy=False,
        taints=(
            Taint("gpu.nvidia.com/unmonitored", "", Effect.NONE),
            Taint("gpu.nvidia.com/xid", "79", Effect.NO_SCHEDULE),
            Taint("gpu.nvidia.com/gpu-lost", "", Effect.NO_EXECUTE),
        ),
    )
    assert render_taints(health) == [
        {"key": "gpu.nvidia.com/gpu-lost", "effect": "NoExecute"},
        {"key": "gpu.nvidia.com/xid", "value": "79", "effect": "NoSchedule"},
        {"key": "gpu.nvidia.com/unmonitored", "effect": "None"},
    ]


def test_at_most_16_taints_and_the_severe_ones_stay() -> None:
    mild = tuple(Taint("a.com/mild", str(number), Effect.NONE) for number in range(20))
    shown = render_taints(Health(taints=(*mild, Taint("z.com/bad", "", Effect.NO_EXECUTE))))
    assert len(shown) == 16
    assert shown[0]["key"] == "z.com/bad"


@pytest.mark.parametrize(
    ("value_", "shown"), [("a b", "a-b"), ("-x-", "x"), ("", None), ("v" * 70, "v" * 63), ("\N{SNOWMAN}", None)]
)
def test_a_taints_value_is_made_a_label_value(value_: str, shown: str | None) -> None:
    (taint,) = render_taints(Health(taints=(Taint("a.com/k", value_, Effect.NONE),)))
    assert taint.get("value") == shown


@pytest.mark.parametrize("key", ["", "a b", "UPPER.com/k", "a.com/", "a.com/k/l"])
def test_a_taint_with_a_bad_key_costs_itself_only(key: str) -> None:
    taints = (Taint(key, "", Effect.NONE), Taint("a.com/k", "", Effect.NONE))
    assert [taint["key"] for taint in render_taints(Health(taints=taints))] == ["a.com/k"]
