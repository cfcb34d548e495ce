from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from driver.errors import InvalidValueError
from driver.inventory import profiles
from driver.inventory.profiles import Wiring, decode_product, find_product, load_products, load_profile
from driver.model.quantity import MI

if TYPE_CHECKING:
    from driver.model.mig import MigProfile

SHIPPED = Path(profiles.__file__).with_name("profiles")
FACTS = {  # product: NVML name, architecture, capability, MiB, PCI id, SMs, links
    "t4": ("Tesla T4", "Turing", (7, 5), 15360, 0x1EB8, 40, 0),
    "l4": ("NVIDIA L4", "Ada Lovelace", (8, 9), 23034, 0x27B8, 58, 0),
    "l40s": ("NVIDIA L40S", "Ada Lovelace", (8, 9), 46068, 0x26B9, 142, 0),
    "a10": ("NVIDIA A10", "Ampere", (8, 6), 23028, 0x2236, 72, 0),
    "a30": ("NVIDIA A30", "Ampere", (8, 0), 24576, 0x20B7, 56, 4),
    "a100-40": ("NVIDIA A100-SXM4-40GB", "Ampere", (8, 0), 40960, 0x20B0, 108, 12),
    "a100-80": ("NVIDIA A100-SXM4-80GB", "Ampere", (8, 0), 81920, 0x20B2, 108, 12),
    "h100": ("NVIDIA H100 80GB HBM3", "Hopper", (9, 0), 81559, 0x2330, 132, 18),
    "h100-pcie": ("NVIDIA H100 PCIe", "Hopper", (9, 0), 81559, 0x2331, 114, 12),
    "h200": ("NVIDIA H200", "Hopper", (9, 0), 143771, 0x2335, 132, 18),
    "b200": ("NVIDIA B200", "Blackwell", (10, 0), 183359, 0x2901, 148, 18),
    "gb200": ("NVIDIA GB200", "Blackwell", (10, 0), 189471, 0x2941, 152, 18),
    "rtx-pro-6000": ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "Blackwell", (12, 0), 97887, 0x2BB5, 188, 0),
}
MIG_NAMES = {
    "a30": "1g.6gb 1g.6gb+me 2g.12gb 2g.12gb+me 4g.24gb",
    "a100-40": "1g.5gb 1g.5gb+me 1g.10gb 2g.10gb 3g.20gb 4g.20gb 7g.40gb",
    "a100-80": "1g.10gb 1g.10gb+me 1g.20gb 2g.20gb 3g.40gb 4g.40gb 7g.80gb",
    "h100": "1g.10gb 1g.10gb+me 1g.20gb 2g.20gb 3g.40gb 4g.40gb 7g.80gb",
    "h100-pcie": "1g.10gb 1g.10gb+me 1g.20gb 2g.20gb 3g.40gb 4g.40gb 7g.80gb",
    "h200": "1g.18gb 1g.18gb+me 1g.35gb 2g.35gb 3g.71gb 4g.71gb 7g.141gb",
    "b200": "1g.23gb 1g.23gb+me 1g.45gb 2g.45gb 3g.90gb 4g.90gb 7g.180gb",
    "gb200": "1g.23gb 1g.23gb+me 1g.47gb 2g.47gb 3g.93gb 4g.93gb 7g.186gb",
    "rtx-pro-6000": "1g.24gb 2g.48gb 4g.96gb",
}
MIG_FAMILY_OF_SEVEN = [  # id, NVML's profile index, at most, starts:size
    (19, 0, 7, "0,1,2,3,4,5,6:1"),
    (20, 7, 1, "0,1,2,3,4,5,6:1"),
    (15, 9, 4, "0,2,4,6:2"),
    (14, 1, 3, "0,2,4:2"),
    (9, 2, 2, "0,4:4"),
    (5, 3, 1, "0:4"),
    (0, 4, 1, "0:8"),
]
MIG_FAMILIES = {
    "a30": [(14, 0, 4, "0,1,2,3:1"), (21, 7, 1, "0,1,2,3:1"), (5, 1, 2, "0,2:2"), (6, 8, 1, "0,2:2"), (0, 3, 1, "0:4")],
    "rtx-pro-6000": [(14, 0, 4, "0,3,6,9:3"), (5, 1, 2, "0,6:6"), (0, 3, 1, "0:12")],
}
MIG_SIZES = {  # MiB/SM/copy/decoder/jpeg/ofa of each profile, in the order of MIG_NAMES; what is published of the GB200
    "a30": "5952/14/1/0/0/0 5952/14/1/1/1/1 11968/28/2/2/0/0 11968/28/2/2/1/1 24000/56/4/4/1/1",
    "a100-40": "4864/14/1/0/0/0 4864/14/1/1/1/1 9984/14/1/1/0/0 9984/28/2/1/0/0 20096/42/3/2/0/0 20096/56/4/2/0/0 "
    "40320/98/7/5/1/1",
    "a100-80": "9728/14/1/0/0/0 9728/14/1/1/1/1 19968/14/1/1/0/0 19968/28/2/1/0/0 40192/42/3/2/0/0 40192/56/4/2/0/0 "
    "80896/98/7/5/1/1",
    "h100": "9984/16/1/1/1/0 9984/16/1/1/1/1 20096/26/1/1/1/0 20096/32/2/2/2/0 40448/60/3/3/3/0 40448/64/4/4/4/0 "
    "81152/132/8/7/7/1",
    "h100-pcie": "9984/14/1/1/1/0 9984/14/1/1/1/1 20096/14/1/1/1/0 20096/30/2/2/2/0 40448/46/3/3/3/0 40448/62/4/4/4/0 "
    "81152/114/8/7/7/1",
    "h200": "16384/16/1/1/1/0 16384/16/1/1/1/1 33024/26/1/1/1/0 33024/32/2/2/2/0 71168/60/3/3/3/0 71168/64/4/4/4/0 "
    "143360/132/8/7/7/1",
    "b200": "20992/18/2/1/1/0 20992/18/2/1/1/1 45312/30/2/1/1/0 45312/36/4/2/2/0 91136/70/6/3/3/0 91136/72/8/4/4/0 "
    "182784/148/16/7/7/1",
    "gb200": "22528/18/2/1/1/0 22528/18/2/1/1/1 46592/32/2/1/1/0 46592/38/4/2/2/0",
}


