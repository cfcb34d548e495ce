"""Events of the cluster's own parts: what `kubectl describe` shows."""

from __future__ import annotations

import hashlib
import logging
import time
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from driver.localcluster.apiserver.errors import StatusError
from driver.localcluster.apiserver.objects import Object, metadata, name_of, namespace_of

if TYPE_CHECKING:
    from driver.localcluster.apiserver.store import Store

    _Names = WeakKeyDictionary[Store, dict[str, str]]

log = logging.getLogger(__name__)

_MESSAGE_MAX = 1024  # the API's limit for an Event's message
_REMEMBERED = 20_000  # of each cluster
_names: _Names = WeakKeyDictionary()  # under which name a happening was told, by its digest


def record(
    store: Store, component: str, about: Object, reason: str, message: str, *, warning: bool = False, host: str = ""
) -> None:
    """Tell of something that happened to an object; a repetition only counts up. Never raises."""
    message = message if len(message) <= _MESSAGE_MAX else f"{message[: _MESSAGE_MAX - 3]}..."
    digest = hashlib.sha256("\0".join((metadata(about).get("uid", ""), component, reason, message)).encode())
    names, namespace = _names.setdefault(store, {}), namespace_of(about) or "default"
    # By time, as everywhere: `kubectl describe` shows what came within one second in the order of names.
    name = names.setdefault(digest.hexdigest(), f"{name_of(about)[:200]}.{time.time_ns():x}")
    if len(names) > _REMEMBERED:
        del names[next(iter(names))]
    try:
        if old := store.find("events", name, namespace):
            count = {"count": old.get("count", 1) + 1, "lastTimestamp": store.now()}
            store.patch("events", name, count, namespace)
        else:
            source = {"component": component, **({"host": host} if host else {})}
            event = _event(store.now(), source, about, reason, message, name, warning=warning)
            store.create("events", event, namespace)
    except StatusError as exc:
        log.debug("no event %s for %s: %s", reason, name_of(about), exc)


def _event(
    now: str, source: dict[str, str], about: Object, reason: str, message: str, name: str, *, warning: bool
) -> Object:
    meta = metadata(about)
    return {
        "metadata": {"name": name},
        "involvedObject": {
            "apiVersion": about.get("apiVersion"),
            "kind": about.get("kind"),
            "name": meta.get("name"),
            "namespace": meta.get("namespace", ""),
            "uid": meta.get("uid"),
            "resourceVersion": meta.get("resourceVersion"),
        },
        "reason": reason,
        "message": message,
        "type": "Warning" if warning else "Normal",
        "source": source,
        "reportingComponent": source["component"],
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    }
