"""Keeps a part of the cluster up to date with the store: what a controller in Kubernetes calls an informer."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from driver.localcluster.apiserver.errors import StatusError
from driver.localcluster.apiserver.objects import Object, name_of, namespace_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from driver.localcluster.apiserver.store import Store

    Handler = Callable[[str, Object], None]

log = logging.getLogger(__name__)

_Key = tuple[str, str]


class Informer:
    """Calls a handler per resource with (ADDED, MODIFIED or DELETED, object): first all that exists, then changes.

    A handler gets every change once and in order; an exception of one is logged and costs only that change.
    """

    def __init__(self, store: Store, handlers: Mapping[str, Handler]) -> None:
        self._store, self._handlers = store, handlers
        self._known: dict[str, dict[_Key, Object]] = {resource: {} for resource in handlers}
        self._since: dict[str, int] = {}

    def load(self) -> None:
        """Bring the handlers up to date with what the store holds now."""
        for resource in self._handlers:
            self._relist(resource)

    async def run(self) -> None:
        """Follow the store until it closes its watches; `load` comes first."""
        async with asyncio.TaskGroup() as group:
            for resource in self._handlers:
                group.create_task(self._follow(resource), name=f"informer-{resource}")

    async def _follow(self, resource: str) -> None:
        while True:
            try:
                async for type_, obj in self._store.watch(resource, since=self._since[resource]):
                    self._handle(resource, type_, obj)
            except StatusError as exc:
                log.info("the watch of %s broke off, reading all of them again: %s", resource, exc)
                self._relist(resource)
            else:
                return

    def _relist(self, resource: str) -> None:
        self._since[resource] = self._store.revision
        present = {_key(obj): obj for obj in self._store.list(resource)}
        for key, obj in list(self._known[resource].items()):
            if key not in present:
                self._handle(resource, "DELETED", obj)
        for key, obj in present.items():
            if self._known[resource].get(key) is not obj:
                self._handle(resource, "MODIFIED" if key in self._known[resource] else "ADDED", obj)

    def _handle(self, resource: str, type_: str, obj: Object) -> None:
        known = self._known[resource]
        if type_ == "DELETED":
            known.pop(_key(obj), None)
        else:
            known[_key(obj)] = obj
        try:
            self._handlers[resource](type_, obj)
        except Exception:
            log.exception("%s %s/%s could not be taken in", resource, *_key(obj))


def _key(obj: Object) -> _Key:
    return namespace_of(obj), name_of(obj)
