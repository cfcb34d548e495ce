from __future__ import annotations

import pytest

from driver.cli.topology import connection, matrix
from driver.model.device import Gpu, NvLink

SWITCHED = NvLink(active_links=18, switched=True)


def gpu(index: int, **facts: object) -> Gpu:
    return Gpu(uuid=f"GPU-{index}", index=index, minor=index, **facts)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        (gpu(0, nvlink=SWITCHED), gpu(1, nvlink=SWITCHED), "NV18"),
        (gpu(0, nvlink=SWITCHED), gpu(1, nvlink=NvLink(active_links=4, switched=True)), "NV4"),
        (gpu(0, nvlink=NvLink(active_links=4, peers=(("GPU-1", 4),))), gpu(1), "NV4"),
        (gpu(0, nvlink=NvLink(active_links=4, peers=(("GPU-2", 4),))), gpu(1, numa_node=0), "?"),
        (gpu(0, nvlink=SWITCHED, numa_node=0), gpu(1, numa_node=1), "SYS"),
        (gpu(0, pcie_root="pci0000:40", numa_node=0), gpu(1, pcie_root="pci0000:40", numa_node=0), "PHB"),
        (gpu(0, pcie_root="pci0000:40", numa_node=0), gpu(1, pcie_root="pci0000:80", numa_node=0), "NODE"),
        (gpu(0, pcie_root=None, numa_node=0), gpu(1, pcie_root=None, numa_node=0), "NODE"),
        (gpu(0, numa_node=0), gpu(1, numa_node=1), "SYS"),
        (gpu(0), gpu(1), "?"),
    ],
)
def test_the_best_connection_counts(one, other, expected):
    assert connection(one, other) == expected


def test_the_matrix():
    assert matrix([gpu(0, numa_node=0), gpu(1, numa_node=1)]) == [["X", "SYS"], ["SYS", "X"]]
    assert matrix([]) == []
