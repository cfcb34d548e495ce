"""What container runtimes accept as a CDI spec, checked before anything is written. Pure.

Source: the specification, and what containerd 2.4 answered (`tests/data/recordings/cdi.json`). A file with one bad
entry is ignored whole by the runtime, and its pods can't start: so nothing is left to the runtime's own check.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from driver.errors import InvalidValueError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

VERSIONS = ("0.3.0", "0.4.0", "0.5.0", "0.6.0", "0.7.0", "0.8.0", "1.0.0", "1.1.0")
"""The specification's versions; later ones add nothing that is written here."""

_VENDOR = re.compile(r"[A-Za-z]([A-Za-z0-9_.-]*[A-Za-z0-9])?")
_CLASS = re.compile(r"[A-Za-z]([A-Za-z0-9_.-]*[A-Za-z0-9])?")
_DEVICE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.:-]*[A-Za-z0-9])?")
_ENV = re.compile(r"[^=\0]+=[^\0]*", re.DOTALL)
_HOOKS = frozenset({"prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop"})
_NODE_TYPES = frozenset({"b", "c", "u", "p"})

_SPEC_FIELDS = frozenset({"cdiVersion", "kind", "annotations", "devices", "containerEdits"})
_DEVICE_FIELDS = frozenset({"name", "annotations", "containerEdits"})
_EDIT_FIELDS = frozenset({"env", "deviceNodes", "mounts", "hooks", "additionalGids", "intelRdt", "netDevices"})
_NODE_FIELDS = frozenset({"path", "hostPath", "type", "major", "minor", "fileMode", "permissions", "uid", "gid"})
_MOUNT_FIELDS = frozenset({"hostPath", "containerPath", "options", "type"})
_HOOK_FIELDS = frozenset({"hookName", "path", "args", "env", "timeout"})


def required_version(spec: Mapping[str, Any]) -> str:
    """Return the lowest version of the specification that has everything `spec` uses."""
    needed = {"0.3.0"}
    if "." in spec["kind"].partition("/")[2] or "annotations" in spec:
        needed.add("0.6.0")
    for device in spec["devices"]:
        if device["name"][:1].isdigit():
            needed.add("0.5.0")
        if "annotations" in device:
            needed.add("0.6.0")
    for edits in _all_edits(spec):
        needed.update(_versions_of_edits(edits))
    return max(needed, key=VERSIONS.index)


def check_content(spec: Mapping[str, Any]) -> None:
    """Check all of a spec but its version.

    :raises InvalidValueError: naming the field; the runtime would ignore the whole file.
    """
    _known(spec, _SPEC_FIELDS, "")
    _check_kind(spec.get("kind"))
    devices = spec.get("devices")
    if not isinstance(devices, list) or not devices:
        raise InvalidValueError("devices", devices, "a spec has at least one device")
    for index, device in enumerate(devices):
        _check_device(device, f"devices[{index}]")
    _check_unique([device["name"] for device in devices])
    if "containerEdits" in spec:
        _check_edits(spec["containerEdits"], "containerEdits")


def _versions_of_edits(edits: Mapping[str, Any]) -> set[str]:
    needed = set()
    if any("hostPath" in node for node in edits.get("deviceNodes", ())):
        needed.add("0.5.0")
    if any("type" in mount for mount in edits.get("mounts", ())):
        needed.add("0.4.0")
    if "additionalGids" in edits or "intelRdt" in edits:
        needed.add("0.7.0")
    if "netDevices" in edits:
        needed.add("1.1.0")
    return needed


def _all_edits(spec: Mapping[str, Any]) -> Iterable[Mapping[str, Any]]:
    yield spec.get("containerEdits", {})
    for device in spec["devices"]:
        yield device.get("containerEdits", {})


def _check_kind(kind: object) -> None:
    vendor, slash, class_ = kind.partition("/") if isinstance(kind, str) else ("", "", "")
    if not (slash and _VENDOR.fullmatch(vendor) and _CLASS.fullmatch(class_)):
        raise InvalidValueError("kind", kind, "vendor/class, each led by a letter, of letters, digits and '_.-'")


