"""When two ResourceSlice specs are the same to Kubernetes, though not byte by byte. Pure.

Ignored: key order, how a quantity is written, empty lists and values against absent ones, and what the server fills in
(`timeAdded` of a taint). The generation is not content and is compared elsewhere.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

from driver.errors import InvalidValueError
from driver.model import quantity

if TYPE_CHECKING:
    from collections.abc import Mapping
    from fractions import Fraction

    from driver.model.json_object import JsonObject


def normal(spec: Mapping[str, Any]) -> JsonObject:
    """Return a form of a v1 spec that is equal exactly if the specs mean the same."""
    plain = {key: value for key, value in spec.items() if key not in ("pool", "devices", "sharedCounters")}
    pool = {key: value for key, value in _mapping(spec.get("pool")).items() if key != "generation"}
    return {
        **_present(plain),
        "pool": pool,
        "devices": [_device(one) for one in spec.get("devices") or ()],
        "sharedCounters": [_counters(one) for one in spec.get("sharedCounters") or ()],
    }


def _device(item: Mapping[str, Any]) -> JsonObject:
    special = {
        "attributes": dict(_mapping(item.get("attributes"))),
        "capacity": {name: _capacity(one) for name, one in _mapping(item.get("capacity")).items()},
        "taints": [_taint(one) for one in item.get("taints") or ()],
        "consumesCounters": [_counters(one) for one in item.get("consumesCounters") or ()],
    }
    return _present({**item, **special})


def _capacity(item: Mapping[str, Any]) -> JsonObject:
    policy = item.get("requestPolicy")
    rest = {"requestPolicy": _quantities(policy)} if policy else {}
    return {**item, "value": _quantity(item.get("value")), **rest}


def _counters(item: Mapping[str, Any]) -> JsonObject:
    return {**item, "counters": {name: _capacity(one) for name, one in _mapping(item.get("counters")).items()}}


def _taint(item: Mapping[str, Any]) -> JsonObject:
    return _present({key: value for key, value in item.items() if key != "timeAdded"})


def _quantities(value: Any) -> Any:
    """Normalize every string below a request policy: all of them are quantities."""
    if isinstance(value, dict):
        return {key: _quantities(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_quantities(one) for one in value]
    return _quantity(value)


@lru_cache(maxsize=4096)  # few distinct values, asked for again and again
def _quantity(value: str | float | None) -> Fraction | str | float | None:
    try:
        return quantity.parse(str(value))
    except InvalidValueError:
        return value


def _present(item: Mapping[str, Any]) -> JsonObject:
    return {key: value for key, value in item.items() if value not in (None, "", [], {}, False)}


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
