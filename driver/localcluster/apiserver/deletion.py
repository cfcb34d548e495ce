"""When an object goes at once and when it is only marked. Pure."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final

from driver.localcluster.apiserver.objects import Object, clone, metadata
from driver.model.wording import timestamp

if TYPE_CHECKING:
    from driver.localcluster.apiserver.resources import Resource

FOREGROUND: Final = "foregroundDeletion"
"""The finalizer of an owner that waits for its dependents."""

_POD_GRACE = 30


def marked(
    kind: Resource, old: Object, now: datetime, grace_seconds: int | None, *, foreground: bool = False
) -> Object:
    """Return the object with its deletion timestamp; a second deletion can only shorten a pod's grace."""
    new: Object = clone(old)
    meta = metadata(new)
    grace = _pod_grace(old, grace_seconds) if kind.plural == "pods" else 0
    if meta.get("deletionTimestamp") is None or grace < (meta.get("deletionGracePeriodSeconds") or 0):
        meta["deletionTimestamp"] = timestamp(now + timedelta(seconds=grace))
        meta["deletionGracePeriodSeconds"] = grace
    if foreground and FOREGROUND not in (meta.get("finalizers") or ()):
        meta["finalizers"] = [*(meta.get("finalizers") or ()), FOREGROUND]
    if kind.plural == "namespaces":
        new["status"] = {**(new.get("status") or {}), "phase": "Terminating"}
    return new


def _pod_grace(pod: Object, asked: int | None) -> int:
    spec, status = pod.get("spec") or {}, pod.get("status") or {}
    if not spec.get("nodeName") or status.get("phase") in ("Succeeded", "Failed"):
        return 0
    return int(spec.get("terminationGracePeriodSeconds", _POD_GRACE) if asked is None else asked)


def is_complete(obj: Object) -> bool:
    """Say whether nothing holds an object that is to be deleted."""
    meta = metadata(obj)
    if meta.get("deletionTimestamp") is None or meta.get("finalizers"):
        return False
    if obj.get("kind") == "Namespace" and (obj.get("spec") or {}).get("finalizers"):
        return False
    return not meta.get("deletionGracePeriodSeconds")
