"""Strategic merge patch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from driver.localcluster.apiserver.patch import merge_patch

if TYPE_CHECKING:
    from driver.localcluster.apiserver.objects import Object


def strategic_patch(api_version: str, kind: str, target: Object, patch: Object) -> Object:
    """Apply a strategic merge patch."""
    result: Object = merge_patch(target, patch)
    return result