def raw(name: str = "h100") -> dict[str, Any]:
    value = yaml.safe_load((SHIPPED / f"{name}.yaml").read_text())
    assert isinstance(value, dict)
    return value


def test_all_products_are_shipped():
    assert sorted(load_products()) == sorted(FACTS)


@pytest.mark.parametrize("name", FACTS)
def test_facts(name):
    product = load_products()[name]
    memory = FACTS[name][3] * MI
    assert (
        product.nvml_name,
        product.architecture,
        product.compute_capability,
        product.memory // MI,
        product.pci_device_id,
        product.multiprocessors,
        product.nvlinks,
    ) == FACTS[name]
    assert product.memory == memory
    assert product.brand == "Nvidia"


@pytest.mark.parametrize("name", FACTS)
def test_M4_only_some_products_have_mig(name):
    mig = load_products()[name].mig
    names = " ".join(one.name for one in mig.profiles) if mig else None
    assert names == MIG_NAMES.get(name)


def placed(profile: MigProfile) -> tuple[int, int, int, str]:
    starts = ",".join(str(one.start) for one in profile.placements)
    (size,) = {one.size for one in profile.placements}
    return profile.id, profile.index, profile.max_instances, f"{starts}:{size}"


@pytest.mark.parametrize("name", MIG_NAMES)
def test_where_mig_profiles_lie(name):
    mig = load_products()[name].mig
    assert mig is not None
    assert [placed(one) for one in mig.profiles] == MIG_FAMILIES.get(name, MIG_FAMILY_OF_SEVEN)


