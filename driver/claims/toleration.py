"""What a claim tolerates: the taints of a device that the scheduler has passed over for it. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from driver.model.health import Effect

if TYPE_CHECKING:
    from collections.abc import Iterable

    from driver.model.health import Health, Taint


@dataclass(frozen=True, slots=True, kw_only=True)
class Toleration:
    """A DeviceToleration of `resource.k8s.io`; an empty key or effect means all of them."""

    key: str = ""
    value: str = ""
    exists: bool = False  # whatever the value
    effect: str = ""

    def covers(self, taint: Taint) -> bool:
        """Say whether it tolerates a taint."""
        return (
            self.key in ("", taint.key)
            and self.effect in ("", taint.effect)
            and (self.exists or (bool(self.key) and self.value == taint.value))
        )


def hindrance(health: Health, tolerations: Iterable[Toleration]) -> str:
    """Return why an unhealthy device may not be given to a claim with these tolerations; empty if it may.

    Taints without effect hinder nobody: whoever chose that for a fault wants it told, and no more.
    """
    taints = [taint for taint in health.taints if taint.effect is not Effect.NONE]
    if health.healthy or not any(not _tolerated(taint, tolerations) for taint in taints):
        return ""
    return health.reason or "it has taints"


def _tolerated(taint: Taint, tolerations: Iterable[Toleration]) -> bool:
    return any(one.covers(taint) for one in tolerations)
