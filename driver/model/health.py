"""Health as others see it: a verdict per GPU, and the taints that say so."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Effect(enum.StrEnum):
    """What a taint does to claims that don't tolerate it (`resource.k8s.io` DeviceTaintEffect)."""

    NONE = "None"
    NO_SCHEDULE = "NoSchedule"
    NO_EXECUTE = "NoExecute"


@dataclass(frozen=True, slots=True, order=True)
class Taint:
    """A device taint. `key` is a qualified name, `value` a label value."""

    key: str
    value: str
    effect: Effect


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """The verdict on one GPU. `reason` is for people; taints are sorted."""

    healthy: bool = True
    reason: str = ""
    taints: tuple[Taint, ...] = ()


HEALTHY = Health()
LOST = Health(
    healthy=False,
    reason="the GPU does not answer any more (lost)",
    taints=(Taint("gpu.nvidia.com/gpu-lost", "", Effect.NO_SCHEDULE),),
)
