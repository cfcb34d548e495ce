"""Server-side apply."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from driver.localcluster.apiserver.patch import merge_patch

if TYPE_CHECKING:
    from driver.localcluster.apiserver.objects import Object
    from driver.localcluster.apiserver.registry import Served


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """What a client applies."""

    config: Object
    manager: str
    subresource: str
    force: bool
    now: str


def apply_configuration(served: Served, before: Object, applied: Applied) -> Object:
    """Return the object after the apply."""
    result: Object = merge_patch(before, applied.config)
    return result
