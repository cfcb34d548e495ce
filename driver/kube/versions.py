"""ResourceSlices between the versions of `resource.k8s.io`: v1 is spoken everywhere, older ones are wrapped here. Pure.

v1beta2 has v1's shape; v1beta1 puts every field of a device but its name into `basic`. A claim's `status` is the same
in all of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from driver.errors import ApiInvalidError

if TYPE_CHECKING:
    from driver.model.json_object import JsonObject

GROUP = "resource.k8s.io"
VERSIONS = ("v1", "v1beta2", "v1beta1")
"""The versions that the driver speaks, best first."""

_SHOWN = 200  # characters of an object in a message


def to_version(item: JsonObject, version: str) -> JsonObject:
    """Return a v1 ResourceSlice as `version` has it."""
    return _converted(item, version, _wrap if version == "v1beta1" else None)


def from_version(item: JsonObject, version: str, *, whole: bool = False) -> JsonObject:
    """Return a ResourceSlice of `version` as v1 has it; `whole` if it must be one, no bookmark.

    :raises ApiInvalidError: it is none, so that what answered is no API server.
    """
    if not _is_slice(item) or (whole and not _is_whole(item)):
        raise ApiInvalidError(f"an object that is no ResourceSlice came instead of one: {str(item)[:_SHOWN]}")
    return _converted(item, "v1", _unwrap if version == "v1beta1" else None)


def _is_slice(item: JsonObject) -> bool:
    spec = item.get("spec") or {}  # a bookmark has none
    devices = (spec.get("devices") or []) if isinstance(spec, dict) else None
    return (
        isinstance(item.get("metadata", {}), dict)
        and isinstance(devices, list)
        and all(isinstance(one, dict) for one in devices)
    )


def _is_whole(item: JsonObject) -> bool:
    metadata = item.get("metadata") or {}
    return isinstance(item.get("spec"), dict) and isinstance(metadata.get("name"), str)


def _converted(item: JsonObject, version: str, change: Any) -> JsonObject:
    whole = {**item, "apiVersion": f"{GROUP}/{version}", "kind": "ResourceSlice"}
    devices = (item.get("spec") or {}).get("devices")
    if change is not None and devices:
        whole["spec"] = {**item["spec"], "devices": [change(device) for device in devices]}
    return whole


def _wrap(device: JsonObject) -> JsonObject:
    return {"name": device.get("name"), "basic": {key: value for key, value in device.items() if key != "name"}}


def _unwrap(device: JsonObject) -> JsonObject:
    basic = device.get("basic")
    return {"name": device.get("name"), **(basic if isinstance(basic, dict) else {})}
