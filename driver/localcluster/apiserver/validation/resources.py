"""A container's resources: extended ones are whole, and asked for by their limit. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from driver.errors import InvalidValueError
from driver.localcluster.apiserver.validation.common import invalid, required
from driver.model import quantity

if TYPE_CHECKING:
    from collections.abc import Mapping
    from fractions import Fraction

    from driver.localcluster.apiserver.errors import Cause
    from driver.localcluster.apiserver.objects import Object


def resource_errors(path: str, resources: Object) -> list[Cause]:
    """Return what is wrong with `requests` and `limits`."""
    requests, limits = resources.get("requests") or {}, resources.get("limits") or {}
    found = [*_amounts(f"{path}.limits", limits), *_amounts(f"{path}.requests", requests)]
    if found:
        return found
    for name, asked in requests.items():
        where = f"{path}.requests[{name}]"
        if name not in limits:
            if is_extended(name):
                found.append(required(f"{path}.limits[{name}]", "Limit must be set for non overcommitable resources"))
            continue
        if is_extended(name) and _amount(asked) != _amount(limits[name]):
            found.append(invalid(where, str(asked), f"must be equal to {name} limit of {limits[name]}"))
        elif _amount(asked) > _amount(limits[name]):
            found.append(invalid(where, str(asked), f"must be less than or equal to {name} limit of {limits[name]}"))
    return found


def is_extended(name: str) -> bool:
    """Say whether a resource is one that a device plugin or a DeviceClass offers."""
    domain, slash, _ = name.rpartition("/")
    return bool(slash) and domain != "kubernetes.io"


def _amounts(path: str, amounts: Mapping[str, object]) -> list[Cause]:
    found: list[Cause] = []
    for name, text in amounts.items():
        try:
            value = _amount(text)
        except InvalidValueError:
            found.append(invalid(f"{path}[{name}]", str(text), "must be a quantity, such as 2, 500m or 16Gi"))
            continue
        if value < 0:
            found.append(invalid(f"{path}[{name}]", str(text), "must be greater than or equal to 0"))
        elif is_extended(name) and value.denominator != 1:
            found.append(invalid(f"{path}[{name}]", str(text), "must be an integer"))
    return found


def _amount(text: object) -> Fraction:
    return quantity.parse(str(text))