def _check_device(device: object, path: str) -> None:
    fields = _object(device, _DEVICE_FIELDS, path)
    name = fields.get("name")
    if not isinstance(name, str) or not _DEVICE.fullmatch(name):
        raise InvalidValueError(f"{path}.name", name, "letters, digits and '_.:-', no sign at either end")
    edits = fields.get("containerEdits")
    if not edits:
        raise InvalidValueError(f"{path}.containerEdits", edits, "a device adds something to the container")
    _check_edits(edits, f"{path}.containerEdits")


def _check_unique(device_names: list[str]) -> None:
    seen: set[str] = set()
    for index, name in enumerate(device_names):
        if name in seen:
            raise InvalidValueError(f"devices[{index}].name", name, "each device name once")
        seen.add(name)


def _check_edits(edits: object, path: str) -> None:
    fields = _object(edits, _EDIT_FIELDS, path)
    _each(fields, "env", path, _check_env)
    _each(fields, "deviceNodes", path, _check_node)
    _each(fields, "mounts", path, _check_mount)
    _each(fields, "hooks", path, _check_hook)
    _each(fields, "additionalGids", path, _check_number)


def _check_env(entry: object, path: str) -> None:
    if not isinstance(entry, str) or not _ENV.fullmatch(entry):
        raise InvalidValueError(path, entry, "NAME=value, with a name")


def _check_node(node: object, path: str) -> None:
    fields = _object(node, _NODE_FIELDS, path)
    _text(fields, "path", path)
    if fields.get("type", "") and fields["type"] not in _NODE_TYPES:
        raise InvalidValueError(f"{path}.type", fields["type"], "b, c, u or p")
    permissions = fields.get("permissions", "")
    if not isinstance(permissions, str) or set(permissions) - set("rwm"):
        raise InvalidValueError(f"{path}.permissions", permissions, "letters of rwm")
    for name in ("major", "minor", "fileMode", "uid", "gid"):
        if name in fields:
            _check_number(fields[name], f"{path}.{name}")


def _check_mount(mount: object, path: str) -> None:
    fields = _object(mount, _MOUNT_FIELDS, path)
    _text(fields, "hostPath", path)
    _text(fields, "containerPath", path)


def _check_hook(hook: object, path: str) -> None:
    fields = _object(hook, _HOOK_FIELDS, path)
    if fields.get("hookName") not in _HOOKS:
        raise InvalidValueError(f"{path}.hookName", fields.get("hookName"), f"one of {', '.join(sorted(_HOOKS))}")
    _text(fields, "path", path)
    _each(fields, "env", path, _check_env)


def _check_number(number: object, path: str) -> None:
    if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < 1 << 32:
        raise InvalidValueError(path, number, "a whole number from 0 to 2^32-1")


def _each(fields: Mapping[str, Any], name: str, path: str, check: Callable[[object, str], None]) -> None:
    items = fields.get(name, [])
    if not isinstance(items, list):
        raise InvalidValueError(f"{path}.{name}", items, "a list")
    for index, item in enumerate(items):
        check(item, f"{path}.{name}[{index}]")


def _object(value: object, allowed: frozenset[str], path: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise InvalidValueError(path, value, "an object")
    _known(value, allowed, path)
    return value


def _known(value: Mapping[str, Any], allowed: frozenset[str], path: str) -> None:
    for name in value:
        if name not in allowed:
            field = f"{path}.{name}" if path else name
            raise InvalidValueError(field, value[name], f"no such field; there are {', '.join(sorted(allowed))}")


def _text(fields: Mapping[str, Any], name: str, path: str) -> None:
    value = fields.get(name)
    if not isinstance(value, str) or not value or "\0" in value:
        raise InvalidValueError(f"{path}.{name}", value, "a path")
