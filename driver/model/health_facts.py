"""What is known about a GPU's health: single facts, and what one check of a GPU reported. Pure."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


class Kind(enum.StrEnum):
    """What a fact is about; the words of a rules file."""

    LOST = "lost"
    XID = "xid"
    RESET_REQUIRED = "reset-required"
    REBOOT_REQUIRED = "reboot-required"
    REMAP_PENDING = "row-remap-pending"
    REMAP_FAILED = "row-remap-failed"
    ECC = "ecc-uncorrected"
    FABRIC = "fabric-not-ready"
    FABRIC_FAILED = "fabric-failed"
    NVLINK_DOWN = "nvlink-down"
    NVLINK_ERRORS = "nvlink-errors"
    TEMPERATURE = "temperature"
    MPS = "mps-dead"
    PROBE = "probe-failed"
    UNMONITORED = "unmonitored"


@dataclass(frozen=True, slots=True, order=True)
class Fact:
    """Something that is wrong, or worth telling. `code` is an XID's number, `detail` is for people."""

    kind: Kind
    code: int = 0
    detail: str = ""


class Recovery(enum.StrEnum):
    """What a GPU says that it needs (`NVML_FI_DEV_GET_GPU_RECOVERY_ACTION`)."""

    NONE = "none"
    RESET = "reset"
    REBOOT = "reboot"
    DRAIN_P2P = "drain-p2p"
    DRAIN_AND_RESET = "drain-and-reset"
    RECOVER_IMEX = "recover-imex-domain"
    BUS_RESET = "bus-reset"
    SYSTEM_REBOOT = "system-reboot"


BY_REBOOT = frozenset({Recovery.REBOOT, Recovery.SYSTEM_REBOOT})


class Fabric(enum.StrEnum):
    """How a GPU's membership in an NVLink fabric goes; a GPU without one has none of these."""

    READY = "ready"
    NOT_READY = "not ready"
    DEGRADED = "degraded"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthReport:
    """What one check of a GPU found. `None` is 'the hardware or driver can't tell'.

    `failed` names the fields whose query failed: of those nothing is known, and what was known before stands.
    """

    recovery: Recovery | None = None
    remap_pending: bool | None = None
    remap_failed: bool | None = None
    ecc_uncorrected: int | None = None  # errors since the last reset
    fabric: Fabric | None = None
    nvlink_active: int | None = None  # links
    nvlink_errors: int | None = None  # recoveries and replays of all links, ever
    temperature: int | None = None  # degrees Celsius
    margin: int | None = None  # degrees until the GPU slows down
    failed: tuple[str, ...] = ()


_HOT_UNTIL = 5
"""Degrees below the limit at which a GPU that was too hot is cool again: no flapping around the limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """The last word on what is polled: the report, and what only its history tells."""

    report: HealthReport = field(default_factory=HealthReport)
    links: int = 0  # the most NVLinks that were ever active
    new_errors: int = 0  # NVLink errors since the check before
    hot: bool = False

    def after(self, report: HealthReport) -> Checked:
        """Return what is known after one more check."""
        whole = _filled(report, self.report)
        before, now = self.report.nvlink_errors, whole.nvlink_errors
        if "nvlink_errors" in report.failed:
            new_errors = self.new_errors
        else:
            new_errors = max(0, now - before) if before is not None and now is not None else 0
        return Checked(
            report=whole,
            links=max(self.links, whole.nvlink_active or 0),
            new_errors=new_errors,
            hot=whole.margin is not None and whole.margin <= (_HOT_UNTIL if self.hot else 0),
        )

    def facts(self) -> Iterator[Fact]:
        """Yield what is wrong."""
        yield from _recovery(self.report.recovery)
        yield from _memory(self.report)
        yield from _fabric(self.report.fabric)
        active = self.report.nvlink_active
        if active is not None and active < self.links:
            yield Fact(Kind.NVLINK_DOWN, detail=f"{self.links - active} of {self.links} NVLinks are down")
        if self.new_errors:
            yield Fact(Kind.NVLINK_ERRORS, detail="NVLinks have new errors")
        if self.hot:
            yield Fact(Kind.TEMPERATURE, detail="it is so hot that it slows down")


def _filled(report: HealthReport, before: HealthReport) -> HealthReport:
    """Return the report, with what was known before where a query failed."""
    known = {name: getattr(before, name) for name in report.failed}
    return replace(report, **known) if known else report


def _recovery(action: Recovery | None) -> Iterator[Fact]:
    if action in BY_REBOOT:
        yield Fact(Kind.REBOOT_REQUIRED, detail="it needs a reboot of the node")
    elif action not in (None, Recovery.NONE):
        yield Fact(Kind.RESET_REQUIRED, detail=f"it needs a recovery: {action}")


def _memory(report: HealthReport) -> Iterator[Fact]:
    if report.remap_failed:
        yield Fact(Kind.REMAP_FAILED, detail="a memory row could not be remapped")
    if report.remap_pending:
        yield Fact(Kind.REMAP_PENDING, detail="a memory row is remapped by the next reset")
    if report.ecc_uncorrected:
        yield Fact(Kind.ECC, detail=f"uncorrected memory errors since the last reset: {report.ecc_uncorrected}")


def _fabric(state: Fabric | None) -> Iterator[Fact]:
    if state is Fabric.FAILED:
        yield Fact(Kind.FABRIC_FAILED, detail="it failed to join its NVLink fabric, or lost its route in it")
    elif state in (Fabric.NOT_READY, Fabric.DEGRADED):
        yield Fact(Kind.FABRIC, detail=f"its NVLink fabric is {state}")
