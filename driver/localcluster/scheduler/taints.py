"""Taints and tolerations, of nodes and of devices: both follow one rule. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    Toleration = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Taint:
    """What keeps pods away; `effect` is NoSchedule, NoExecute, PreferNoSchedule (nodes) or None (devices)."""

    key: str
    value: str
    effect: str

    def __str__(self) -> str:
        return f"{self.key}={self.value}:{self.effect}" if self.value else f"{self.key}:{self.effect}"


def read(raw: Iterable[Mapping[str, Any]] | None) -> tuple[Taint, ...]:
    """Decode a list of taints; `timeAdded` does not matter here."""
    return tuple(
        Taint(key=str(item.get("key") or ""), value=str(item.get("value") or ""), effect=str(item.get("effect") or ""))
        for item in raw or ()
    )


def tolerates(toleration: Toleration, taint: Taint) -> bool:
    """Say whether one toleration covers a taint: an empty key or effect covers all, `Equal` is the default operator."""
    if toleration.get("effect") and toleration["effect"] != taint.effect:
        return False
    if toleration.get("key") and toleration["key"] != taint.key:
        return False
    if (toleration.get("operator") or "Equal") == "Exists":
        return True
    return bool(toleration.get("key")) and (toleration.get("value") or "") == taint.value


def untolerated(
    taints: Iterable[Taint], tolerations: Iterable[Toleration], effects: Iterable[str] = ("NoSchedule", "NoExecute")
) -> Taint | None:
    """Return the first taint with one of the effects that nothing tolerates."""
    for taint in taints:
        if taint.effect in effects and not any(tolerates(toleration, taint) for toleration in tolerations):
            return taint
    return None
