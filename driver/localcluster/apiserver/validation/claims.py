"""ResourceClaims, their templates, and device classes (v1 shape). Pure."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final

from driver.localcluster.apiserver.objects import metadata
from driver.localcluster.apiserver.validation import common
from driver.localcluster.apiserver.validation.common import Raw, forbidden, invalid, required
from driver.localcluster.apiserver.validation.requests import (
    config_errors,
    devices_errors,
    each,
    request_names,
    selector_errors,
)

if TYPE_CHECKING:
    from driver.localcluster.apiserver.errors import Cause
    from driver.localcluster.apiserver.objects import Object
    from driver.localcluster.apiserver.strategy import Rules

_MOST_RESULTS: Final = 32
_MOST_ALLOCATED_CONFIGS: Final = 64
_MOST_CONSUMERS: Final = 256
_MOST_CONDITIONS: Final = 8
_MOST_CLASS_CONFIGS: Final = 32
_LARGEST_DATA: Final = 10 * 1024  # bytes
_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_EXTENDED = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")


def _json(value: Any) -> Raw:
    return Raw(json.dumps(value, separators=(",", ":")))


def _spec(obj: Object) -> Object:
    found = obj.get("spec")
    return found if isinstance(found, dict) else {}


def _immutable(obj: Object, old: Object | None) -> list[Cause]:
    if old is None or _spec(obj) == _spec(old):
        return []
    return [invalid("spec", _json(_spec(obj)), "field is immutable")]


def claim_errors(obj: Object, old: Object | None, rules: Rules) -> list[Cause]:
    """Return everything that is wrong with a claim but its status."""
    if old is not None:
        return _immutable(obj, old)
    return devices_errors("spec.devices", _spec(obj).get("devices") or {}, rules.cel)


def template_errors(obj: Object, old: Object | None, rules: Rules) -> list[Cause]:
    """Return everything that is wrong with a claim template."""
    if old is not None:
        return _immutable(obj, old)
    inner = _spec(_spec(obj))
    return devices_errors("spec.spec.devices", inner.get("devices") or {}, rules.cel)


def class_errors(obj: Object, old: Object | None, rules: Rules) -> list[Cause]:
    """Return everything that is wrong with a device class."""
    spec = _spec(obj)
    found = selector_errors("spec.selectors", spec.get("selectors") or [], rules.cel)
    found += each(
        "spec.config", spec.get("config") or [], _MOST_CLASS_CONFIGS, lambda at, one: config_errors(at, one, None)
    )
    name = spec.get("extendedResourceName")
    if name is not None and (not _EXTENDED.fullmatch(name) or name.partition("/")[0].endswith("kubernetes.io")):
        found.append(invalid("spec.extendedResourceName", name, "must be a valid extended resource name"))
    return found


def claim_status_errors(obj: Object, old: Object | None, rules: Rules) -> list[Cause]:
    """Return everything that is wrong with a claim's new status."""
    status, before = obj.get("status") or {}, (old or {}).get("status") or {}
    allocation = status.get("allocation")
    names = request_names(_spec(obj).get("devices") or {})
    found = _transition(obj, status, before)
    if allocation is not None and allocation != before.get("allocation"):
        found += _allocation(allocation.get("devices") or {}, names)
    found += _consumers(status.get("reservedFor") or [], allocated=allocation is not None)
    return found + _device_statuses(status.get("devices") or [], allocation or {})


def _transition(obj: Object, status: Object, before: Object) -> list[Cause]:
    new, was = status.get("allocation"), before.get("allocation")
    found = []
    if new is not None and was is not None and new != was:
        found.append(invalid("status.allocation", _json(new), "field is immutable"))
    if metadata(obj).get("deletionTimestamp"):
        if new is not None and was is None:
            found.append(forbidden("status.allocation", "new allocations may not be created when a claim is deleted"))
        grown = {c.get("uid") for c in status.get("reservedFor") or ()} - {
            c.get("uid") for c in before.get("reservedFor") or ()
        }
        if grown:
            found.append(
                forbidden("status.reservedFor", "new reservations may not be added when `deletionTimestamp` is set")
            )
    return found


