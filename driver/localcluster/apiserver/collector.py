"""Garbage collection: dependents go with their owners, the content of a namespace with the namespace.

Done at once, within the call that removes the owner; a real cluster needs a moment for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from driver.localcluster.apiserver.deletion import FOREGROUND
from driver.localcluster.apiserver.errors import StatusError
from driver.localcluster.apiserver.journal import Interest, Key
from driver.localcluster.apiserver.objects import Object, clone, metadata, name_of, owner_uids
from driver.localcluster.apiserver.resources import RESOURCES, Resource

if TYPE_CHECKING:
    from driver.localcluster.apiserver.store import Store

_Place = tuple[str, Key]


class Collector:
    """Knows who owns whom and acts on removals; the store tells it of every change."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._places: dict[str, _Place] = {}
        self._dependents: dict[str, dict[_Place, None]] = {}

    def recorded(self, kind: Resource, key: Key, before: Object | None, after: Object | None) -> None:
        """Keep the index of owners."""
        place = (kind.plural, key)
        for uid in owner_uids(before) if before else ():
            self._dependents.get(uid, {}).pop(place, None)
        for uid in owner_uids(after) if after else ():
            self._dependents.setdefault(uid, {})[place] = None
        if after is not None:
            self._places[metadata(after)["uid"]] = place
        elif before is not None:
            self._places.pop(metadata(before)["uid"], None)

    def created(self, kind: Resource, obj: Object) -> None:
        """Act on a new object: a namespace gets its service account."""
        if kind.plural == "namespaces":
            self._store.create("serviceaccounts", {"metadata": {"name": "default"}}, name_of(obj))

    def has_dependents(self, owner: Object) -> bool:
        """Say whether anything names this object as its owner."""
        return bool(self._dependents.get(metadata(owner)["uid"]))

    def marked(self, kind: Resource, obj: Object) -> None:
        """Act on an object that is to be deleted and waits for something."""
        if kind.plural == "namespaces":
            self._empty_namespace(name_of(obj))
        elif FOREGROUND in (metadata(obj).get("finalizers") or ()):
            for plural, key in list(self._dependents.get(metadata(obj)["uid"], ())):
                self._delete(plural, key, "Foreground")
            self._finish_foreground(metadata(obj)["uid"])

    def removed(self, obj: Object, *, orphan: bool) -> None:
        """Act on an object that is gone: its dependents, its waiting owners, its waiting namespace."""
        uid = metadata(obj)["uid"]
        for place in list(self._dependents.pop(uid, ())):
            self._lost_owner(place, uid, orphan=orphan)
        for owner in owner_uids(obj):
            self._finish_foreground(owner)
        if namespace := metadata(obj).get("namespace"):
            self._finish_namespace(namespace)

    def _lost_owner(self, place: _Place, uid: str, *, orphan: bool) -> None:
        plural, (namespace, name) = place
        obj = self._store.find(plural, name, namespace)
        if obj is None or metadata(obj).get("deletionTimestamp"):
            return
        if not orphan and not any(owner in self._places for owner in owner_uids(obj)):
            self._delete(plural, (namespace, name), "Background")
            return
        new = clone(obj)
        metadata(new)["ownerReferences"] = [o for o in metadata(new)["ownerReferences"] if o.get("uid") != uid]
        self._store.update(plural, new)

    def _delete(self, plural: str, key: Key, propagation: str) -> None:
        obj = self._store.find(plural, key[1], key[0])
        if obj is not None and not metadata(obj).get("deletionTimestamp"):
            self._store.delete(plural, key[1], key[0], propagation=propagation)

    def _finish_foreground(self, owner: str) -> None:
        place = self._places.get(owner)
        if place is None or self._dependents.get(owner):
            return
        plural, (namespace, name) = place
        obj = self._store.get(plural, name, namespace)
        finalizers = metadata(obj).get("finalizers") or []
        if metadata(obj).get("deletionTimestamp") and FOREGROUND in finalizers:
            new = clone(obj)
            metadata(new)["finalizers"] = [f for f in finalizers if f != FOREGROUND]
            self._store.update(plural, new)

    def _empty_namespace(self, namespace: str) -> None:
        interest = Interest(namespace)
        for plural, kind in RESOURCES.items():
            if kind.namespaced:
                for entry in self._store.entries(plural, interest):
                    self._delete(plural, (namespace, name_of(entry.body)), "Background")
        self._finish_namespace(namespace)

    def _finish_namespace(self, namespace: str) -> None:
        obj = self._store.find("namespaces", namespace)
        if obj is None or not metadata(obj).get("deletionTimestamp"):
            return
        interest = Interest(namespace)
        if any(kind.namespaced and self._store.entries(plural, interest) for plural, kind in RESOURCES.items()):
            return
        new = clone(obj)
        new["spec"] = {}
        try:
            self._store.update("namespaces", new, subresource="finalize")
        except StatusError:  # removed meanwhile by a nested removal
            return
