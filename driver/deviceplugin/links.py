"""How close the GPUs of a node are to each other, once per Snapshot: choosing GPUs asks nothing of NVML (H9). Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from driver.model.topology import nvlink_domains

if TYPE_CHECKING:
    from collections.abc import Sequence

    from driver.model.device import Gpu

_DIRECT = 10  # for each NVLink between two GPUs
_SAME_DOMAIN = 1  # reachable over other GPUs' NVLinks
_SAME_ROOT = 3
_SAME_NUMA = 2


class Links:
    """Closeness of GPUs, by their UUIDs: `joined` by NVLink, `near` by PCIe and NUMA; 0 for those not known."""

    def __init__(self, gpus: Sequence[Gpu]) -> None:
        domains = nvlink_domains(gpus)
        self._joined: dict[tuple[str, str], int] = {}
        self._near: dict[tuple[str, str], int] = {}
        for one in gpus:
            for other in gpus:
                if one.uuid != other.uuid:
                    pair = (one.uuid, other.uuid)
                    self._joined[pair] = _joined(one, other, domains[one.uuid].id == domains[other.uuid].id)
                    self._near[pair] = _near(one, other)

    def joined(self, one: str, other: str) -> int:
        """Return how well two GPUs are joined by NVLink; a switch joins everybody on it."""
        return self._joined.get((one, other), 0)

    def near(self, one: str, other: str) -> int:
        """Return how near two GPUs are otherwise."""
        return self._near.get((one, other), 0)


def _joined(one: Gpu, other: Gpu, same_domain: bool) -> int:
    links = dict(one.nvlink.peers).get(other.uuid, 0)
    if one.nvlink.switched and other.nvlink.switched:
        links = max(links, min(one.nvlink.active_links, other.nvlink.active_links), 1)
    return links * _DIRECT + (_SAME_DOMAIN if same_domain else 0)


def _near(one: Gpu, other: Gpu) -> int:
    same_root = one.pcie_root is not None and one.pcie_root == other.pcie_root
    same_numa = one.numa_node is not None and one.numa_node == other.numa_node
    return (_SAME_ROOT if same_root else 0) + (_SAME_NUMA if same_numa else 0)