def _allocation(devices: Object, names: set[str]) -> list[Cause]:
    path = "status.allocation.devices"
    found = each(
        f"{path}.results", devices.get("results") or [], _MOST_RESULTS, lambda at, one: _result(at, one, names)
    )
    return found + each(
        f"{path}.config", devices.get("config") or [], _MOST_ALLOCATED_CONFIGS, lambda at, one: _source(at, one, names)
    )


def _result(path: str, result: Object, names: set[str]) -> list[Cause]:
    request = result.get("request", "")
    found = []
    if request not in names:
        text = "must be the name of a request in the claim or the name of a request and a subrequest separated by '/'"
        found.append(invalid(f"{path}.request", request, text))
    found += common.driver_name(f"{path}.driver", result.get("driver", ""))
    found += common.pool_name(f"{path}.pool", result.get("pool", ""))
    device = result.get("device", "")
    found += common.dns_label(f"{path}.device", device) if device else [required(f"{path}.device")]
    share = result.get("shareID")
    if share is not None and not _UUID.fullmatch(share):
        text = (
            "uuid must be in RFC 4122 normalized form, `xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx` "
            "with lowercase hexadecimal characters"
        )
        found.append(invalid(f"{path}.shareID", share, text))
    return found


def _source(path: str, config: Object, names: set[str]) -> list[Cause]:
    source = config.get("source", "")
    found = (
        []
        if source in ("FromClass", "FromClaim")
        else [
            common.unsupported(f"{path}.source", source, ("FromClaim", "FromClass"))
            if source
            else required(f"{path}.source")
        ]
    )
    return found + config_errors(path, config, names)


def _consumers(consumers: list[Object], *, allocated: bool) -> list[Cause]:
    found: list[Cause] = []
    seen = set()
    if consumers and not allocated:
        found.append(forbidden("status.reservedFor", "may not be specified when `allocated` is not set"))
    found += common.at_most("status.reservedFor", consumers, _MOST_CONSUMERS)
    for at, consumer in enumerate(consumers):
        path = f"status.reservedFor[{at}]"
        found += [required(f"{path}.{name}") for name in ("resource", "name", "uid") if not consumer.get(name)]
        if consumer.get("uid") in seen:
            found.append(common.duplicate(f"{path}.uid", consumer.get("uid", "")))
        seen.add(consumer.get("uid"))
    return found


def _key(device: Object) -> tuple[Any, ...]:
    return tuple(device.get(name) for name in ("driver", "pool", "device", "shareID"))


def _device_statuses(devices: list[Object], allocation: Object) -> list[Cause]:
    found: list[Cause] = []
    allocated = {_key(result) for result in (allocation.get("devices") or {}).get("results") or ()}
    seen: set[tuple[Any, ...]] = set()
    for at, device in enumerate(devices):
        path = f"status.devices[{at}]"
        if _key(device) not in allocated:
            key = {name: device.get(name) for name in ("driver", "pool", "device", "shareID") if device.get(name)}
            found.append(invalid(path, _json(key), "must be an allocated device in the claim"))
        if _key(device) in seen:
            found.append(common.duplicate(path, "/".join(str(part) for part in _key(device) if part)))
        seen.add(_key(device))
        found += common.at_most(f"{path}.conditions", device.get("conditions") or [], _MOST_CONDITIONS)
        found += _conditions(f"{path}.conditions", device.get("conditions") or [])
        data = device.get("data")
        if data is not None and len(json.dumps(data, separators=(",", ":")).encode()) > _LARGEST_DATA:
            found.append(common.too_long(f"{path}.data", _LARGEST_DATA))
    return found


def _conditions(path: str, conditions: list[Object]) -> list[Cause]:
    found: list[Cause] = []
    seen = set()
    for at, condition in enumerate(conditions):
        where = f"{path}[{at}]"
        missing = [name for name in ("type", "reason", "lastTransitionTime") if not condition.get(name)]
        found += [required(f"{where}.{name}") for name in missing]
        if condition.get("status") not in ("True", "False", "Unknown"):
            found.append(
                common.unsupported(f"{where}.status", condition.get("status", ""), ("False", "True", "Unknown"))
            )
        if condition.get("type") in seen:
            found.append(common.duplicate(f"{where}.type", condition.get("type")))
        seen.add(condition.get("type"))
    return found
