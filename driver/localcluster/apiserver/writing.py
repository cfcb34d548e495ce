"""The metadata of a write: names, generated fields, preconditions, what a client can't change. Pure but for chance."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from driver.localcluster.apiserver import errors
from driver.localcluster.apiserver.objects import Object, clone, metadata

if TYPE_CHECKING:
    from driver.localcluster.apiserver.resources import Resource

_SUFFIX = "bcdfghjklmnpqrstvwxz2456789"
_LONGEST_BASE = 58  # a generated name has at most 63 characters, five of them by chance
_SERVER_OWNED = ("uid", "creationTimestamp", "generation", "deletionTimestamp", "deletionGracePeriodSeconds")
_FREE_STATUS_METADATA = ("nodes", "pods")


def prepare_metadata(kind: Resource, obj: Object, namespace: str | None, now: str) -> None:
    """Fill in what the server gives a new object but its UID.

    :raises StatusError: 400 if the namespace contradicts the request, 422 if there is no name.
    """
    obj["apiVersion"], obj["kind"] = kind.api_version, kind.kind
    meta = obj.setdefault("metadata", {})
    for name in ("resourceVersion", "deletionTimestamp", "deletionGracePeriodSeconds", "selfLink"):
        meta.pop(name, None)
    _set_namespace(kind, meta, namespace)
    _set_name(kind, meta)
    meta["creationTimestamp"] = now
    if kind.status and kind.plural != "nodes":  # a kubelet registers its node with its status
        obj.pop("status", None)
    if kind.generation:
        meta["generation"] = 1
    else:
        meta.pop("generation", None)


def _set_namespace(kind: Resource, meta: Object, namespace: str | None) -> None:
    if not kind.namespaced:
        meta.pop("namespace", None)
        return
    given = meta.get("namespace")
    if given and namespace and given != namespace:
        raise errors.bad_request(
            "the namespace of the provided object does not match the namespace sent on the request"
        )
    meta["namespace"] = namespace or given or ""
    if not meta["namespace"]:
        raise errors.bad_request(f"an object of kind {kind.kind} needs a namespace")


def _set_name(kind: Resource, meta: Object) -> None:
    base = meta.get("generateName")
    if not meta.get("name") and base:
        suffix = "".join(random.choices(_SUFFIX, k=5))  # noqa: S311 - a name, not a secret
        meta["name"] = str(base)[:_LONGEST_BASE] + suffix
    if not meta.get("name"):
        cause = errors.Cause(
            field="metadata.name", reason="FieldValueRequired", text="Required value: name or generateName is required"
        )
        raise errors.invalid(kind, "", [cause])


def check_preconditions(kind: Resource, old: Object, uid: Any, resource_version: Any) -> None:
    """Refuse a write that is meant for another object, or for another version of it.

    :raises StatusError: 409.
    """
    meta = metadata(old)
    if uid and uid != meta["uid"]:
        why = f"Precondition failed: UID in precondition: {uid}, UID in object meta: {meta['uid']}"
        raise errors.conflict(kind, meta["name"], why)
    if resource_version and str(resource_version) != meta["resourceVersion"]:
        raise errors.conflict(kind, meta["name"])


def carry_over(kind: Resource, new: Object, old: Object, subresource: str) -> None:
    """Take from the old object what this kind of update can't change."""
    new["apiVersion"], new["kind"] = kind.api_version, kind.kind
    was = metadata(old)
    managed = (new.get("metadata") or {}).get("managedFields") or was.get("managedFields")  # of the status, too
    if subresource == "status":
        status = new.get("status")
        kept = {key: clone(value) for key, value in old.items() if key != "status"}
        meta = new.get("metadata") if kind.plural in _FREE_STATUS_METADATA else was
        new.clear()
        new.update(kept | {"metadata": dict(meta or was)})
        if status:
            new["status"] = status
    elif kind.status:
        new.pop("status", None)
        if "status" in old:
            new["status"] = clone(old["status"])
    meta = new["metadata"] = dict(new.get("metadata") or {})
    for name in _SERVER_OWNED:
        meta.pop(name, None)
        if name in was:
            meta[name] = was[name]
    if managed:
        meta["managedFields"] = managed
    meta["resourceVersion"] = was["resourceVersion"]
