"""ResourceSlices (v1 shape). Limits and messages: `recordings: slice-validation`. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from driver.localcluster.apiserver.validation import common
from driver.localcluster.apiserver.validation.common import Raw, invalid, required
from driver.localcluster.apiserver.validation.devices import device_errors, effects_of, is_costly

if TYPE_CHECKING:
    from driver.localcluster.apiserver.errors import Cause
    from driver.localcluster.apiserver.objects import Object
    from driver.localcluster.apiserver.strategy import Rules

_MOST_DEVICES = 128
_MOST_COSTLY_DEVICES = 64
_MOST_COUNTER_SETS = 8
_MOST_COUNTERS = 32
_SELECTIONS = ("nodeName", "nodeSelector", "allNodes", "perDeviceNodeSelection")
_SELECTION_RULE = "exactly one of `nodeName`, `nodeSelector`, `allNodes`, `perDeviceNodeSelection` is required"


def slice_errors(obj: Object, old: Object | None, rules: Rules) -> list[Cause]:
    """Return everything that is wrong with a slice."""
    spec = obj.get("spec") or {}
    found = common.driver_name("spec.driver", spec.get("driver", ""))
    found += _pool(spec.get("pool") or {})
    found += _selection(spec)
    found += _content(spec, rules)
    return found + (_immutable(spec, old.get("spec") or {}) if old else [])


def _pool(pool: Object) -> list[Cause]:
    found = common.pool_name("spec.pool.name", pool.get("name", ""))
    count, generation = pool.get("resourceSliceCount", 0), pool.get("generation", 0)
    if count <= 0:
        found.append(invalid("spec.pool.resourceSliceCount", count, "must be greater than zero"))
    if generation < 0:
        found.append(invalid("spec.pool.generation", generation, "must be greater than or equal to zero"))
    return found


def _selection(spec: Object) -> list[Cause]:
    found, chosen = [], []
    for name in _SELECTIONS:
        value = spec.get(name)
        if name in ("allNodes", "perDeviceNodeSelection") and value is False:
            found.append(invalid(f"spec.{name}", False, "must be either unset or set to true"))
        elif value is not None and value != "":
            chosen.append(name)
    if spec.get("nodeName"):
        found += common.dns_subdomain("spec.nodeName", spec["nodeName"])
    if spec.get("nodeSelector"):
        found += node_selector("spec.nodeSelector", spec["nodeSelector"])
    if not chosen:
        found.append(required("spec", _SELECTION_RULE))
    elif len(chosen) > 1:
        shown = "{" + ", ".join(f"`{name}`" for name in chosen) + "}"
        found.append(invalid("spec", shown, f"{_SELECTION_RULE}, but multiple fields are set"))
    return found


def node_selector(path: str, selector: Object) -> list[Cause]:
    """Check a node selector of a slice: one term, as the allocator wants it."""
    terms = selector.get("nodeSelectorTerms") or []
    if len(terms) != 1:
        return [invalid(f"{path}.nodeSelectorTerms", Raw(str(len(terms))), "must have exactly one node selector term")]
    return []


def _content(spec: Object, rules: Rules) -> list[Cause]:
    devices, sets = spec.get("devices") or [], spec.get("sharedCounters") or []
    found: list[Cause] = []
    if devices and sets:
        found.append(invalid("spec", "", "only one of `sharedCounters` or `devices` is allowed"))
    limit = _MOST_COSTLY_DEVICES if any(is_costly(device) for device in devices) else _MOST_DEVICES
    if len(devices) > limit:
        found.append(common.too_many("spec.devices", len(devices), limit))
    else:
        found += _devices(devices, effects_of(rules), per_device=bool(spec.get("perDeviceNodeSelection")))
    return found + _counter_sets(sets)


def _devices(devices: list[Object], effects: tuple[str, ...], *, per_device: bool) -> list[Cause]:
    found: list[Cause] = []
    names: set[str] = set()
    for at, device in enumerate(devices):
        path, name = f"spec.devices[{at}]", device.get("name", "")
        found += device_errors(path, device, effects, per_device=per_device)
        if name and name in names:
            found.append(common.duplicate(path, name))
        names.add(name)
    return found


def _counter_sets(sets: list[Object]) -> list[Cause]:
    if len(sets) > _MOST_COUNTER_SETS:
        return [common.too_many("spec.sharedCounters", len(sets), _MOST_COUNTER_SETS)]
    found: list[Cause] = []
    names: set[str] = set()
    for at, counters in enumerate(sets):
        path, name = f"spec.sharedCounters[{at}]", counters.get("name", "")
        found += common.dns_label(f"{path}.name", name) if name else [required(f"{path}.name")]
        found += counter_map(f"{path}.counters", counters.get("counters") or {})
        if name in names:
            found.append(common.duplicate(path, name))
        names.add(name)
    return found


def counter_map(path: str, counters: dict[str, Any]) -> list[Cause]:
    """Check a set of counters."""
    if not counters:
        return [required(path)]
    if len(counters) > _MOST_COUNTERS:
        return [common.too_many(path, len(counters), _MOST_COUNTERS)]
    return [cause for name in counters for cause in common.dns_label(path, name)]


def _immutable(new: Object, old: Object) -> list[Cause]:
    found = []
    pairs = {"spec.driver": (new.get("driver"), old.get("driver"))}
    pairs["spec.pool.name"] = ((new.get("pool") or {}).get("name"), (old.get("pool") or {}).get("name"))
    pairs["spec.nodeName"] = (new.get("nodeName"), old.get("nodeName"))
    for path, (is_now, was) in pairs.items():
        if is_now != was:
            found.append(invalid(path, is_now, "field is immutable"))
    return found
