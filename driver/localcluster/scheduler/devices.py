"""Devices and pools as the scheduler sees them, decoded from ResourceSlices. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from driver.localcluster.scheduler import cel, celvalues, nodes, taints
from driver.model import quantity

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from fractions import Fraction

    Object = Mapping[str, Any]

Name = tuple[str, str]
"""The domain and the identifier of an attribute or a capacity."""
Counter = tuple[str, str]
"""A counter set and one of its counters."""


class DeviceId(NamedTuple):
    """What identifies a device in the cluster."""

    driver: str
    pool: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """How much of a capacity one allocation may take; `values` or the range, or neither."""

    default: Fraction | None
    values: tuple[Fraction, ...] = ()
    low: Fraction | None = None
    high: Fraction | None = None
    step: Fraction | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """One capacity; `name` is as published."""

    name: str
    value: Fraction
    policy: Policy | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One device with what decides about its allocation."""

    id: DeviceId
    attributes: Mapping[Name, tuple[str, Any]]
    """The kind (`string`, `int`, …) and the value."""
    capacity: Mapping[Name, Capacity]
    consumes: Mapping[Counter, Fraction]
    taints: tuple[taints.Taint, ...]
    multiple: bool
    where: Object
    """The fields that choose its nodes: nodeName, nodeSelector, allNodes."""
    variables: Mapping[str, Any] = field(repr=False, compare=False)
    """What selectors are evaluated with."""
    verdicts: dict[str, bool | str] = field(default_factory=dict, repr=False, compare=False)
    """By selector: does it match, or why it has no value. A device never changes, so this is kept."""

    @property
    def name(self) -> str:
        """Return the name within its pool."""
        return self.id.name

    def serves(self, node: Object) -> bool:
        """Say whether the node can use it."""
        if self.where.get("nodeName"):
            return bool(self.where["nodeName"] == nodes.name_of(node))
        if self.where.get("nodeSelector"):
            return nodes.selector_matches(self.where["nodeSelector"], node)
        return bool(self.where.get("allNodes"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """The newest generation of one pool; `problem` says why it can't be used."""

    driver: str
    name: str
    devices: tuple[Device, ...]
    counters: Mapping[Counter, Fraction]
    problem: str | None = None


def qualify(driver: str, name: str) -> Name:
    """Split a name into domain and identifier; without a domain it belongs to the driver."""
    domain, slash, identifier = name.rpartition("/")
    return (domain, identifier) if slash else (driver, name)


def make_pool(driver: str, name: str, slices: Iterable[Object]) -> Pool:
    """Make one pool: the slices of the highest generation by name, complete if all of them are there.

    :raises InvalidValueError: if a slice has a quantity that is none.
    """
    ordered = sorted(slices, key=lambda obj: str((obj.get("metadata") or {}).get("name") or ""))
    specs: list[Object] = [obj["spec"] for obj in ordered]
    newest = max(spec["pool"].get("generation") or 0 for spec in specs)
    specs = [spec for spec in specs if (spec["pool"].get("generation") or 0) == newest]
    devices = tuple(_device(driver, name, spec, raw) for spec in specs for raw in spec.get("devices") or ())
    counters = {
        (counter_set["name"], counter): quantity.parse(str(value["value"]))
        for spec in specs
        for counter_set in spec.get("sharedCounters") or ()
        for counter, value in (counter_set.get("counters") or {}).items()
    }
    problem = _incomplete(specs) or _invalid(devices, counters)
    return Pool(driver=driver, name=name, devices=devices, counters=counters, problem=problem)


def _incomplete(specs: list[Object]) -> str | None:
    wanted = specs[0]["pool"].get("resourceSliceCount") or 1
    if len(specs) >= wanted:
        return None
    return f"only {len(specs)} of its {wanted} slices are there: its driver is updating it"


def _invalid(devices: tuple[Device, ...], counters: Mapping[Counter, Fraction]) -> str | None:
    names = [device.name for device in devices]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        return f"device {twice} is in it twice"
    for device in devices:
        for counter_set, counter in device.consumes:
            if (counter_set, counter) not in counters:
                return f"device {device.name} consumes counter {counter} of {counter_set}, which nothing provides"
    return None


def _device(driver: str, pool: str, spec: Object, raw: Object) -> Device:
    attributes = {qualify(driver, name): _attribute(value) for name, value in (raw.get("attributes") or {}).items()}
    capacity = {qualify(driver, name): _capacity(name, value) for name, value in (raw.get("capacity") or {}).items()}
    multiple = bool(raw.get("allowMultipleAllocations"))
    return Device(
        id=DeviceId(driver, pool, raw["name"]),
        attributes=attributes,
        capacity=capacity,
        consumes=_consumption(raw.get("consumesCounters") or ()),
        taints=taints.read(raw.get("taints")),
        multiple=multiple,
        where=raw if spec.get("perDeviceNodeSelection") else spec,
        variables=_variables(driver, attributes, capacity, multiple=multiple),
    )


def _attribute(raw: Object) -> tuple[str, Any]:
    return next(((kind, tuple(value) if isinstance(value, list) else value) for kind, value in raw.items()), ("", None))


def _capacity(name: str, raw: Object) -> Capacity:
    policy = raw.get("requestPolicy")
    return Capacity(name=name, value=quantity.parse(str(raw["value"])), policy=_policy(policy) if policy else None)


def _policy(raw: Object) -> Policy:
    span = raw.get("validRange") or {}
    return Policy(
        default=_maybe(raw.get("default")),
        values=tuple(quantity.parse(str(value)) for value in raw.get("validValues") or ()),
        low=_maybe(span.get("min")),
        high=_maybe(span.get("max")),
        step=_maybe(span.get("step")),
    )


def _maybe(raw: Any) -> Fraction | None:
    return None if raw is None else quantity.parse(str(raw))


def _consumption(raw: Iterable[Object]) -> dict[Counter, Fraction]:
    return {
        (item["counterSet"], counter): quantity.parse(str(value["value"]))
        for item in raw
        for counter, value in (item.get("counters") or {}).items()
    }


def _variables(
    driver: str, attributes: Mapping[Name, tuple[str, Any]], capacity: Mapping[Name, Capacity], *, multiple: bool
) -> dict[str, Any]:
    by_domain: dict[str, dict[str, Any]] = {}
    for (domain, name), (kind, value) in attributes.items():
        by_domain.setdefault(domain, {})[name] = _cel_value(kind, value)
    sizes: dict[str, dict[str, Any]] = {}
    for (domain, name), size in capacity.items():
        sizes.setdefault(domain, {})[name] = celvalues.quantity_of(size.value)
    return cel.variables(driver, by_domain, sizes, multiple=multiple)


def _cel_value(kind: str, value: Any) -> Any:
    if isinstance(value, tuple):
        return [_cel_value(kind.removesuffix("s"), item) for item in value]
    return celvalues.make_semver(value) if kind == "version" else value
