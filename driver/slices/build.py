"""Snapshot to ResourceSlices: what this node offers, as v1 `spec`s. Pure, deterministic, stable."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from driver.model import names
from driver.model.device import MigPartition
from driver.model.topology import nvlink_domains
from driver.slices.devices import Node, render, render_taints
from driver.slices.split import split

if TYPE_CHECKING:
    from collections.abc import Iterator

    from driver.model.device import Device, Gpu
    from driver.model.snapshot import Snapshot

JsonObject = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildOptions:
    """Where the devices are, and what the API server can hold.

    `taints` off: it drops them, so unhealthy devices are withdrawn instead. `partitions` off: it drops counters or is
    too old for them, so what would need them is not offered.
    """

    node_name: str
    pool: str = ""  # the node's name if empty
    driver: str = field(default=names.DRIVER)
    taints: bool = True
    partitions: bool = False

    @property
    def pool_name(self) -> str:
        """The pool's name."""
        return self.pool or self.node_name


def build(snapshot: Snapshot, options: BuildOptions) -> tuple[JsonObject, ...]:
    """Return the `spec`s of all slices of the pool, in order. `pool.generation` is 1: the diff sets the right one.

    Devices come by minor number, then UUID: it is the order in which the scheduler tries them.
    """
    node = Node(versions=snapshot.versions, domains=nvlink_domains(snapshot.gpus))
    rendered = [_with_taints(render(device, node), snapshot, device, options) for device in _offered(snapshot, options)]
    bodies = split(rendered, may_taint=options.taints)
    pool = {"name": options.pool_name, "generation": 1, "resourceSliceCount": len(bodies)}
    fixed = {"driver": options.driver, "nodeName": options.node_name}
    return tuple({**fixed, "pool": dict(pool), **body} for body in bodies)


def _offered(snapshot: Snapshot, options: BuildOptions) -> Iterator[Device]:
    """Yield what can be handed out; one that bears another's name is left out, as it would spoil the whole slice."""
    seen = set()
    for device in sorted(snapshot.devices(), key=lambda one: _identity(one.gpu)):  # stable: a GPU's own order stays
        withdrawn = not options.taints and not snapshot.health_of(device.gpu.uuid).healthy
        unsupported = isinstance(device, MigPartition) and not options.partitions
        if not withdrawn and not unsupported and device.name not in seen:
            seen.add(device.name)
            yield device


def _identity(gpu: Gpu) -> tuple[bool, int, str]:
    return gpu.minor is None, gpu.minor or 0, gpu.uuid


def _with_taints(item: JsonObject, snapshot: Snapshot, device: Device, options: BuildOptions) -> JsonObject:
    taints = render_taints(snapshot.health_of(device.gpu.uuid)) if options.taints else []
    return {**item, "taints": taints} if taints else item
