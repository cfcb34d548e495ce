"""What a claim asks for: requests, selectors, tolerations, constraints, configuration. Pure."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from driver.localcluster.apiserver.validation import common
from driver.localcluster.apiserver.validation.common import Raw, invalid, required

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from driver.localcluster.apiserver.errors import Cause
    from driver.localcluster.apiserver.objects import Object
    from driver.localcluster.apiserver.strategy import CelChecker

_MOST_REQUESTS: Final = 32
_MOST_SUBREQUESTS: Final = 8
_MOST_SELECTORS: Final = 32
_MOST_CONSTRAINTS: Final = 32
_MOST_CONFIGS: Final = 32
_MOST_TOLERATIONS: Final = 16
_LONGEST_EXPRESSION: Final = 10 * 1024  # bytes
_LONGEST_PARAMETERS: Final = 10 * 1024  # bytes
_ONE_KIND = "exactly one of `exactly` or `firstAvailable` is required"
_REFERENCE = "must be the name of a request in the claim or the name of a request and a subrequest separated by '/'"


def each(path: str, items: Sequence[Any], limit: int, check: Callable[[str, Any], list[Cause]]) -> list[Cause]:
    """Check every element of a list that may have so many."""
    found = common.at_most(path, items, limit)
    for at, item in enumerate(items[:limit]):
        found += check(f"{path}[{at}]", item)
    return found


def devices_errors(path: str, devices: Object, cel: CelChecker | None) -> list[Cause]:
    """Return everything that is wrong with `devices` of a claim's spec."""
    requests = devices.get("requests") or []
    found = each(f"{path}.requests", requests, _MOST_REQUESTS, lambda at, one: _request(at, one, cel))
    found += _unique_names(f"{path}.requests", requests)
    names = request_names(devices)
    found += each(
        f"{path}.constraints",
        devices.get("constraints") or [],
        _MOST_CONSTRAINTS,
        lambda at, one: _constraint(at, one, names),
    )
    found += each(
        f"{path}.config", devices.get("config") or [], _MOST_CONFIGS, lambda at, one: config_errors(at, one, names)
    )
    return found


def request_names(devices: Object) -> set[str]:
    """Return what may be referred to: `request` and `request/subrequest`."""
    names = set()
    for request in devices.get("requests") or ():
        name = request.get("name", "")
        names.add(name)
        names |= {f"{name}/{sub.get('name', '')}" for sub in request.get("firstAvailable") or ()}
    return names


def _unique_names(path: str, items: Sequence[Object]) -> list[Cause]:
    found, seen = [], set()
    for at, item in enumerate(items):
        name = item.get("name", "")
        if name in seen:
            found.append(common.duplicate(f"{path}[{at}]", name))
        seen.add(name)
    return found


def _name(path: str, name: str) -> list[Cause]:
    return common.dns_label(f"{path}.name", name) if name else [required(f"{path}.name")]


def _request(path: str, request: Object, cel: CelChecker | None) -> list[Cause]:
    found = _name(path, request.get("name", ""))
    exact, first = request.get("exactly"), request.get("firstAvailable") or []
    if exact is None and not first:
        return [*found, required(path, _ONE_KIND)]
    if exact is not None and first:
        return [*found, invalid(path, Raw("null"), f"{_ONE_KIND}, but multiple fields are set")]
    if exact is not None:
        return found + _asked(f"{path}.exactly", exact, cel)
    where = f"{path}.firstAvailable"
    found += each(where, first, _MOST_SUBREQUESTS, lambda at, one: _subrequest(at, one, cel))
    return found + _unique_names(where, first)


def _subrequest(path: str, request: Object, cel: CelChecker | None) -> list[Cause]:
    return _name(path, request.get("name", "")) + _asked(path, request, cel)


def _asked(path: str, asked: Object, cel: CelChecker | None) -> list[Cause]:
    class_name = asked.get("deviceClassName", "")
    where = f"{path}.deviceClassName"
    found = common.dns_subdomain(where, class_name) if class_name else [required(where)]
    found += selector_errors(f"{path}.selectors", asked.get("selectors") or [], cel)
    found += _mode(path, asked)
    found += each(f"{path}.tolerations", asked.get("tolerations") or [], _MOST_TOLERATIONS, _toleration)
    for name in (asked.get("capacity") or {}).get("requests") or ():
        found += common.qualified_attribute(f"{path}.capacity.requests", name)
    return found


