"""What all controllers share: a queue of keys, retries with a growing pause, an index of what an owner owns."""

from __future__ import annotations

import asyncio
import logging
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from driver.localcluster.apiserver.errors import StatusError
from driver.localcluster.apiserver.objects import Object, metadata, name_of, namespace_of, owner_uids
from driver.localcluster.informer import Informer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from driver.localcluster.apiserver.store import Store

log = logging.getLogger(__name__)

Key = tuple[str, str, str]
"""Resource, namespace, name."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 30.0


class Controller:
    """Calls `sync` for each key that `watched` handlers added; a failure is tried again after a growing pause."""

    def __init__(self, store: Store, sync: Callable[[Key], None], watched: Mapping[str, Callable[[str, Object], None]]):
        self._store, self._sync = store, sync
        self._queue: dict[Key, None] = {}
        self._pauses: dict[Key, float] = {}
        self._wake = asyncio.Event()
        self._informer = Informer(store, watched)

    def add(self, key: Key) -> None:
        """Have a key synced soon; adding it twice is adding it once."""
        self._queue[key] = None
        self._wake.set()

    def add_later(self, key: Key, seconds: float) -> None:
        """Have a key synced after a while."""
        asyncio.get_running_loop().call_later(seconds, self.add, key)

    async def run(self) -> None:
        """Work until cancelled or the store closes its watches."""
        self._informer.load()
        async with asyncio.TaskGroup() as group:
            loop = group.create_task(self._loop(), name=type(self).__name__)
            await self._informer.run()
            loop.cancel()

    async def _loop(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            keys, self._queue = self._queue, {}
            for key in keys:
                self._attempt(key)
                await asyncio.sleep(0)

    def _attempt(self, key: Key) -> None:
        try:
            self._sync(key)
        except StatusError as exc:
            log.info("%s %s/%s: %s", *key, exc)
        except Exception:
            log.exception("%s %s/%s could not be synced", *key)
        else:
            self._pauses.pop(key, None)
            return
        pause = self._pauses.get(key, _FIRST_PAUSE)
        self._pauses[key] = min(2 * pause, _LONGEST_PAUSE)
        self.add_later(key, pause)


class Owned:
    """Which objects of one resource an owner controls; `put` what the informer says and what was just made."""

    def __init__(self, store: Store, resource: str) -> None:
        self._store, self._resource = store, resource
        self._names: dict[str, dict[tuple[str, str], None]] = {}

    def put(self, type_: str, obj: Object) -> list[str]:
        """Take in a change; return the UIDs of the owners."""
        place = (namespace_of(obj), name_of(obj))
        owners = owner_uids(obj)
        for uid in owners:
            if type_ == "DELETED":
                self._names.get(uid, {}).pop(place, None)
            else:
                self._names.setdefault(uid, {})[place] = None
        return owners

    def of(self, owner: Object) -> list[Object]:
        """Return what the owner controls, as it is now, oldest first."""
        found = [
            self._store.find(self._resource, name, namespace)
            for namespace, name in self._names.get(metadata(owner)["uid"], {})
        ]
        owned = [obj for obj in found if obj is not None and metadata(owner)["uid"] in owner_uids(obj)]
        return sorted(owned, key=lambda obj: (metadata(obj)["creationTimestamp"], name_of(obj)))


class Manager(Controller):
    """A controller of objects of `kind` that own others: a change of either has the owner synced."""

    def __init__(
        self,
        store: Store,
        sync: Callable[[Key], None],
        *,
        owners: str,
        kind: str,
        owned: str,
        also: Mapping[str, Callable[[str, Object], None]] = MappingProxyType({}),
    ) -> None:
        super().__init__(store, sync, {owners: self._owner_changed, owned: self._owned_changed, **also})
        self._owned = Owned(store, owned)
        self._owners, self._kind = owners, kind

    def _owner_changed(self, _: str, obj: Object) -> None:
        self.add(key_of(self._owners, obj))

    def _owned_changed(self, type_: str, obj: Object) -> None:
        self._owned.put(type_, obj)
        owner = controller_of(obj)
        if owner and owner["kind"] == self._kind:
            self.add((self._owners, namespace_of(obj), owner["name"]))


def controller_of(obj: Object) -> Object | None:
    """Return the owner reference of an object's controller."""
    owners: Iterable[Object] = metadata(obj).get("ownerReferences") or ()
    return next((owner for owner in owners if owner.get("controller")), None)


def reference(owner: Object) -> dict[str, Any]:
    """Return the owner reference that makes `owner` the controller of an object."""
    return {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": name_of(owner),
        "uid": metadata(owner)["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }


def key_of(resource: str, obj: Object) -> Key:
    """Return an object's key."""
    return resource, namespace_of(obj), name_of(obj)


def is_finished(pod: Object) -> bool:
    """Say whether a pod's containers will never run again."""
    return (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")


def is_active(pod: Object) -> bool:
    """Say whether a pod counts: neither finished nor on its way out."""
    return not is_finished(pod) and not metadata(pod).get("deletionTimestamp")


def is_ready(pod: Object) -> bool:
    """Say whether a pod has the condition Ready."""
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return any(item.get("type") == "Ready" and item.get("status") == "True" for item in conditions)


def set_status(store: Store, resource: str, obj: Object, status: Object) -> None:
    """Write a status if it differs.

    :raises StatusError: if the object is gone or changed.
    """
    if (obj.get("status") or {}) != status:
        store.update_status(resource, {**obj, "status": status})
