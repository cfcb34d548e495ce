"""Reading NVLink and the fabric from NVML."""

from __future__ import annotations

import ctypes
import uuid
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from driver.inventory.nvml_query import ABSENT, INVALID_ARGUMENT, NOT_FOUND, GpuQuery
from driver.model import names
from driver.model.device import Fabric, NvLink

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

NO_LINK = (*ABSENT, INVALID_ARGUMENT)
"""What drivers say, one or the other, of a link beyond the last one."""

NO_FABRIC = (*ABSENT, "NVML_ERROR_NOT_READY")
"""What drivers say where there is no fabric."""

_NO_REMOTE = (*NO_LINK, NOT_FOUND)


@dataclass(frozen=True, slots=True)
class Link:
    """An active NVLink: whether it ends at an NVSwitch, and the PCI bus id of what is at its end, if known."""

    to_switch: bool
    remote: str | None


def read_links(gpu: GpuQuery) -> tuple[Link, ...]:
    """Return a GPU's active links. Which numbers exist is not said: active ones may follow absent ones."""
    return tuple(_active_links(gpu))


def _active_links(gpu: GpuQuery) -> Iterator[Link]:
    for number in range(gpu.api.NVML_NVLINK_MAX_LINKS):
        if gpu.ask_or(0, "nvmlDeviceGetNvLinkState", number, absent=NO_LINK) != gpu.api.NVML_FEATURE_ENABLED:
            continue
        kind = gpu.ask_or(None, "nvmlDeviceGetNvLinkRemoteDeviceType", number, absent=_NO_REMOTE)
        remote = gpu.ask_or(None, "nvmlDeviceGetNvLinkRemotePciInfo", number, absent=_NO_REMOTE)
        yield Link(
            to_switch=kind == gpu.api.NVML_NVLINK_DEVICE_TYPE_SWITCH,
            remote=names.pci_bus_id(remote.busId) if remote is not None else None,
        )


def nvlink(links: tuple[Link, ...], uuids: Mapping[str, str]) -> NvLink:
    """Make the GPU's view of its links; `uuids` maps the PCI bus ids of the node's GPUs to their UUIDs."""
    peers = Counter(uuids[link.remote] for link in links if link.remote is not None and link.remote in uuids)
    return NvLink(
        active_links=len(links),
        peers=tuple(sorted(peers.items())),
        switched=any(link.to_switch for link in links),
    )


def read_fabric(gpu: GpuQuery) -> Fabric | None:
    """Return the fabric that a GPU has joined; a zero cluster UUID is none, even if 'Completed' (A16)."""
    info = gpu.api.c_nvmlGpuFabricInfo_v2_t()
    if gpu.ask_or(None, "nvmlDeviceGetGpuFabricInfoV", ctypes.byref(info), absent=NO_FABRIC) is None:
        return None
    cluster = uuid.UUID(bytes=bytes(info.clusterUuid))
    joined = info.state == gpu.api.NVML_GPU_FABRIC_STATE_COMPLETED and info.status == gpu.api.NVML_SUCCESS
    return Fabric(cluster_uuid=str(cluster), clique=info.cliqueId) if joined and cluster.int else None
