"""Says why claims can't be allocated on a node: which check failed on which device, and by how much. Pure."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from driver.localcluster.scheduler.celvalues import show as show_quantity
from driver.localcluster.scheduler.explain import why_false
from driver.localcluster.scheduler.outcome import (
    CapacityShort,
    Constrained,
    CounterShort,
    InUse,
    NotSelected,
    Tainted,
)
from driver.localcluster.scheduler.wording import show

if TYPE_CHECKING:
    from collections.abc import Iterable

    from driver.localcluster.scheduler.devices import Device
    from driver.localcluster.scheduler.outcome import Finding, Obstacle, Unsatisfiable
    from driver.localcluster.scheduler.requests import Ask, Constraint

_REASONS_MAX = 3
"""How many different reasons are written per request; the rest is counted."""


def describe(failure: Unsatisfiable) -> str:
    """Return one line for people; deterministic."""
    if failure.note:
        return failure.note
    found = "; ".join(_finding(finding) for finding in failure.findings)
    if not any(finding.ask.called for finding in failure.findings):  # the claim is theirs, too
        found = f"{failure.claim.rpartition('/')[2]}: {found}"
    return "; ".join([found, *failure.unusable])


def _finding(finding: Finding) -> str:
    ask = finding.ask
    relevant = _relevant(finding)
    matching = len(finding.fitting) + len(relevant)
    if not matching and not finding.obstacles:
        return f"{ask.title}: the node has no devices"
    if constraint := _broken_constraint(relevant):
        return f"{ask.title}: {_constraint(constraint, ask, finding)}"
    if not relevant:
        relevant = list(finding.obstacles)
    reasons = _grouped(relevant)
    return f"{ask.title}: {_count(ask, finding)}{'; '.join(reasons)}"


def _relevant(finding: Finding) -> list[tuple[Device, Obstacle]]:
    """Leave out the devices of other classes, which nobody expected to match."""
    return [item for item in finding.obstacles if not (isinstance(item[1], NotSelected) and item[1].class_name)]


def _count(ask: Ask, finding: Finding) -> str:
    fitting = len(finding.fitting)
    if ask.count is None:
        return "all matching devices are wanted, but " if fitting else ""
    if not fitting and ask.count == 1:
        return ""
    end = ": " if finding.obstacles else ", and it has no more"
    return f"{fitting} of {ask.count} devices fit{end}"


def _grouped(items: Iterable[tuple[Device, Obstacle]]) -> list[str]:
    """Write each reason once, with the first device that has it and how many more do; selectors come last."""
    groups: dict[str, list[tuple[Device, Obstacle]]] = {}
    for device, obstacle in sorted(items, key=lambda item: isinstance(item[1], NotSelected)):
        groups.setdefault(_alike(device, obstacle), []).append((device, obstacle))
    lines = []
    for members in list(groups.values())[:_REASONS_MAX]:
        more = f" ({len(members) - 1} more likewise)" if len(members) > 1 else ""
        lines.append(f"{members[0][0].name}: {_reason(*members[0])}{more}")
    others = sum(len(members) for members in list(groups.values())[_REASONS_MAX:])
    return [*lines, f"{others} more for other reasons"] if others else lines


def _alike(device: Device, obstacle: Obstacle) -> str:
    """Return what two devices share if the reason of one may stand for both."""
    if isinstance(obstacle, InUse):
        return "in use"
    if isinstance(obstacle, CounterShort):
        return f"counters of {obstacle.counter[0]}"
    return _reason(device, obstacle)


def _reason(device: Device, obstacle: Obstacle) -> str:
    match obstacle:
        case InUse(holder=holder):
            return f"in use by {holder}"
        case Tainted(taint=taint):
            return f"taint {taint} is not tolerated"
        case NotSelected(expression=expression, class_name=class_name):
            of_class = f" (class {class_name})" if class_name else ""
            return why_false(expression, device.variables) + of_class
        case CounterShort(counter=(counter_set, counter), need=need, left=left):
            return f"{counter} of {counter_set} has {show_quantity(left)} left, {show_quantity(need)} is needed"
        case CapacityShort(why=why):
            return why
        case Constrained() as found:
            return _constrained(found)


def _constrained(found: Constrained) -> str:
    name = "/".join(found.constraint.attribute)
    if found.value is None:
        return f"it has no attribute {name}"
    value = show(found.value[1])
    if found.constraint.distinct:
        return f"{name} is {value}, as that of {found.other}"
    return f"{name} is {value}, that of {found.other} is {show(found.wanted[1]) if found.wanted else 'missing'}"


def _broken_constraint(items: Iterable[tuple[Device, Obstacle]]) -> Constraint | None:
    return next((why.constraint for _, why in items if isinstance(why, Constrained) and why.value is not None), None)


def _constraint(constraint: Constraint, ask: Ask, finding: Finding) -> str:
    """Count the values of the attribute among the devices that would do but for the constraint."""
    candidates = [*finding.fitting, *(device for device, why in finding.obstacles if isinstance(why, Constrained))]
    values = Counter(_value(device, constraint) for device in candidates)
    name = "/".join(constraint.attribute)
    found = ", ".join(f"{count} with {value}" for value, count in values.items())
    wish = "different" if constraint.distinct else "one"
    return f"no {ask.size} free devices with {wish} {name}: {found}"


def _value(device: Device, constraint: Constraint) -> str:
    value = device.attributes.get(constraint.attribute)
    return "none" if value is None else show(value[1])
