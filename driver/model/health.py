"""Health as others see it: a verdict per GPU, and the taints that say so. Pure."""

from __future__ import annotations

import enum
from dataclasses import dataclass

LONGEST_REASON = 1024
"""Bytes: the kubelet takes no longer message about a device, the API server none in an Event."""

MAX_TAINTS = 16
"""Taints of one device (`resource.k8s.io`)."""


class Effect(enum.StrEnum):
    """What a taint does to claims that don't tolerate it (`resource.k8s.io` DeviceTaintEffect)."""

    NONE = "None"
    NO_SCHEDULE = "NoSchedule"
    NO_EXECUTE = "NoExecute"

    @property
    def weight(self) -> int:
        """How much it does: of two, the heavier counts."""
        return _WEIGHTS.index(self)


_WEIGHTS = (Effect.NONE, Effect.NO_SCHEDULE, Effect.NO_EXECUTE)


class Severity(enum.IntEnum):
    """How bad a fact is; of several the worst stands."""

    IGNORED = 0
    NOTICE = 1  # told, and no reason not to use the GPU
    RESET = 2  # out of service until it recovers, at the latest by a reset of the GPU
    FATAL = 3  # out of service until the GPU is seen to have come back from a reset


@dataclass(frozen=True, slots=True, order=True)
class Taint:
    """A device taint. `key` is a qualified name, `value` a label value."""

    key: str
    value: str
    effect: Effect


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """The verdict on one GPU. `reason` is for people; taints are the heaviest first.

    A healthy one may have taints, too: those without effect tell of an application's fault, or of what nobody watches.
    """

    healthy: bool = True
    reason: str = ""
    taints: tuple[Taint, ...] = ()

    def with_more(self, other: Health) -> Health:
        """Return the verdict on what suffers from both."""
        if other in (HEALTHY, self):
            return self
        reasons = dict.fromkeys(one for one in (self.reason, other.reason) if one)
        return Health(
            healthy=self.healthy and other.healthy,
            reason=shorten("; ".join(reasons)),
            taints=ordered({*self.taints, *other.taints}),
        )


def ordered(taints: set[Taint]) -> tuple[Taint, ...]:
    """Return the taints, the heaviest first, as many as a device may have."""
    found = sorted(taints, key=lambda one: (-one.effect.weight, one.key, one.value))
    return tuple(found[:MAX_TAINTS])


def shorten(text: str, limit: int = LONGEST_REASON) -> str:
    """Cut to `limit` bytes of UTF-8, and show that something is missing."""
    data = text.encode(errors="replace")
    return text if len(data) <= limit else data[: limit - 3].decode(errors="ignore") + "..."


HEALTHY = Health()
LOST = Health(
    healthy=False,
    reason="the GPU does not answer any more (lost)",
    taints=(Taint("gpu.nvidia.com/gpu-lost", "", Effect.NO_SCHEDULE),),
)
