"""A device as a ResourceSlice shows it: attributes, capacity, taints. Pure.

Names and types of the attributes that NVIDIA's driver has are its own, so that people's selectors run unchanged. Every
device of a type carries every one of our own attributes, since a selector that touches a missing one is a scheduling
error. What the hardware can't tell has a stated value:

====================================== ==============================================
`brand`, `productName`, `architecture` `Unknown`, as the inventory says
`addressingMode`                       `Unknown`
`cudaComputeCapability`                `0.0.0`
`driverVersion`, `cudaDriverVersion`   `0.0.0`; `driverVersionString` is empty
`minor`                                -1: the GPU has no minor number (WSL)
`fabricClusterUUID`, `fabricCliqueID`  empty: not attached to a fabric
`migProfiles`                          empty: none
====================================== ==============================================

The standard `resource.kubernetes.io/…` attributes are left out where the node has no such fact, and so is a capacity
that can't be read.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from driver.model.device import FullGpu, MigDevice
from driver.model.health import Effect, ordered
from driver.model.quantity import binary_si
from driver.model.version import semver
from driver.model.wording import cut

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from driver.model.device import Device, Gpu, MigPartition
    from driver.model.health import Health, Taint
    from driver.model.json_object import JsonObject
    from driver.model.mig import MigProfile, Placement
    from driver.model.snapshot import DriverVersions
    from driver.model.topology import NvLinkDomain

STANDARD = "resource.kubernetes.io"
STRING_LIMIT = 64  # bytes of an attribute's string
FACTS_LIMIT = 32  # attributes and capacities of a device

_LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?", re.ASCII)
_TAINT_KEY = re.compile(r"([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """What a device's attributes say about the node around it."""

    versions: DriverVersions
    domains: Mapping[str, NvLinkDomain]  # by GPU UUID


def render(device: Device, node: Node) -> JsonObject:
    """Return the device as `spec.devices[]` of a v1 ResourceSlice, without taints."""
    if isinstance(device, FullGpu):
        attributes, capacity = _full(device.gpu, node), _memory(device.gpu.memory)
    elif isinstance(device, MigDevice):
        attributes, capacity = _mig_device(device, node), _mig_capacity(device.instance.profile)
        _add_slices(capacity, device.instance.placement, room=FACTS_LIMIT - len(attributes) - len(capacity) - 1)
    else:
        attributes, capacity = _partition(device, node), _mig_capacity(device.profile)
    return _with_capacity({"name": device.name, "attributes": attributes}, capacity)


def render_taints(health: Health, *, notices: bool = True) -> list[JsonObject]:
    """Return the taints, the heaviest first; a value that no label may have is made one, a bad key is left out.

    Without `notices`, those without effect are left out.
    """
    taints = {one for one in health.taints if notices or one.effect is not Effect.NONE}
    return [_taint(one) for one in ordered({one for one in taints if _TAINT_KEY.fullmatch(one.key)})]


def joined(words: Iterable[str], limit: int = STRING_LIMIT) -> str:
    """Join with commas as many whole words as fit."""
    text = ""
    for word in words:
        longer = f"{text},{word}" if text else word
        if len(longer.encode(errors="replace")) > limit:
            break
        text = longer
    return text


def _full(gpu: Gpu, node: Node) -> JsonObject:
    domain = node.domains.get(gpu.uuid)
    mig = gpu.mig
    return {
        "type": _string("gpu"),
        "uuid": _string(gpu.uuid),
        **_common(gpu, node),
        "driverVersionString": _string(node.versions.driver),
        "nvlinkDomain": _string(domain.id if domain is not None else gpu.uuid),
        "nvlinkDomainSize": {"int": domain.size if domain is not None else 1},
        "nvlinkLinks": {"int": gpu.nvlink.active_links},
        "fabricClusterUUID": _string(gpu.fabric.cluster_uuid if gpu.fabric is not None else ""),
        "fabricCliqueID": _string(str(gpu.fabric.clique) if gpu.fabric is not None else ""),
        "migCapable": {"bool": mig is not None},
        "migProfiles": _string(joined(profile.name for profile in mig.profiles) if mig is not None else ""),
        **_standard(gpu),
    }


def _mig_device(device: MigDevice, node: Node) -> JsonObject:
    own = {"uuid": _string(device.instance.uuid), "profile": _string(device.instance.name)}
    return {**own, **_mig(device.gpu, node)}


def _partition(device: MigPartition, node: Node) -> JsonObject:
    """Describe what could be made: it has no UUID yet, and gets another at each creation."""
    return {"profile": _string(device.profile.name), **_mig(device.gpu, node)}


def _mig(gpu: Gpu, node: Node) -> JsonObject:
    return {"type": _string("mig"), "parentUUID": _string(gpu.uuid), **_common(gpu, node), **_standard(gpu)}


def _common(gpu: Gpu, node: Node) -> JsonObject:
    major, minor = gpu.compute_capability
    return {
        "productName": _string(gpu.product),
        "brand": _string(gpu.brand),
        "architecture": _string(gpu.architecture),
        "cudaComputeCapability": {"version": semver(f"{major}.{minor}")},
        "driverVersion": {"version": semver(node.versions.driver)},
        "cudaDriverVersion": {"version": semver(node.versions.cuda)},
        "addressingMode": _string(gpu.addressing_mode),
        "minor": {"int": gpu.minor if gpu.minor is not None else -1},
    }


def _standard(gpu: Gpu) -> JsonObject:
    facts: JsonObject = {}
    for name, text in (("pciBusID", gpu.pci_bus_id), ("pcieRoot", gpu.pcie_root)):
        if text and len(text.encode(errors="replace")) <= STRING_LIMIT:  # a part of an address would be a wrong one
            facts[f"{STANDARD}/{name}"] = _string(text)
    if gpu.numa_node is not None and gpu.numa_node >= 0:
        facts[f"{STANDARD}/numaNode"] = {"int": gpu.numa_node}
    return facts


def _memory(memory: int | None) -> JsonObject:
    return {"memory": _quantity(memory)} if memory is not None else {}


def _mig_capacity(profile: MigProfile) -> JsonObject:
    return {
        "memory": _quantity(profile.memory),
        "multiprocessors": _quantity(profile.multiprocessors),
        "copyEngines": _quantity(profile.copy_engines),
        "decoders": _quantity(profile.decoders),
        "encoders": _quantity(profile.encoders),
        "jpegEngines": _quantity(profile.jpeg_engines),
        "ofaEngines": _quantity(profile.ofa_engines),
    }


def _add_slices(capacity: JsonObject, placement: Placement, *, room: int) -> None:
    """Name the memory slices, all of them or none: on a board with 12 they would pass the API's limit.

    One place is kept for the capacity `shares`.
    """
    if placement.size <= room:
        capacity.update({f"memorySlice{index}": _quantity(1) for index in placement.slices})


def _with_capacity(item: JsonObject, capacity: JsonObject) -> JsonObject:
    return {**item, "capacity": capacity} if capacity else item


def _taint(taint: Taint) -> JsonObject:
    value = taint.value
    if not _LABEL_VALUE.fullmatch(value):
        value = re.sub(r"[^-A-Za-z0-9_.]", "-", value, flags=re.ASCII)[:63].strip("-_.")
    shown = {"key": taint.key, "value": value, "effect": str(taint.effect)}
    return {key: text for key, text in shown.items() if text}


def _string(text: str) -> JsonObject:
    return {"string": cut(text, STRING_LIMIT)}


def _quantity(number: int) -> JsonObject:
    return {"value": binary_si(number)}
