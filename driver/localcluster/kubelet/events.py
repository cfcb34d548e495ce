"""Tell what happens, as Event objects; a repetition raises a count."""

from __future__ import annotations

import logging
import secrets
from typing import TYPE_CHECKING

from driver.errors import DriverError
from driver.localcluster.apiserver.objects import clone, metadata

if TYPE_CHECKING:
    from driver.localcluster.apiserver.objects import Object
    from driver.localcluster.apiserver.store import Store

_log = logging.getLogger(__name__)


class EventRecorder:
    """Records events of one component on one node; never raises."""

    def __init__(self, store: Store, node: str) -> None:
        self._store = store
        self._node = node
        self._names: dict[tuple[str, str, str], str] = {}

    def record(self, obj: Object, reason: str, message: str, *, warning: bool = False) -> None:
        """Record that `reason` happened to an object."""
        key = (str(metadata(obj).get("uid")), reason, message)
        namespace = metadata(obj).get("namespace") or "default"
        try:
            known = self._store.find("events", self._names.get(key, ""), namespace)
            if known is not None:
                self._repeat(known)
                return
            event = self._event(obj, namespace, reason, message, warning)
            self._names[key] = metadata(event)["name"]
            self._store.create("events", event, namespace)
        except DriverError as exc:  # the namespace may be on its way out
            _log.debug("event %s was not recorded: %s", reason, exc)

    def _repeat(self, known: Object) -> None:
        event = clone(known)
        event["count"] = event.get("count", 1) + 1
        event["lastTimestamp"] = self._store.now()
        self._store.update("events", event)

    def _event(self, obj: Object, namespace: str, reason: str, message: str, warning: bool) -> Object:
        meta, now = metadata(obj), self._store.now()
        involved = {
            "kind": obj.get("kind", ""),
            "apiVersion": obj.get("apiVersion", "v1"),
            "namespace": meta.get("namespace"),
            "name": meta["name"],
            "uid": meta.get("uid"),
        }
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": f"{meta['name']}.{secrets.token_hex(8)}", "namespace": namespace},
            "involvedObject": {key: value for key, value in involved.items() if value},
            "reason": reason,
            "message": message,
            "type": "Warning" if warning else "Normal",
            "source": {"component": "kubelet", "host": self._node},
            "reportingComponent": "kubelet",
            "reportingInstance": self._node,
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }
