"""A CDI file as containerd understands it: what it may hold, and which version it needs.

Pure. Independent of the agent's own CDI code on purpose: the embedded cluster judges what the agent wrote.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from driver.localcluster.containers.cdi_schema import decode
from driver.localcluster.containers.errors import CdiError

VERSIONS = ("0.1.0", "0.2.0", "0.3.0", "0.4.0", "0.5.0", "0.6.0", "0.7.0", "0.8.0", "1.0.0", "1.1.0")
HOOKS = ("prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop")

_DEVICE_TYPES = ("", "b", "c", "u", "p")
_NAME = re.compile(r"[A-Za-z]([A-Za-z0-9._-]*[A-Za-z0-9])?")
_DEVICE_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._:-]*[A-Za-z0-9])?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """One valid CDI file: the edits common to its devices, and each device's own, as plain JSON objects."""

    kind: str
    common: dict[str, Any]
    devices: dict[str, dict[str, Any]]


def load(data: object) -> Spec:
    """Check a parsed file.

    :raises CdiError: `failed to unmarshal …` for its shape, `invalid CDI Spec: …` for its content.
    """
    try:
        raw: Any = decode({} if data is None else data)
    except CdiError as exc:
        raise CdiError(f"error unmarshaling JSON: while decoding JSON: {exc}") from exc
    return Spec(kind=raw.get("kind", ""), common=raw.get("containerEdits", {}), devices=_devices(raw))


def validate(data: Any) -> None:
    """Check the content of a decoded file (canonical field names).

    :raises CdiError: the first thing wrong with it, in containerd's words.
    """
    _check_version(data)
    vendor, _, class_ = data.get("kind", "").rpartition("/")
    _check_name("vendor", vendor)
    _check_name("class", class_)
    _check_edits(data.get("containerEdits", {}))
    seen: set[str] = set()
    for device in data.get("devices", []):
        name = device.get("name", "")
        try:
            _check_device(name, device.get("containerEdits", {}))
        except CdiError as exc:
            raise CdiError(f"failed add device {quote(name)}: {exc}") from exc
        if name in seen:
            raise CdiError(f"invalid spec, multiple device {quote(name)}")
        seen.add(name)
    if not seen:
        raise CdiError("invalid spec, no devices")


def minimum_version(data: Any) -> str:
    """Return the lowest version of the CDI specification that has every field used."""
    edits = [data.get("containerEdits", {}), *(device.get("containerEdits", {}) for device in data.get("devices", []))]
    needs = [_edits_need(item) for item in edits]
    if data.get("annotations") or any(device.get("annotations") for device in data.get("devices", [])):
        needs.append("0.6.0")
    if "." in data.get("kind", "").rpartition("/")[2]:
        needs.append("0.6.0")
    if any(not device.get("name", "x")[:1].isalpha() for device in data.get("devices", [])):
        needs.append("0.5.0")
    return max(needs, key=VERSIONS.index)


def quote(text: str) -> str:
    """Quote as Go's `%q`."""
    return json.dumps(text, ensure_ascii=False)


def _devices(raw: Any) -> dict[str, dict[str, Any]]:
    try:
        validate(raw)
    except CdiError as exc:
        raise CdiError(f"invalid CDI Spec: {exc}") from exc
    return {device["name"]: device["containerEdits"] for device in raw["devices"]}


def _check_version(data: Any) -> None:
    version = data.get("cdiVersion", "")
    if version.removeprefix("v") not in VERSIONS:
        raise CdiError(f"invalid version {quote(version)}")
    needed = minimum_version(data)
    if VERSIONS.index(version.removeprefix("v")) < VERSIONS.index(needed):
        raise CdiError(f"the spec version must be at least v{needed}")


def _edits_need(edits: Any) -> str:
    if edits.get("netDevices") or {"schemata", "enableMonitoring"} & edits.get("intelRdt", {}).keys():
        return "1.1.0"
    if edits.get("additionalGids") or edits.get("intelRdt"):
        return "0.7.0"
    if any(node.get("hostPath") not in (None, "", node.get("path")) for node in edits.get("deviceNodes", [])):
        return "0.5.0"
    return "0.4.0" if any(mount.get("type") for mount in edits.get("mounts", [])) else "0.3.0"


def _check_name(what: str, name: str) -> None:
    if not name:
        raise CdiError(f"invalid {what}. empty name")
    if not _NAME.fullmatch(name):
        raise CdiError(
            f"invalid {what}. {quote(name)}, should start with letter, end with a letter or digit, "
            "and have letters, digits, '_', '-' and '.' between"
        )


def _check_device(name: str, edits: Any) -> None:
    if not name:
        raise CdiError("invalid (empty) device name")
    if not _DEVICE_NAME.fullmatch(name):
        raise CdiError(
            f"invalid device name {quote(name)}, should start and end with a letter or digit, "
            "and have letters, digits, '_', '-', '.' and ':' between"
        )
    if not any(edits.values()):
        raise CdiError("invalid device, empty device edits")
    try:
        _check_edits(edits)
    except CdiError as exc:
        raise CdiError(f"invalid device {quote(name)}: {exc}") from exc


def _check_edits(edits: Any) -> None:
    try:
        _check_env(edits.get("env", []))
    except CdiError as exc:
        raise CdiError(f"invalid container edits: {exc}") from exc
    for node in edits.get("deviceNodes", []):
        _check_node(node)
    for hook in edits.get("hooks", []):
        _check_hook(hook)
    for mount in edits.get("mounts", []):
        for field, words in (("hostPath", "host path"), ("containerPath", "container path")):
            if not mount.get(field):
                raise CdiError(f"invalid mount, empty {words}")


def _check_env(env: list[str]) -> None:
    for item in env:
        if item.find("=") <= 0:
            raise CdiError(f"invalid environment variable {quote(item)}")


def _check_node(node: Any) -> None:
    path = node.get("path", "")
    if not path:
        raise CdiError("invalid (empty) device path")
    if node.get("type", "") not in _DEVICE_TYPES:
        raise CdiError(f"device {quote(path)}: invalid type {quote(node['type'])}")
    if set(node.get("permissions", "")) - set("rwm"):
        raise CdiError(f"device {quote(path)}: invalid permissions {quote(node['permissions'])}")


def _check_hook(hook: Any) -> None:
    name = hook.get("hookName", "")
    if name not in HOOKS:
        raise CdiError(f"invalid hook name {quote(name)}")
    if not hook.get("path"):
        raise CdiError(f"invalid hook {quote(name)} with empty path")
    try:
        _check_env(hook.get("env", []))
    except CdiError as exc:
        raise CdiError(f"invalid hook {quote(name)}: {exc}") from exc
