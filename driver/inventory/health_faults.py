"""What ails a fake GPU that answers: the part of a faults file that its health checks report. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from driver.model.decode import integer
from driver.model.health import Severity
from driver.model.health_facts import Fabric, HealthReport, Recovery
from driver.model.health_rules import DEFAULT_RULES

if TYPE_CHECKING:
    from collections.abc import Iterable

    from driver.model.decode import Fields
    from driver.model.device import Gpu

SLOWDOWN = 90
"""Degrees Celsius at which a fake GPU slows down."""

_COOL = 40
_MANY = 1 << 31
_FABRICS = {"not-ready": Fabric.NOT_READY, "degraded": Fabric.DEGRADED, "failed": Fabric.FAILED}
_CHOICES: dict[str, tuple[str, ...]] = {
    "recovery": tuple(Recovery),
    "row_remap": ("pending", "failed"),
    "fabric": tuple(_FABRICS),
}
_NUMBERS: dict[str, tuple[int, int]] = {
    "ecc": (0, _MANY),
    "temperature": (-40, 200),
    "nvlink_down": (0, 64),
    "nvlink_errors": (0, _MANY),
}
QUERIES = {
    "recovery": ("recovery",),
    "row_remap": ("remap_pending", "remap_failed"),
    "ecc": ("ecc_uncorrected",),
    "temperature": ("temperature", "margin"),
    "nvlink_errors": ("nvlink_errors",),
}
"""What can be unsupported, or fail, in a check, and the fields of the report that it costs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthFaults:
    """What a check finds; empty or None for nothing."""

    recovery: str = ""
    row_remap: str = ""
    fabric: str = ""
    ecc: int = 0
    temperature: int | None = None
    nvlink_down: int = 0
    nvlink_errors: int = 0


def decode_health(fields: Fields) -> HealthFaults:
    """Take the fields that there are.

    :raises InvalidValueError: naming the field.
    """
    words = {key: fields.choice(key, allowed) for key, allowed in _CHOICES.items() if key in fields}
    numbers = {
        key: integer(fields.take(key), fields.at(key), *bounds) for key, bounds in _NUMBERS.items() if key in fields
    }
    for key in (*_CHOICES, *_NUMBERS):
        fields.take(key, None)  # so that an unknown field's message knows them
    return HealthFaults(**words, **numbers)  # type: ignore[arg-type]  # by the tables above


def encode_health(faults: HealthFaults) -> dict[str, object]:
    """Write what differs from nothing, as `decode_health` reads it."""
    nothing = HealthFaults()
    keys = (*_CHOICES, *_NUMBERS)
    return {key: getattr(faults, key) for key in keys if getattr(faults, key) != getattr(nothing, key)}


def report(gpu: Gpu, faults: HealthFaults, xids: Iterable[int], absent: Iterable[str], fails: str) -> HealthReport:
    """Return what a check of the GPU finds; `absent` names queries without support, `fails` one that fails."""
    temperature = _COOL if faults.temperature is None else faults.temperature
    links = gpu.nvlink.active_links
    full = HealthReport(
        recovery=Recovery(faults.recovery) if faults.recovery else _needed(xids),
        remap_pending=faults.row_remap == "pending",
        remap_failed=faults.row_remap == "failed",
        ecc_uncorrected=faults.ecc,
        fabric=_FABRICS.get(faults.fabric, Fabric.READY if gpu.nvlink.switched else None),
        nvlink_active=max(0, links - faults.nvlink_down) if links else None,
        nvlink_errors=faults.nvlink_errors if links else None,
        temperature=temperature,
        margin=SLOWDOWN - temperature,
    )
    lost = [name for query in absent for name in QUERIES.get(query, ())]
    failed = QUERIES.get(fails, ())
    return replace(full, failed=failed, **dict.fromkeys([*lost, *failed]))


def _needed(xids: Iterable[int]) -> Recovery:
    serious = any(DEFAULT_RULES.of_xid(xid).severity > Severity.NOTICE for xid in xids)
    return Recovery.RESET if serious else Recovery.NONE
