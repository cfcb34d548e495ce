"""What is special about each resource when it is written: defaults, dropped fields, validation. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from driver.localcluster.apiserver.errors import Cause
    from driver.localcluster.apiserver.features import Features
    from driver.localcluster.apiserver.objects import Object

CelChecker = Callable[[str], str | None]
"""Returns what is wrong with a CEL expression on a device, None if it compiles to a bool."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What strategies may ask about the cluster and the moment."""

    features: Features
    now: str
    cel: CelChecker | None = None


def _leave(obj: Object, old: Object | None, rules: Rules) -> None:
    """Change nothing."""


def _accept(obj: Object, old: Object | None, rules: Rules) -> Sequence[Cause]:
    return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Strategy:
    """`old` is None for a create. `prepare` changes `obj` in place, before validation."""

    prepare: Callable[[Object, Object | None, Rules], None] = _leave
    validate: Callable[[Object, Object | None, Rules], Sequence[Cause]] = _accept
    validate_status: Callable[[Object, Object | None, Rules], Sequence[Cause]] = _accept


PLAIN = Strategy()
