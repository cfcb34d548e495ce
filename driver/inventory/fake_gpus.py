"""Fake GPUs as facts: identities, PCI addresses, NVLinks and MIG devices that look like a real board's. Pure.

Everything follows from the node's name, the index of a GPU and its product: the same each time, distinct on each node.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

from driver.inventory.profiles import Product, Wiring
from driver.model.device import Fabric, Gpu, NvLink
from driver.model.mig import MigInstance, MigState

if TYPE_CHECKING:
    from collections.abc import Iterator

    from driver.inventory.fake_spec import Group, NodeSpec

_NAMESPACE = uuid.UUID("6f1de9a6-3a0a-5b1f-8c55-7d0c1f0a9b42")
_ZERO_UUID = str(uuid.UUID(int=0))

# (bus, PCIe root) of the eight slots of a board; the first four belong to socket 0, the others to socket 1.
_OWN_ROOTS = (
    (0x1B, 0x15),
    (0x43, 0x37),
    (0x52, 0x48),
    (0x61, 0x59),
    (0x9D, 0x97),
    (0xC3, 0xB7),
    (0xD1, 0xC7),
    (0xDF, 0xD7),
)
_PAIRED_ROOTS = (
    (0x07, 0x00),
    (0x0A, 0x00),
    (0x47, 0x40),
    (0x4E, 0x40),
    (0x87, 0x80),
    (0x90, 0x80),
    (0xB7, 0xB0),
    (0xBD, 0xB0),
)
_SLOTS = 8


def build_gpus(node: NodeSpec, node_name: str) -> tuple[Gpu, ...]:
    """Return the GPUs of a node, by index."""
    return tuple(gpu for start, group in _starts(node) for gpu in _group_gpus(group, start, node_name))


def gpu_uuid(node_name: str, index: int) -> str:
    """Return the UUID of a fake GPU."""
    return f"GPU-{uuid.uuid5(_NAMESPACE, f'{node_name}/{index}')}"


def mig_uuid(parent: str, generation: int, gpu_instance_id: int, compute_instance_id: int) -> str:
    """Return the UUID of a fake MIG device; a later `generation` at the same place has a new one."""
    return f"MIG-{uuid.uuid5(_NAMESPACE, f'{parent}/{generation}/{gpu_instance_id}/{compute_instance_id}')}"


def gpu_instance_id(memory_slices: int, start: int, size: int) -> int:
    """Return the GPU instance id that NVML tends to give a placement: no index, 7 to 13 for 1g of eight slices."""
    return memory_slices // size - 1 + start // size


def _starts(node: NodeSpec) -> Iterator[tuple[int, Group]]:
    start = 0
    for group in node.groups:
        yield start, group
        start += group.count


def _group_gpus(group: Group, start: int, node_name: str) -> Iterator[Gpu]:
    uuids = [gpu_uuid(node_name, start + offset) for offset in range(group.count)]
    for offset, identity in enumerate(uuids):
        index = start + offset
        bus, root = _slot(group.product, index)
        yield Gpu(
            uuid=identity,
            index=index,
            minor=index,
            product=group.product.nvml_name,
            brand=group.product.brand,
            architecture=group.product.architecture,
            compute_capability=group.product.compute_capability,
            memory=group.product.memory,
            addressing_mode=group.product.addressing_mode,
            pci_bus_id=bus,
            pcie_root=root,
            numa_node=index % _SLOTS * 2 // _SLOTS,
            nvlink=_nvlink(group, uuids, offset),
            fabric=_fabric(group.product),
            mig=_mig(group, identity),
        )


def _slot(product: Product, index: int) -> tuple[str, str]:
    """Return PCI address and root; every eight GPUs have a PCI domain of their own."""
    slots = _OWN_ROOTS if product.wiring is Wiring.NVSWITCH else _PAIRED_ROOTS
    domain, slot = divmod(index, _SLOTS)
    bus, root = slots[slot]
    return f"{domain:04x}:{bus:02x}:00.0", f"pci{domain:04x}:{root:02x}"


def _nvlink(group: Group, uuids: list[str], offset: int) -> NvLink:
    links = group.product.nvlinks
    if group.wiring is Wiring.NVSWITCH:
        return NvLink(active_links=links, switched=True)
    partner = offset ^ 1
    if group.wiring is Wiring.BRIDGE and partner < len(uuids):
        return NvLink(active_links=links, peers=((uuids[partner], links),))
    return NvLink()


def _fabric(product: Product) -> Fabric | None:
    report = product.fabric
    if report is None or report.state != "completed" or report.cluster_uuid == _ZERO_UUID:
        return None  # A16: an all-zero cluster UUID is no fabric
    return Fabric(cluster_uuid=report.cluster_uuid, clique=report.clique)


def _mig(group: Group, parent: str) -> MigState | None:
    support = group.product.mig
    if support is None:
        return None
    instances = []
    for profile, placement in group.mig or ():
        instance = gpu_instance_id(support.memory_slices, placement.start, placement.size)
        instances.append(
            MigInstance(
                uuid=mig_uuid(parent, 0, instance, 0),
                gpu_instance_id=instance,
                compute_instance_id=0,
                profile=profile,
                placement=placement,
                compute_slices=profile.compute_slices,
            )
        )
    return MigState(
        enabled=group.mig is not None,
        pending=group.mig is not None,
        switches_at_once=support.switches_at_once,
        memory_slices=support.memory_slices,
        profiles=support.profiles,
        instances=tuple(instances),
    )