@pytest.mark.parametrize("name", MIG_SIZES)
def test_mig_sizes(name):
    mig = load_products()[name].mig
    assert mig is not None
    sizes = [
        (one.memory // MI, one.multiprocessors, one.copy_engines, one.decoders, one.jpeg_engines, one.ofa_engines)
        for one in mig.profiles
    ]
    known = MIG_SIZES[name].split()
    assert ["/".join(map(str, size)) for size in sizes][: len(known)] == known
    assert {one.encoders for one in mig.profiles} == {0}


@pytest.mark.parametrize(
    ("name", "memory", "multiprocessors"),
    [("1g.24gb", 24192, 46), ("2g.48gb", 48512, 94), ("4g.96gb", 97408, 188)],
)
def test_mig_sizes_of_twelve_memory_slices(name, memory, multiprocessors):
    mig = load_products()["rtx-pro-6000"].mig
    assert mig is not None
    one = mig.profile(name)
    assert one is not None
    assert (one.memory // MI, one.multiprocessors) == (memory, multiprocessors)


@pytest.mark.parametrize(
    ("name", "mode"),
    [("t4", "HMM"), ("l40s", "HMM"), ("a100-40", "HMM"), ("h100", "HMM"), ("b200", "None"), ("gb200", "ATS")],
)
def test_addressing_modes(name, mode):
    assert load_products()[name].addressing_mode == mode


def test_M5_profiles_are_matched_exactly():
    mig = load_products()["h100"].mig
    assert mig is not None
    plain, media = mig.profile("1g.10gb"), mig.profile("1g.10gb+me")
    assert plain is not None
    assert media is not None
    assert (plain.id, media.id) == (19, 20)
    assert mig.profile("1g.10gb+m") is None


@pytest.mark.parametrize("name", [name for name, facts in FACTS.items() if facts[6]])
def test_wiring(name):
    bridged = name in ("a30", "h100-pcie")
    assert load_products()[name].wiring is (Wiring.BRIDGE if bridged else Wiring.NVSWITCH)


def test_only_hopper_and_later_switch_mig_at_once():
    slow = {name for name, one in load_products().items() if one.mig and not one.mig.switches_at_once}
    assert slow == {"a30", "a100-40", "a100-80"}


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"memory_mb": 3}, "memory_mb"),
        ({"memory_mib": "81559"}, "memory_mib"),
        ({"memory_mib": True}, "memory_mib"),
        ({"memory_mib": -1}, "memory_mib"),
        ({"pci_device_id": 2330}, "pci_device_id"),
        ({"pci_device_id": "0x2330"}, "pci_device_id"),
        ({"compute_capability": 9.0}, "compute_capability"),
        ({"compute_capability": "nine"}, "compute_capability"),
        ({"nvml_name": ""}, "nvml_name"),
        ({"name": "H 100"}, "name"),
        ({"addressing_mode": None}, "addressing_mode"),
        ({"driver_version": "latest"}, "driver_version"),
        ({"cuda_version": 13.0}, "cuda_version"),
        ({"nvlink": {"links": 18, "wiring": "none"}}, "nvlink.wiring"),
        ({"nvlink": {"links": 0, "wiring": "nvswitch"}}, "nvlink.wiring"),
        ({"nvlink": []}, "nvlink"),
        ({"fabric": {"state": "done", "cluster_uuid": "x", "clique": 0}}, "fabric.state"),
        ({"fabric": {"state": "completed", "cluster_uuid": "x", "clique": 0}}, "fabric.cluster_uuid"),
        ({"mig": {"memory_slices": 8, "mode_change": "at_once"}}, "mig.profiles"),
        ({"mig": {"memory_slices": 8, "mode_change": "at_once", "profiles": {}}}, "mig.profiles"),
    ],
)
def test_a_bad_profile_names_file_and_field(change, field):
    with pytest.raises(InvalidValueError) as caught:
        decode_product({**raw(), **change}, "mine.yaml")
    assert caught.value.path == f"mine.yaml: {field}"


