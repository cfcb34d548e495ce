"""Snapshots and options for labels, and short views of what comes out."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from driver.config.device_plugin import decode_config
from driver.labels import LabelOptions
from driver.model.ownership import Owner, Ownership
from tests.unit.slices.helpers import snapshot

if TYPE_CHECKING:
    from typing import Any

    from driver.model.snapshot import Snapshot

PLUGINS = Ownership(owner=Owner.DEVICE_PLUGIN, wanted=Owner.DEVICE_PLUGIN)


def sharing(kind: str = "timeSlicing", *, rename: bool = False, **names: int) -> dict[str, Any]:
    """A config in which resources (`gpu`, `mig-1g.10gb`, …) have replicas."""
    resources = [{"name": f"nvidia.com/{name}", "replicas": count} for name, count in names.items()]
    return {kind: {"renameByDefault": rename, "resources": resources}}


def options(strategy: str = "none", shared: dict[str, Any] | None = None, **more: Any) -> LabelOptions:
    document: dict[str, Any] = {"version": "v1", "flags": {"migStrategy": strategy}, **more}
    if shared:
        document["sharing"] = shared
    return LabelOptions(config=decode_config(document, "config"))


def plugins(spec: str, *indices: int) -> Snapshot:
    """GPUs that the device-plugin API has: all, or those at some indices."""
    found = snapshot(spec)
    chosen = [gpu.uuid for gpu in found.gpus if not indices or gpu.index in indices]
    return replace(found, ownership=MappingProxyType(dict.fromkeys(chosen, PLUGINS)))


def short(found: dict[str, str], *, of: str = "gpu.") -> dict[str, str]:
    """Labels of one resource without their common prefix."""
    prefix = f"nvidia.com/{of}"
    return {key.removeprefix(prefix): value for key, value in found.items() if key.startswith(prefix)}


def some(found: dict[str, str], *names: str) -> list[str]:
    return [found.get(f"nvidia.com/{name}", "-") for name in names]


SHARED = sharing(gpu=4)
H100 = "NVIDIA-H100-80GB-HBM3"
