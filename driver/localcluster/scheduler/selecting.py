"""Which selectors a device passes: the class's first, then the request's, stopping at the first that is false. Pure.

Messages follow the scheduler's (`recordings/allocation.json`: missing-attribute-is-error, type-mismatch).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from driver.localcluster.scheduler import cel
from driver.localcluster.scheduler.outcome import NotSelected, SchedulerError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from driver.localcluster.scheduler.devices import Device
    from driver.localcluster.scheduler.requests import Ask


def failed_selector(device: Device, ask: Ask, device_class: Mapping[str, Any], claim: str) -> NotSelected | None:
    """Return the first selector that is false.

    :raises SchedulerError: if a selector has no value for this device.
    """
    name = ask.class_name
    try:
        if failed := _first_false(device, class_selectors(device_class), f"class {name}"):
            return NotSelected(expression=failed, class_name=name)
        if failed := _first_false(device, ask.selectors, f"claim {claim}"):
            return NotSelected(expression=failed, class_name=None)
    except SchedulerError as exc:
        exc.where = f"request {ask.name}, device {device.name} of pool {device.id.pool}"
        raise
    return None


def class_selectors(device_class: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the expressions of a DeviceClass."""
    selectors = (device_class.get("spec") or {}).get("selectors") or ()
    return tuple(selector["cel"]["expression"] for selector in selectors if selector.get("cel"))


def _first_false(device: Device, expressions: Iterable[str], whose: str) -> str | None:
    for index, expression in enumerate(expressions):
        verdict = device.verdicts.get(expression)
        if verdict is None:
            verdict = device.verdicts[expression] = _verdict(device, expression)
        if isinstance(verdict, str):
            raise SchedulerError(f"{whose}: selector #{index}: {verdict}")
        if not verdict:
            return expression
    return None


def _verdict(device: Device, expression: str) -> bool | str:
    try:
        return cel.compile(expression).matches(device.variables)
    except cel.CelError as exc:
        return f"CEL compile error: {exc}"
    except cel.CelRuntimeError as exc:
        return f"CEL runtime error: {exc}"
