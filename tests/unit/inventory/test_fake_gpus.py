from __future__ import annotations

import re

import pytest

from driver.inventory.fake_gpus import build_gpus, gpu_instance_id
from driver.inventory.fake_spec import parse_node
from driver.inventory.profiles import load_products
from driver.model.device import Fabric, Gpu, NvLink
from driver.model.topology import nvlink_domains

UUID = re.compile(r"GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def gpus(text: str, node: str = "n1") -> tuple[Gpu, ...]:
    return build_gpus(parse_node(text, load_products()), node)


def test_identities_are_stable_and_distinct():
    first, again, other = gpus("h100:8"), gpus("h100:8"), gpus("h100:8", "n2")
    assert first == again
    uuids = [gpu.uuid for gpu in (*first, *other)]
    assert len(set(uuids)) == 16
    assert all(UUID.fullmatch(one) for one in uuids)
    assert [gpu.name for gpu in first] == [f"gpu-{index}" for index in range(8)]
    assert gpus("h100:4")[3].uuid == first[3].uuid


def test_a_board_has_two_sockets_and_no_address_twice():
    node = gpus("h100:8,l4:130")
    assert len({gpu.pci_bus_id for gpu in node}) == 138
    assert [gpu.numa_node for gpu in node[:8]] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert all(re.fullmatch(r"[0-9a-f]{4}:[0-9a-f]{2}:00\.0", gpu.pci_bus_id or "") for gpu in node)
    assert all(re.fullmatch(r"pci[0-9a-f]{4}:[0-9a-f]{2}", gpu.pcie_root or "") for gpu in node)
    assert len({gpu.pcie_root for gpu in node[:8]}) == 8


def test_boards_without_nvswitch_share_pcie_roots_in_pairs():
    node = gpus("l4:8")
    assert len({gpu.pcie_root for gpu in node}) == 4
    assert node[0].pcie_root == node[1].pcie_root


def sizes(text: str) -> list[int]:
    node = gpus(text)
    domains = nvlink_domains(node)
    return [domains[gpu.uuid].size for gpu in node]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("h100:4", [4, 4, 4, 4]),
        ("h100:4@none", [1, 1, 1, 1]),
        ("a100-80:4@pairs", [2, 2, 2, 2]),
        ("a30:3", [2, 2, 1]),  # the odd one has no partner
        ("l4:1,a30:2", [1, 2, 2]),  # pairs begin with the group
        ("l4:2,h100:2", [1, 1, 2, 2]),
    ],
)
def test_topologies(text, expected):
    assert sizes(text) == expected


def test_links():
    first, second, odd = gpus("a30:3")
    assert first.nvlink == NvLink(active_links=4, peers=((second.uuid, 4),))
    assert second.nvlink == NvLink(active_links=4, peers=((first.uuid, 4),))
    assert odd.nvlink == NvLink()
    assert gpus("h100")[0].nvlink == NvLink(active_links=18, switched=True)


@pytest.mark.parametrize("product", ["h100", "h200", "b200"])
def test_A16_an_all_zero_fabric_uuid_is_no_fabric(product):
    report = load_products()[product].fabric
    assert report is not None
    assert report.cluster_uuid.strip("0-") == ""
    assert gpus(product)[0].fabric is None


def test_a_real_fabric():
    assert gpus("gb200")[0].fabric == Fabric(cluster_uuid="5a1f3c0e-7b42-4d8e-9c65-2f0b1e6d7a90", clique=32766)


def test_mig_devices_that_exist():
    (gpu,) = gpus("h100@mig=1g.10gb*2+3g.40gb")
    assert gpu.mig is not None
    assert gpu.mig.enabled
    assert [(one.name, one.placement.start, one.gpu_instance_id) for one in gpu.mig.instances] == [
        ("1g.10gb", 0, 7),
        ("1g.10gb", 1, 8),
        ("3g.40gb", 4, 2),
    ]
    assert len({one.uuid for one in gpu.mig.instances}) == 3
    assert all(one.uuid.startswith("MIG-") for one in gpu.mig.instances)


def test_mig_modes():
    assert gpus("l4")[0].mig is None
    off, on = gpus("h100,h100@mig")
    assert off.mig is not None
    assert on.mig is not None
    assert (off.mig.enabled, on.mig.enabled) == (False, True)
    assert off.mig.profiles == on.mig.profiles
    assert on.mig.instances == ()


def test_gpu_instance_ids_are_unique_among_disjoint_placements():
    ids = {gpu_instance_id(8, start, size) for size in (8, 4, 2, 1) for start in range(0, 8, size)}
    assert len(ids) == 15
