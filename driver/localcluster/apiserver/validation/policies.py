"""The request policy of a consumable capacity. Pure; quantities are known to parse."""

from __future__ import annotations

from typing import TYPE_CHECKING

from driver.localcluster.apiserver.validation import common
from driver.localcluster.apiserver.validation.common import invalid, required
from driver.model.quantity import parse

if TYPE_CHECKING:
    from fractions import Fraction

    from driver.localcluster.apiserver.errors import Cause
    from driver.localcluster.apiserver.objects import Object

_MOST_VALUES = 10


def policy_errors(path: str, capacity: Object, *, allowed: bool) -> list[Cause]:
    """Return what is wrong with a capacity's policy; `allowed`: the device may be allocated more than once."""
    policy = capacity.get("requestPolicy")
    if policy is None:
        return []
    path = f"{path}.requestPolicy"
    if not allowed:
        return [common.forbidden(path, "allowMultipleAllocations must be true")]
    values, bounds = policy.get("validValues"), policy.get("validRange")
    if values and bounds is not None:
        text = 'exactly one policy can be specified, cannot specify "validValues" and "validRange" at the same time'
        return [common.forbidden(path, text)]
    if values:
        return _values(path, policy.get("default"), values)
    if bounds is not None:
        return _range(path, policy.get("default"), bounds, parse(capacity.get("value", "0")))
    return []


def _values(path: str, default: str | None, values: list[str]) -> list[Cause]:
    if default is None:
        return [required(f"{path}.default", "required when validValues is defined")]
    found: list[Cause] = []
    where = f"{path}.validValues"
    too_many = len(values) > _MOST_VALUES
    if too_many:
        found.append(common.too_many(where, len(values), _MOST_VALUES))
    for at in range(1, len(values)):
        if parse(values[at]) < parse(values[at - 1]):
            found.append(invalid(f"{where}[{at}]", values[at], "values must be sorted in ascending order"))
        elif parse(values[at]) == parse(values[at - 1]):
            found.append(common.duplicate(f"{where}[{at}]", values[at]))
    if too_many or parse(default) not in {parse(value) for value in values}:
        found.append(invalid(where, default, "default value is not valid according to the requestPolicy"))
    return found


def _range(path: str, default: str | None, bounds: Object, value: Fraction) -> list[Cause]:
    where = f"{path}.validRange"
    if default is None:
        return [required(f"{path}.default", "required when validRange is defined")]
    if bounds.get("min") is None:
        return [required(f"{where}.min", "required when validRange is defined")]
    found: list[Cause] = []
    low, first = parse(bounds["min"]), parse(default)
    if first < low:
        found.append(invalid(f"{where}.min", default, f"default is less than min: {bounds['min']}"))
    if low > value:
        found.append(invalid(f"{where}.min", bounds["min"], "min is larger than capacity value"))
    found += _upper(where, default, bounds, value)
    return found + _step(where, default, bounds)


def _upper(where: str, default: str, bounds: Object, value: Fraction) -> list[Cause]:
    if bounds.get("max") is None:
        return []
    found: list[Cause] = []
    high = parse(bounds["max"])
    if parse(bounds["min"]) > high:
        found.append(invalid(f"{where}.min", bounds["min"], f"min is larger than max: {bounds['max']}"))
    if high > value:
        found.append(invalid(f"{where}.max", bounds["max"], "max is larger than capacity value"))
    if parse(default) > high:
        found.append(invalid(f"{where}.max", default, f"default is more than max: {bounds['max']}"))
    return found


def _step(where: str, default: str, bounds: Object) -> list[Cause]:
    if bounds.get("step") is None:
        return []
    step, low = parse(bounds["step"]), parse(bounds["min"])
    if step <= 0:
        return [invalid(f"{where}.step", bounds["step"], "must be greater than zero")]
    found: list[Cause] = []
    if bounds.get("max") is not None and (parse(bounds["max"]) - low) % step:
        found.append(
            invalid(f"{where}.step", bounds["max"], f"value is not a multiple of a given step: {bounds['step']}")
        )
    if (parse(default) - low) % step:
        found.append(invalid(f"{where}.step", default, f"value is not a multiple of a given step: {bounds['step']}"))
    return found
