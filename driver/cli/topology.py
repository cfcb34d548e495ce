"""The topology matrix: how each pair of GPUs is connected, in the words of `nvidia-smi topo -m`."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from driver.model.device import Gpu

LEGEND = """\
X     itself
NV#   # NVLinks, to each other or to the NVSwitches that connect both
PHB   below the same PCIe root, so through a host bridge or closer
NODE  below different PCIe roots of the same NUMA node
SYS   across NUMA nodes
?     not known"""


def matrix(gpus: Sequence[Gpu]) -> list[list[str]]:
    """Return a line of cells for each GPU, one cell for each GPU."""
    return [["X" if one is other else connection(one, other) for other in gpus] for one in gpus]


def connection(one: Gpu, other: Gpu) -> str:
    """Say how two GPUs are connected, by their best way."""
    links = dict(one.nvlink.peers).get(other.uuid, 0)
    if not links and one.nvlink.switched and other.nvlink.switched:
        links = min(one.nvlink.active_links, other.nvlink.active_links)
    if links:
        return f"NV{links}"
    if one.pcie_root is not None and one.pcie_root == other.pcie_root:
        return "PHB"
    if one.numa_node is None or other.numa_node is None:
        return "?"
    return "NODE" if one.numa_node == other.numa_node else "SYS"
