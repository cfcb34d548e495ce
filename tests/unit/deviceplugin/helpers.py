"""Snapshots of fake nodes whose GPUs are the device-plugin API's."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from driver.config.device_plugin import PluginConfig, decode_config
from driver.deviceplugin.links import Links
from driver.deviceplugin.prefer import Preference
from driver.deviceplugin.resources import Resource, offer
from driver.model.health import Health
from driver.model.ownership import Owner, Ownership
from tests.unit.slices.helpers import snapshot as made

if TYPE_CHECKING:
    from driver.model.snapshot import Snapshot

PLUGINS = Ownership(owner=Owner.DEVICE_PLUGIN, wanted=Owner.DEVICE_PLUGIN)


def snapshot(spec: str, *, dra: tuple[int, ...] = (), unhealthy: dict[int, str] | None = None) -> Snapshot:
    """Make a node of fake GPUs; those at `dra`'s indices are not the device-plugin API's."""
    found = made(spec)
    owners = {gpu.uuid: PLUGINS for index, gpu in enumerate(found.gpus) if index not in dra}
    health = {found.gpus[index].uuid: Health(healthy=False, reason=why) for index, why in (unhealthy or {}).items()}
    return replace(found, ownership=MappingProxyType(owners), health=MappingProxyType(health))


def config(document: object = None, **flags: str) -> PluginConfig:
    return decode_config(document, "config.yaml", cli=flags)


def shared(replicas: int, name: str = "gpu", kind: str = "timeSlicing", **more: Any) -> dict[str, Any]:
    return {"sharing": {kind: {"resources": [{"name": name, "replicas": replicas, **more}]}}}


def only(found: Snapshot, settings: PluginConfig, name: str = "nvidia.com/gpu") -> Resource:
    return offer(found, settings).resources[name]


def preference(found: Snapshot, settings: PluginConfig, name: str = "nvidia.com/gpu") -> tuple[Preference, list[str]]:
    """Return the preference of a resource and the ids of all its devices."""
    resource = only(found, settings, name)
    ids = [one.id for one in resource.devices]
    return Preference(resource.devices, Links(found.gpus), settings.flags.shared_devices_allocation_policy), ids