@pytest.mark.parametrize(
    ("position", "change", "field"),
    [
        (0, {"starts": [7, 8], "size": 1}, "starts[1]"),  # beyond the eight slices
        (0, {"starts": [0, 0]}, "starts"),
        (0, {"starts": []}, "starts"),
        (0, {"starts": [0, "1"]}, "starts[1]"),
        (4, {"size": 9}, "size"),
        (0, {"memory_mib": 81560}, "memory_mib"),
        (0, {"memory_mib": 40448}, "name"),  # such a size is called 1g.40gb
        (0, {"name": "1g.11gb"}, "name"),
        (0, {"compute_slices": 2}, "name"),
        (0, {"max_instances": 8}, "max_instances"),
        (0, {"multiprocessors": 133}, "multiprocessors"),
        (1, {"id": 19}, "id"),
        (1, {"index": 0}, "index"),
        (1, {"name": "1g.10gb"}, "name"),
        (2, {"decoders": None}, "decoders"),
        (3, {"speed": 1}, "speed"),
    ],
)
def test_an_impossible_mig_profile_is_refused(position, change, field):
    value = deepcopy(raw())
    value["mig"]["profiles"][position].update(change)
    with pytest.raises(InvalidValueError) as caught:
        decode_product(value, "mine.yaml")
    assert caught.value.path == f"mine.yaml: mig.profiles[{position}].{field}"


@pytest.mark.parametrize("field", ["name", "memory_mib", "nvlink", "fabric", "mig"])
def test_a_missing_field_is_named(field):
    value = raw()
    del value[field]
    with pytest.raises(InvalidValueError, match=f"mine.yaml: {field}: .* this field is required"):
        decode_product(value, "mine.yaml")


def test_the_nearest_field_is_suggested():
    with pytest.raises(InvalidValueError, match="did you mean 'memory_mib'"):
        decode_product({**raw(), "memory_mb": 3}, "mine.yaml")


def test_users_add_and_replace_products(tmp_path):
    (tmp_path / "h100-96.yaml").write_text(
        yaml.safe_dump({**raw("l4"), "name": "h100-96", "nvml_name": "NVIDIA H100 96GB"})
    )
    (tmp_path / "l4.yaml").write_text(yaml.safe_dump({**raw("l4"), "multiprocessors": 60}))
    products = load_products(tmp_path)
    assert products["h100-96"].nvml_name == "NVIDIA H100 96GB"
    assert products["l4"].multiprocessors == 60
    assert products["t4"].name == "t4"
    assert load_products()["l4"].multiprocessors == 58


def test_the_files_name_is_the_products_name(tmp_path):
    file = tmp_path / "other.yaml"
    file.write_text(yaml.safe_dump(raw()))
    with pytest.raises(InvalidValueError, match=r"other.yaml: name: .*'h100'"):
        load_profile(file)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"name: [", r"bad.yaml:2:1: .*is no valid YAML: "),
        (b"name: h100\nname: h200\n", r"bad.yaml:2:1: .*there twice"),
        (b"\xff\xfe", "is no UTF-8 text"),
        (b"", "a mapping of field names"),
        (b"- a\n", "a mapping of field names"),
        (b"!!python/object/apply:os.system ['true']", "is no valid YAML: could not"),
        (b"a: " + b"[" * 5000, "is no valid YAML"),
        (b"#" * (1 << 20) + b"#", "has 1048577 bytes"),
        (b"1: 2\n", "a mapping of field names"),
    ],
)
def test_an_unreadable_profile_is_named(tmp_path, content, message):
    file = tmp_path / "bad.yaml"
    file.write_bytes(content)
    with pytest.raises(InvalidValueError, match=message) as caught:
        load_products(tmp_path)
    assert str(file) in str(caught.value)


def test_a_profiles_directory_must_exist(tmp_path):
    with pytest.raises(InvalidValueError, match=r"^--profiles-dir: .*/none.: must be a directory"):
        load_products(tmp_path / "none", "--profiles-dir")


def test_an_unknown_product_names_the_nearest_and_all():
    with pytest.raises(InvalidValueError, match=r"did you mean 'h100'\? \(known: a10, a100-40") as caught:
        find_product(load_products(), "H-100", "--gpus")
    assert caught.value.path == "--gpus"
