"""Snapshots of fake nodes, and an API server's store to check and keep slices in."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from driver.inventory.fake_gpus import build_gpus
from driver.inventory.fake_spec import load_node
from driver.inventory.profiles import load_products
from driver.localcluster.apiserver import Features, Store
from driver.model.health import Effect, Health, Taint
from driver.model.snapshot import DriverVersions, Snapshot
from driver.slices.build import BuildOptions
from driver.slices.diff import API_VERSION

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from driver.model.device import Gpu
    from driver.model.json_object import JsonObject

NODE = "node-a"
OPTIONS = BuildOptions(node_name=NODE)
PARTITIONS = replace(OPTIONS, partitions=True)
VERSIONS = DriverVersions(driver="580.105.08", cuda="13.0")
FELL_OFF = Taint("gpu.nvidia.com/xid", "79", Effect.NO_SCHEDULE)


@cache
def gpus(spec: str) -> tuple[Gpu, ...]:
    return build_gpus(load_node(spec, load_products()), NODE)


def snapshot(spec: str, *, taints: dict[int, tuple[Taint, ...]] | None = None, **changes: Any) -> Snapshot:
    """Make a snapshot of fake GPUs; `taints` makes those at an index unhealthy, `changes` applies to each GPU."""
    found = tuple(replace(gpu, **changes) for gpu in gpus(spec))
    health = {found[index].uuid: Health(healthy=False, taints=some) for index, some in (taints or {}).items()}
    return Snapshot(versions=VERSIONS, gpus=found, health=MappingProxyType(health))


def partitioned(spec: str, **changes: Any) -> Snapshot:
    """Make a snapshot of fake GPUs that are all partitioned for claims."""
    found = snapshot(spec, **changes)
    return replace(found, dynamic_mig=frozenset(gpu.uuid for gpu in found.gpus))


def new_store(**features: Any) -> Store:
    """Return a store that checks slices as a real API server does (held to the recordings by its own tests)."""
    return Store(Features(**features))


def add(store: Store, specs: Iterable[JsonObject]) -> list[JsonObject]:
    """Create slices; return them as stored. An invalid one raises a StatusError with the server's words."""
    kind = {"apiVersion": API_VERSION, "kind": "ResourceSlice"}
    return [
        store.create("resourceslices", {**kind, "metadata": {"generateName": f"{index:02d}-"}, "spec": spec})
        for index, spec in enumerate(specs)
    ]


def names(specs: Sequence[JsonObject]) -> list[list[str]]:
    return [[device["name"] for device in spec.get("devices", ())] for spec in specs]
