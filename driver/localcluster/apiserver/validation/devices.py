"""A device within a slice (v1 shape). Pure."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from driver.localcluster.apiserver.validation import common
from driver.localcluster.apiserver.validation.common import Raw, invalid, required
from driver.localcluster.apiserver.validation.policies import policy_errors

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from driver.localcluster.apiserver.errors import Cause
    from driver.localcluster.apiserver.objects import Object
    from driver.localcluster.apiserver.strategy import Rules

_MOST_ATTRIBUTES_AND_CAPACITIES = 32
_MOST_VALUES = 48
_MOST_TAINTS = 16
_MOST_CONSUMED_SETS = 2
_MOST_COUNTERS = 32
_MOST_CONDITIONS = 4
_LONGEST_VALUE = 64  # bytes
_LISTS: Final = ("ints", "bools", "strings", "versions")
_GO_NAMES: Final = {
    "int": "IntValue", "bool": "BoolValue", "string": "StringValue", "version": "VersionValue",
    "ints": "IntValues", "bools": "BoolValues", "strings": "StringValues", "versions": "VersionValues",
}  # fmt: skip
_EFFECTS: Final = ("None", "NoExecute", "NoSchedule")


def is_costly(device: Object) -> bool:
    """Say whether a device lowers the number of devices that its slice may hold."""
    if device.get("taints") or device.get("consumesCounters"):
        return True
    return any(name in value for value in (device.get("attributes") or {}).values() for name in _LISTS)


def effects_of(rules: Rules) -> tuple[str, ...]:
    """Return the effects that a taint may have: `None` came with Kubernetes 1.35."""
    return _EFFECTS[1:] if rules.features.minor < 35 else _EFFECTS


def device_errors(path: str, device: Object, effects: tuple[str, ...], *, per_device: bool) -> list[Cause]:
    """Return everything that is wrong with one device."""
    name = device.get("name", "")
    found = common.dns_label(f"{path}.name", name) if name else [required(f"{path}.name")]
    attributes, capacity = device.get("attributes") or {}, device.get("capacity") or {}
    total = len(attributes) + len(capacity)
    if total > _MOST_ATTRIBUTES_AND_CAPACITIES:
        text = f"the total number of attributes and capacities must not exceed {_MOST_ATTRIBUTES_AND_CAPACITIES}"
        found.append(invalid(path, total, text))
    found += _attributes(f"{path}.attributes", attributes)
    many = bool(device.get("allowMultipleAllocations"))
    for key, value in capacity.items():
        found += common.qualified_attribute(f"{path}.capacity", key)
        found += policy_errors(f"{path}.capacity[{key}]", value, allowed=many)
    found += _consumption(f"{path}.consumesCounters", device.get("consumesCounters") or [])
    found += _taints(f"{path}.taints", device.get("taints") or [], effects)
    found += _conditions(path, device)
    return found + _node(path, device, per_device=per_device)


def _attributes(path: str, attributes: Mapping[str, Object]) -> list[Cause]:
    found: list[Cause] = []
    values = 0
    for name, attribute in attributes.items():
        found += common.qualified_attribute(path, name)
        found += _attribute(f"{path}[{name}]", attribute)
        values += sum(len(attribute.get(kind) or ()) for kind in _LISTS) or 1
    if values > _MOST_VALUES:
        found.append(common.too_many(path, values, _MOST_VALUES))
    return found


def _attribute(path: str, attribute: Object) -> list[Cause]:
    given = [name for name in _GO_NAMES if attribute.get(name) is not None]
    if len(given) != 1:
        shown = json.dumps({go: attribute.get(name) for name, go in _GO_NAMES.items()}, separators=(",", ":"))
        return [invalid(path, Raw(shown) if given else "", "exactly one value must be specified")]
    kind = given[0]
    check = _VALUES.get(kind.removesuffix("s") if kind in _LISTS else kind)
    if check is None:
        return []
    if kind not in _LISTS:
        return check(f"{path}.{kind}", attribute[kind])
    return [cause for at, item in enumerate(attribute[kind]) for cause in check(f"{path}.{kind}[{at}]", item)]


def _string(path: str, value: str) -> list[Cause]:
    return [common.too_long(path, _LONGEST_VALUE)] if len(value.encode()) > _LONGEST_VALUE else []


def _version(path: str, value: str) -> list[Cause]:
    found = _string(path, value)
    if not common.is_semver(value):
        found.append(invalid(path, value, "must be a string compatible with semver.org spec 2.0.0"))
    return found


_VALUES: Final[Mapping[str, Callable[[str, Any], list[Cause]]]] = {"string": _string, "version": _version}


def _consumption(path: str, consumed: list[Object]) -> list[Cause]:
    if len(consumed) > _MOST_CONSUMED_SETS:
        return [common.too_many(path, len(consumed), _MOST_CONSUMED_SETS)]
    found: list[Cause] = []
    names: set[str] = set()
    for at, one in enumerate(consumed):
        where, name = f"{path}[{at}]", one.get("counterSet", "")
        found += common.dns_label(f"{where}.counterSet", name) if name else [required(f"{where}.counterSet")]
        counters = one.get("counters") or {}
        if not counters:
            found.append(required(f"{where}.counters"))
        found += common.at_most(f"{where}.counters", counters, _MOST_COUNTERS)
        found += [cause for key in counters for cause in common.dns_label(f"{where}.counters", key)]
        if name in names:
            found.append(common.duplicate(where, name))
        names.add(name)
    return found


def _taints(path: str, taints: list[Object], effects: tuple[str, ...]) -> list[Cause]:
    if len(taints) > _MOST_TAINTS:
        return [common.too_many(path, len(taints), _MOST_TAINTS)]
    return [cause for at, taint in enumerate(taints) for cause in taint_errors(f"{path}[{at}]", taint, effects)]


def taint_errors(path: str, taint: Object, effects: tuple[str, ...]) -> list[Cause]:
    """Return everything that is wrong with a device taint."""
    key, effect = taint.get("key", ""), taint.get("effect", "")
    found = common.qualified_name(f"{path}.key", key) if key else [required(f"{path}.key")]
    if taint.get("value"):
        found += common.label_value(f"{path}.value", taint["value"])
    if not effect:
        found.append(required(f"{path}.effect"))
    elif effect not in effects:
        found.append(common.unsupported(f"{path}.effect", effect, effects))
    return found


def _conditions(path: str, device: Object) -> list[Cause]:
    found: list[Cause] = []
    lists = {name: device.get(name) or [] for name in ("bindingConditions", "bindingFailureConditions")}
    for name, conditions in lists.items():
        found += common.at_most(f"{path}.{name}", conditions, _MOST_CONDITIONS)
        for at, condition in enumerate(conditions):
            found += common.qualified_name(f"{path}.{name}[{at}]", condition)
    binding, failure = lists.values()
    if binding and not failure:
        text = "bindingFailureConditions are required to use bindingConditions"
        found.append(invalid(f"{path}.bindingFailureConditions", Raw("[]"), text))
    if failure and not binding:
        text = "bindingConditions are required to use bindingFailureConditions"
        found.append(invalid(f"{path}.bindingConditions", Raw("[]"), text))
    return found


def _node(path: str, device: Object, *, per_device: bool) -> list[Cause]:
    chosen = [name for name in ("nodeName", "nodeSelector", "allNodes") if device.get(name) not in (None, "")]
    rule = "exactly one of `nodeName`, `nodeSelector`, or `allNodes` is required"
    if not per_device:
        text = "can only be set when `spec.perDeviceNodeSelection` is set to true"
        return [common.forbidden(f"{path}.{name}", text) for name in chosen]
    if not chosen:
        return [required(path, f"{rule} when `perDeviceNodeSelection` is set to true in the ResourceSlice spec")]
    if len(chosen) > 1:
        shown = "{" + ", ".join(f"`{name}`" for name in chosen) + "}"
        return [invalid(path, shown, f"{rule} when `perDeviceNodeSelection` is set to true in the ResourceSlice spec")]
    return []
