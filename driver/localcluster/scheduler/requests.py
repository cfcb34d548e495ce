"""What a ResourceClaim asks for, decoded. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from driver.localcluster.scheduler.devices import Name, qualify
from driver.model import quantity

if TYPE_CHECKING:
    from collections.abc import Mapping
    from fractions import Fraction

    Object = Mapping[str, Any]

RESULTS_MAX = 32
"""How many devices one claim may hold (the API's limit)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One request, or one alternative of a prioritized one."""

    name: str
    """As results name it: `r`, or `r/alternative`."""
    class_name: str
    selectors: tuple[str, ...]
    count: int | None
    """None asks for all matching devices."""
    admin: bool
    tolerations: tuple[Object, ...]
    capacity: Mapping[str, Fraction]
    called: str = ""
    """What people know it by where the request is not theirs; empty if it is."""

    @property
    def title(self) -> str:
        """Return what it is called in a reason."""
        return self.called or f"request {self.name}"

    @property
    def size(self) -> str:
        """Return the number of devices as people write it."""
        return "all" if self.count is None else str(self.count)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request with its alternatives in order of preference; an exact one has a single alternative."""

    name: str
    alternatives: tuple[Ask, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Constraint:
    """Devices of the named requests (of all, if none is named) agree, or all differ, in an attribute."""

    requests: frozenset[str]
    attribute: Name
    distinct: bool

    def covers(self, ask: Ask) -> bool:
        """Say whether it applies: a request's name stands for its alternatives too."""
        return not self.requests or ask.name in self.requests or ask.name.partition("/")[0] in self.requests


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A claim's wishes; `key` is `namespace/name`."""

    key: str
    requests: tuple[Request, ...]
    constraints: tuple[Constraint, ...]
    config: tuple[Object, ...]


def read(claim: Object) -> Claim:
    """Decode a ResourceClaim.

    :raises InvalidValueError: if a quantity is none.
    """
    devices = (claim.get("spec") or {}).get("devices") or {}
    return Claim(
        key=key_of(claim),
        requests=tuple(_request(raw) for raw in devices.get("requests") or ()),
        constraints=tuple(_constraint(raw) for raw in devices.get("constraints") or ()),
        config=tuple(devices.get("config") or ()),
    )


def key_of(claim: Object) -> str:
    """Return `namespace/name`."""
    meta = claim["metadata"]
    return f"{meta.get('namespace') or ''}/{meta['name']}"


def _request(raw: Object) -> Request:
    name = raw["name"]
    if raw.get("firstAvailable"):
        asks = tuple(_ask(f"{name}/{alternative['name']}", alternative) for alternative in raw["firstAvailable"])
    else:
        asks = (_ask(name, raw.get("exactly") or {}),)
    return Request(name=name, alternatives=asks)


def _ask(name: str, raw: Object) -> Ask:
    capacity = (raw.get("capacity") or {}).get("requests") or {}
    return Ask(
        name=name,
        class_name=raw.get("deviceClassName") or "",
        selectors=tuple(
            selector["cel"]["expression"] for selector in raw.get("selectors") or () if selector.get("cel")
        ),
        count=None if raw.get("allocationMode") == "All" else raw.get("count") or 1,
        admin=bool(raw.get("adminAccess")),
        tolerations=tuple(raw.get("tolerations") or ()),
        capacity={key: quantity.parse(str(value)) for key, value in capacity.items()},
    )


def _constraint(raw: Object) -> Constraint:
    distinct = raw.get("distinctAttribute")
    return Constraint(
        requests=frozenset(raw.get("requests") or ()),
        attribute=qualify("", distinct or raw.get("matchAttribute") or ""),
        distinct=distinct is not None,
    )
