"""What is remembered about one GPU, and how each check and each event changes it. Pure: moments are arguments.

Polled facts are as the last check found them. An XID is remembered until a check that began after it gives the
evidence that its rule asks for (see `health_rules`): quiet time alone never clears what is fatal.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from driver.model.health import Severity
from driver.model.health_facts import Checked, Fact, Kind, Recovery

if TYPE_CHECKING:
    from collections.abc import Iterator

    from driver.model.health_facts import HealthReport
    from driver.model.health_rules import Rules

MAX_XIDS = 64
"""Distinct XIDs that are remembered of a GPU, the worst and latest: garbage must not grow without bounds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenXid:
    """An XID. `instances` is (GPU instance, compute instance), None for the whole GPU; `at` is its last moment.

    `down` says that since then the GPU was lost or asked for a reset: when it is well again, it had one.
    """

    xid: int
    instances: tuple[int, int | None] | None = None
    at: float
    down: bool = False
    recalled: bool = False  # from before this process started


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """All that is remembered. `lost` is why the GPU does not answer; empty if it does."""

    lost: str = ""
    checked: Checked = field(default_factory=Checked)
    xids: tuple[SeenXid, ...] = ()

    # --- what changes it ---------------------------------------------------------------------------------------------

    def with_xid(self, seen: SeenXid, rules: Rules) -> Chart:
        """Note an XID; the same again is only later."""
        others = [one for one in self.xids if (one.xid, one.instances) != (seen.xid, seen.instances)]
        kept = sorted([*others, seen], key=lambda one: (-rules.of_xid(one.xid).severity, -one.at))
        return replace(self, xids=tuple(kept[:MAX_XIDS]))

    def when_lost(self, why: str) -> Chart:
        """Note that this GPU does not answer, while others do."""
        return replace(self, lost=why, xids=tuple(replace(one, down=True) for one in self.xids))

    def when_unreachable(self, why: str) -> Chart:
        """Note that no GPU can be asked: it tells nothing about this one, a reset included."""
        return replace(self, lost=why)

    def when_answering(self) -> Chart:
        """Note that it answers."""
        return replace(self, lost="") if self.lost else self

    def after_reading(self, gpu_instances: frozenset[int], *, began: float, rules: Rules) -> Chart:
        """Note which GPU instances a reading that began at a moment has found; with one its tenant's faults go."""
        kept = tuple(
            one
            for one in self.xids
            if one.instances is None
            or one.instances[0] in gpu_instances
            or began <= one.at
            or not _is_one_tenants(one, rules)
        )
        return self if kept == self.xids else replace(self, xids=kept)

    def after(self, report: HealthReport, *, began: float, rules: Rules, quiet: float) -> Chart:
        """Note a check that began at a moment; `quiet` is in seconds."""
        checked = self.checked.after(report)
        action = checked.report.recovery
        if action not in (None, Recovery.NONE):
            xids = tuple(replace(one, down=True) for one in self.xids)
        elif self.lost or report.failed:
            xids = self.xids
        else:
            xids = tuple(one for one in self.xids if not _is_over(one, action, began, rules, quiet))
        return replace(self, checked=checked, xids=xids)

    # --- what it says ------------------------------------------------------------------------------------------------

    def facts(self, rules: Rules) -> Iterator[Fact]:
        """Yield the facts about the GPU as a whole, and with it about all that is made of it."""
        if self.lost:
            yield Fact(Kind.LOST, detail=self.lost)
        yield from self.checked.facts()
        for one in self.xids:
            if one.instances is None or not _is_one_tenants(one, rules):
                yield _fact(one)

    def instance_facts(self, gpu_instance: int, compute_instance: int, rules: Rules) -> Iterator[Fact]:
        """Yield what concerns one MIG device only: faults of the application that runs there.

        Whatever else is reported in an instance concerns the whole GPU: only a reset of all of it can mend it.
        """
        for one in self.xids:
            if one.instances is None or not _is_one_tenants(one, rules):
                continue
            if one.instances in ((gpu_instance, None), (gpu_instance, compute_instance)):
                yield _fact(one)

    def lasting(self, rules: Rules) -> tuple[SeenXid, ...]:
        """Return what must outlive this process: the serious XIDs, in stable order."""
        serious = (one for one in self.xids if not _is_one_tenants(one, rules))
        return tuple(sorted(serious, key=lambda one: (one.xid, one.instances or ())))

    def due(self, rules: Rules, quiet: float, *, checked: float) -> float | None:
        """Return the earliest moment at which a check could clear an XID by quiet time.

        What the last check, begun at `checked`, has left although it was time will not go by waiting.
        """
        fatal = {one for one in self.xids if rules.of_xid(one.xid).severity >= Severity.FATAL and not one.recalled}
        times = (one.at + quiet for one in self.xids if one not in fatal)
        return min((time for time in times if time > checked), default=None)


def _is_one_tenants(seen: SeenXid, rules: Rules) -> bool:
    return rules.of_xid(seen.xid).severity <= Severity.NOTICE


def _is_over(seen: SeenXid, action: Recovery | None, began: float, rules: Rules, quiet: float) -> bool:
    """Say whether a check without findings, begun at a moment, shows that the cause of an XID is gone."""
    if began <= seen.at:
        return False
    severity = rules.of_xid(seen.xid).severity
    waited = began - seen.at >= quiet
    if severity <= Severity.NOTICE:
        return waited
    if seen.down:
        return True  # it needed a reset and needs none now, or was gone and is back (H2)
    if action is None:
        return seen.recalled  # this driver can't tell: what an earlier process saw is not held against it for ever
    return waited and (severity < Severity.FATAL or seen.recalled)  # while no agent ran, nobody saw the reset


def _fact(seen: SeenXid) -> Fact:
    if seen.instances is None:
        return Fact(Kind.XID, seen.xid)
    gpu, compute = seen.instances
    inner = "" if compute is None else f", compute instance {compute}"
    return Fact(Kind.XID, seen.xid, f"GPU instance {gpu}{inner}")
