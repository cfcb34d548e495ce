"""Which extended resources DeviceClasses back (KEP-5004): pods that ask for those get claims made by the scheduler.

Classes of any name may do so, so all are watched; a cluster has few, and they rarely change. Where the API server does
not serve the field, it is dropped from every class, so what is stored tells whether the feature is on.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import aclosing
from typing import TYPE_CHECKING

from driver.backoff import Backoff
from driver.errors import ApiGoneError, DriverError

if TYPE_CHECKING:
    from collections.abc import Callable

    from driver.kube.resources import ResourceApi
    from driver.model.json_object import JsonObject

_STEADY = 5.0  # seconds that a watch must have lasted to be called a success

log = logging.getLogger(__name__)


class DeviceClasses:
    """The classes' extended resources, kept current by `run`."""

    def __init__(self, api: ResourceApi) -> None:
        self._api = api
        self._names: dict[str, str] = {}  # extended resource by class
        self._version = ""
        self._said = ""
        self.known = asyncio.Event()
        """Set once the classes were read."""

    @property
    def resources(self) -> frozenset[str]:
        """The extended resources that some class backs; none as long as that is not known."""
        return frozenset(self._names.values())

    async def run(self, changed: Callable[[], None]) -> None:
        """Follow the API server until cancelled; call `changed` when `resources` are others."""
        backoff = Backoff(0.5, 60.0)
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            error = await self._attempt(changed)
            if loop.time() - began > _STEADY:
                backoff.reset()
            await asyncio.sleep(backoff.next(error))

    async def _attempt(self, changed: Callable[[], None]) -> DriverError | None:
        try:
            if not self._version:
                items, self._version = await self._api.list_classes()
                self._replace({_name(item): resource for item in items if (resource := _resource(item))}, changed)
                self.known.set()
            await self._watch(changed)
        except DriverError as exc:
            self._version = ""
            if not isinstance(exc, ApiGoneError) and str(exc) != self._said:
                self._said = str(exc)
                log.warning("which extended resources DeviceClasses back can't be followed now: %s", exc)
            return exc
        return None

    async def _watch(self, changed: Callable[[], None]) -> None:
        async with aclosing(self._api.watch_classes(self._version)) as events:
            async for event in events:
                metadata = event.object.get("metadata") or {}
                self._version = str(metadata.get("resourceVersion") or self._version)
                if event.type == "BOOKMARK":
                    continue
                name, resource = _name(event.object), _resource(event.object)
                others = {key: value for key, value in self._names.items() if key != name}
                if resource and event.type != "DELETED":
                    others[name] = resource
                self._replace(others, changed)

    def _replace(self, names: dict[str, str], changed: Callable[[], None]) -> None:
        before, self._names = self.resources, names
        if self.resources != before:
            log.info("extended resources that DeviceClasses back: %s", ", ".join(sorted(self.resources)) or "none")
            changed()


def _name(item: JsonObject) -> str:
    return str((item.get("metadata") or {}).get("name") or "")


def _resource(item: JsonObject) -> str:
    return str((item.get("spec") or {}).get("extendedResourceName") or "")
