"""Snapshot to ResourceSlices: what this node offers, as v1 `spec`s. Pure, deterministic, stable."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

from driver.model import names
from driver.model.device import FullGpu, MigPartition
from driver.model.shares import EXCLUSIVE, Shares
from driver.model.topology import nvlink_domains
from driver.slices.counters import counters_of, render_part, render_set, render_whole
from driver.slices.devices import Node, render, render_taints
from driver.slices.order import arrange
from driver.slices.shares import shared
from driver.slices.split import split

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from driver.model.device import Device
    from driver.model.json_object import JsonObject
    from driver.model.snapshot import Snapshot
    from driver.slices.counters import Counters


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildOptions:
    """Where the devices are (the pool has the node's name), and what the API server can hold.

    `taints` off: it drops them, so unhealthy devices are withdrawn instead. `notices` off: it takes no taints without
    effect, so they are left out. `partitions` off: it drops counters or is too old for them, so what would need them is
    not offered. `shares`: how claims share a device; exclusive where the API server drops it.
    """

    node_name: str
    taints: bool = True
    notices: bool = True
    partitions: bool = False
    shares: Shares = EXCLUSIVE


def build(snapshot: Snapshot, options: BuildOptions) -> tuple[JsonObject, ...]:
    """Return the `spec`s of all slices of the pool, in order. `pool.generation` is 1: the diff sets the right one.

    Devices come by minor number, then UUID, those of one GPU in the order in which the scheduler should try them.
    """
    devices = arrange(snapshot.devices())
    counters = _counters(devices) if options.partitions else {}
    node = Node(versions=snapshot.versions, domains=nvlink_domains(snapshot.gpus))
    offered = _offered(devices, snapshot, options, counters)
    by_gpu = [(gpu, list(some)) for gpu, some in groupby(offered, lambda one: one.gpu)]
    bodies = split(
        [[_item(device, node, snapshot, options, counters) for device in some] for _, some in by_gpu],
        counter_sets=[render_set(gpu, counters[gpu.uuid]) for gpu, _ in by_gpu if gpu.uuid in counters],
        may_taint=options.taints,
    )
    pool = {"name": options.node_name, "generation": 1, "resourceSliceCount": len(bodies)}
    fixed = {"driver": names.DRIVER, "nodeName": options.node_name}
    return tuple({**fixed, "pool": dict(pool), **body} for body in bodies)


def _counters(devices: Iterable[Device]) -> dict[str, Counters]:
    """Return the counters of the GPUs that offer partitions, by UUID."""
    cut = {device.gpu.uuid: device.gpu.mig for device in devices if isinstance(device, MigPartition)}
    found = {uuid: counters_of(mig) for uuid, mig in cut.items() if mig is not None}
    return {uuid: counters for uuid, counters in found.items() if counters is not None}


def _offered(
    devices: Iterable[Device], snapshot: Snapshot, options: BuildOptions, counters: Mapping[str, Counters]
) -> Iterator[Device]:
    """Yield what can be handed out; one that bears another's name is left out, as it would spoil the whole slice."""
    owners: dict[str, str] = {}  # UUIDs by the GPU's name, which names its counter set, too
    seen = set()
    for device in devices:
        withdrawn = not options.taints and not snapshot.health_of_device(device).healthy
        ours = owners.setdefault(device.gpu.name, device.gpu.uuid) == device.gpu.uuid
        if ours and not withdrawn and _countable(device, counters) and device.name not in seen:
            seen.add(device.name)
            yield device


def _countable(device: Device, counters: Mapping[str, Counters]) -> bool:
    if not isinstance(device, MigPartition):
        return True
    known = counters.get(device.gpu.uuid)
    return known is not None and device.profile.id in known.profiles


def _item(
    device: Device, node: Node, snapshot: Snapshot, options: BuildOptions, counters: Mapping[str, Counters]
) -> JsonObject:
    item = shared(render(device, node), options.shares)
    known = counters.get(device.gpu.uuid)
    if known is not None and isinstance(device, MigPartition):
        item["consumesCounters"] = render_part(device.gpu, known, device.profile, device.placement)
    elif known is not None and isinstance(device, FullGpu):
        item["consumesCounters"] = render_whole(device.gpu, known)
    taints = render_taints(snapshot.health_of_device(device), notices=options.notices) if options.taints else []
    return {**item, "taints": taints} if taints else item