def _mode(path: str, asked: Object) -> list[Cause]:
    mode, count = asked.get("allocationMode", "ExactCount"), asked.get("count", 0)
    if mode == "All":
        text = "must not be specified when allocationMode is 'All'"
        return [invalid(f"{path}.count", count, text)] if count else []
    if mode == "ExactCount":
        return [invalid(f"{path}.count", count, "must be greater than zero")] if count <= 0 else []
    return [common.unsupported(f"{path}.allocationMode", mode, ("All", "ExactCount"))]


def selector_errors(path: str, selectors: Sequence[Object], cel: CelChecker | None) -> list[Cause]:
    """Check CEL selectors of a request or a class."""
    return each(path, selectors, _MOST_SELECTORS, lambda at, one: _selector(at, one, cel))


def _selector(path: str, selector: Object, cel: CelChecker | None) -> list[Cause]:
    if selector.get("cel") is None:
        return [required(f"{path}.cel")]
    where, expression = f"{path}.cel.expression", selector["cel"].get("expression", "")
    if not expression:
        return [required(where)]
    if len(expression.encode()) > _LONGEST_EXPRESSION:
        return [common.too_long(where, _LONGEST_EXPRESSION)]
    problem = cel(expression) if cel else None
    return [invalid(where, expression, problem)] if problem else []


def _toleration(path: str, toleration: Object) -> list[Cause]:
    key, operator = toleration.get("key", ""), toleration.get("operator", "Equal")
    found = common.qualified_name(f"{path}.key", key) if key else []
    if operator == "Exists":
        if toleration.get("value"):
            found.append(invalid(f"{path}.value", toleration["value"], "must be empty for operator `Exists`"))
    elif operator != "Equal":
        found.append(common.unsupported(f"{path}.operator", operator, ("Equal", "Exists")))
    elif not key:
        found.append(required(f"{path}.key", "must not be empty for operator `Equal`"))
    else:
        found += common.label_value(f"{path}.value", toleration.get("value", ""))
    effect = toleration.get("effect", "")
    if effect and effect not in ("None", "NoExecute", "NoSchedule"):
        found.append(common.unsupported(f"{path}.effect", effect, ("NoExecute", "NoSchedule", "None")))
    return found


def _references(path: str, given: Sequence[str], names: set[str]) -> list[Cause]:
    found, seen = [], set()
    for at, name in enumerate(given):
        if name not in names:
            found.append(invalid(f"{path}[{at}]", name, _REFERENCE))
        if name in seen:
            found.append(common.duplicate(f"{path}[{at}]", name))
        seen.add(name)
    return found


def _constraint(path: str, constraint: Object, names: set[str]) -> list[Cause]:
    found = _references(f"{path}.requests", constraint.get("requests") or [], names)
    kinds = [kind for kind in ("matchAttribute", "distinctAttribute") if constraint.get(kind) is not None]
    if len(kinds) != 1:
        text = "exactly one of `matchAttribute`, `distinctAttribute` is required"
        return [*found, required(path, text) if not kinds else invalid(path, Raw("null"), text)]
    value = constraint[kinds[0]]
    where = f"{path}.{kinds[0]}"
    if value and "/" not in value:
        return [*found, invalid(where, value, "must include a domain")]
    return found + common.qualified_attribute(where, value)


def config_errors(path: str, config: Object, names: set[str] | None) -> list[Cause]:
    """Check one configuration; `names` is None where it belongs to no requests (in a class)."""
    found = [] if names is None else _references(f"{path}.requests", config.get("requests") or [], names)
    opaque = config.get("opaque")
    if opaque is None:
        return [*found, required(f"{path}.opaque")]
    found += common.driver_name(f"{path}.opaque.driver", opaque.get("driver", ""))
    return found + _parameters(f"{path}.opaque.parameters", opaque.get("parameters"))


def _parameters(path: str, parameters: Any) -> list[Cause]:
    if parameters is None:
        return [required(path)]
    if not isinstance(parameters, dict):
        return [invalid(path, "<value omitted>", "parameters must be a valid JSON object")]
    if len(json.dumps(parameters, separators=(",", ":")).encode()) > _LONGEST_PARAMETERS:
        return [common.too_long(path, _LONGEST_PARAMETERS)]
    return []
