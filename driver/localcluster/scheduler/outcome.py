"""What comes of an allocation on one node, and what stood in its way. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from driver.errors import PermanentError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from fractions import Fraction

    from driver.localcluster.scheduler.devices import Counter, Device
    from driver.localcluster.scheduler.requests import Ask, Constraint
    from driver.localcluster.scheduler.taints import Taint


class SchedulerError(PermanentError):
    """The pod can't be scheduled anywhere until its claim or its class changes (a selector without a value).

    `where` names what the message, which is the real scheduler's, leaves out: the request and the device.
    """

    def __init__(self, message: str, *, where: str = "") -> None:
        super().__init__(message)
        self.where = where


@dataclass(frozen=True, slots=True, kw_only=True)
class InUse:
    """Somebody holds the device."""

    holder: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Tainted:
    """The device has a taint that the request does not tolerate."""

    taint: Taint


@dataclass(frozen=True, slots=True, kw_only=True)
class NotSelected:
    """A selector is false; `class_name` if it is the class's, None if it is the request's."""

    expression: str
    class_name: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CounterShort:
    """Too little is left of a shared counter."""

    counter: Counter
    need: Fraction
    left: Fraction


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityShort:
    """The device can't give the requested capacity: `why` says of what, how much, and how much too little."""

    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Constrained:
    """The device's `value` of the constraint's attribute does not go with `other`'s; None if it lacks the attribute."""

    constraint: Constraint
    value: Any
    wanted: Any
    other: str


Obstacle = InUse | Tainted | NotSelected | CounterShort | CapacityShort | Constrained


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One alternative of the request that failed: which devices it would get, and why not the others."""

    ask: Ask
    fitting: tuple[Device, ...]
    obstacles: tuple[tuple[Device, Obstacle], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Unsatisfiable:
    """No way to allocate on this node. `note` replaces the findings where there is a single cause."""

    claim: str
    request: str
    findings: tuple[Finding, ...] = ()
    note: str = ""
    unusable: tuple[str, ...] = ()
    """Pools of the node that can't be used, and why."""
    everywhere: bool = False
    """The same on every node: nothing else needs to be tried."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """What each claim gets, by its key: the content of `status.allocation`."""

    claims: Mapping[str, dict[str, Any]]
    score: int = field(default=0)
    """Higher where prioritized requests got better alternatives."""
