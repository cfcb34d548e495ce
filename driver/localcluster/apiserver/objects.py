"""Helpers for plain API objects. Pure."""

from __future__ import annotations

from typing import Any

Object = dict[str, Any]
"""An API object as JSON decodes it."""


def clone(value: Any) -> Any:
    """Copy a JSON value; many times faster than `copy.deepcopy`, which has to expect anything."""
    if isinstance(value, dict):
        return {key: clone(item) for key, item in value.items()}
    if isinstance(value, list):
        return [clone(item) for item in value]
    return value


def metadata(obj: Object) -> Object:
    """Return the object's metadata, empty if it has none."""
    found = obj.get("metadata")
    return found if isinstance(found, dict) else {}


def name_of(obj: Object) -> str:
    """Return `metadata.name`, empty if it has none."""
    return str(metadata(obj).get("name") or "")


def namespace_of(obj: Object) -> str:
    """Return `metadata.namespace`, empty if it has none."""
    return str(metadata(obj).get("namespace") or "")


def lookup(obj: Object, path: str) -> Any:
    """Return the value at a dotted path, None if any step is missing."""
    value: Any = obj
    for step in path.split("."):
        if not isinstance(value, dict):
            return None
        value = value.get(step)
    return value


def owner_uids(obj: Object) -> list[str]:
    """Return the UIDs of the object's owners."""
    return [str(owner.get("uid")) for owner in metadata(obj).get("ownerReferences") or ()]
