"""Events of core/v1, with the rules that hold for events.k8s.io, too, once `eventTime` is set. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from driver.localcluster.apiserver.objects import Object, metadata
from driver.localcluster.apiserver.validation import common
from driver.localcluster.apiserver.validation.common import invalid, required

if TYPE_CHECKING:
    from driver.localcluster.apiserver.errors import Cause
    from driver.localcluster.apiserver.strategy import Rules

_LONGEST_WORD: Final = 128
_LONGEST_MESSAGE: Final = 1024


def event_errors(obj: Object, old: Object | None, rules: Rules) -> list[Cause]:
    """Return everything that is wrong with an event."""
    about = (obj.get("involvedObject") or {}).get("namespace") or ""
    here = metadata(obj)["namespace"]
    is_new = bool(obj.get("eventTime"))
    unscoped = ("default", "kube-system") if is_new else ("default",)
    right = here in unscoped if not about else (is_new or about == here)
    found = [] if right else [invalid("involvedObject.namespace", about, "does not match event.namespace")]
    return found + (_series_errors(obj) if is_new else [])


def _series_errors(obj: Object) -> list[Cause]:
    controller = obj.get("reportingComponent") or ""
    found = common.qualified_name("reportingComponent", controller) if controller else [required("reportingComponent")]
    for field in ("reportingInstance", "action", "reason"):
        text = obj.get(field) or ""
        if not text:
            found.append(required(field))
        elif len(text) > _LONGEST_WORD:
            found.append(invalid(field, text, f"can have at most {_LONGEST_WORD} characters"))
    if len(obj.get("message") or "") > _LONGEST_MESSAGE:
        found.append(invalid("message", "", f"can have at most {_LONGEST_MESSAGE} characters"))
    return found
