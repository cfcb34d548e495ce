"""The driver's own slices as the API server has them, kept current by one list and a watch."""

from __future__ import annotations

import asyncio
import logging
from contextlib import aclosing
from typing import TYPE_CHECKING

from driver.errors import ApiGoneError, DriverError

if TYPE_CHECKING:
    from collections.abc import Callable

    from driver.backoff import Backoff
    from driver.kube.resources import ResourceApi
    from driver.model.json_object import JsonObject

_REMEMBERED = 1024  # UIDs of deleted slices
_STEADY = 5.0  # seconds that a watch must have lasted to be called a success

log = logging.getLogger(__name__)


class SliceMirror:
    """A cache of slices by name. `changed` is called after each change, but for the writer's own.

    Answers to the writer's calls are put in at once (`stored`, `deleted`): the watch brings them only later, and must
    not bring back what was before.
    """

    def __init__(
        self,
        api: ResourceApi,
        field_selector: str,
        *,
        changed: Callable[[], None],
        failed: Callable[[DriverError], None],
        backoff: Backoff,
    ) -> None:
        self._api = api
        self._selector = field_selector
        self._changed = changed
        self._failed = failed
        self._backoff = backoff
        self._items: dict[str, JsonObject] = {}
        self._gone: set[str] = set()  # UIDs that were deleted: late news of them are old
        self._version = ""
        self.synced = False
        self.sessions = 0  # watches begun: behind each may be another API server than before
        self.losses = 0  # slices that somebody else deleted

    def items(self) -> list[JsonObject]:
        """Return all slices."""
        return list(self._items.values())

    def stored(self, item: JsonObject) -> None:
        """Take the API server's answer to a write, unless the watch has brought something newer already."""
        name, uid = item["metadata"]["name"], str(item["metadata"].get("uid"))
        known = self._items.get(name)
        if uid in self._gone:
            self._lost(name)
        elif known is None or _newer(item, known):
            self._items[name] = item

    def deleted(self, name: str) -> None:
        """Forget a slice that was deleted."""
        item = self._items.pop(name, None)
        if item is not None:
            self._bury(str(item["metadata"].get("uid")))

    async def refresh(self) -> None:
        """Read all slices anew.

        :raises ApiError: they can't be read; the old ones are kept.
        """
        items, self._version = await self._api.list_slices(self._selector)
        self._items = {item["metadata"]["name"]: item for item in items}
        self._gone.clear()
        self.synced = True
        self._changed()

    async def run(self) -> None:
        """Follow the API server until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            error = await self._attempt()
            if loop.time() - began > _STEADY:
                self._backoff.reset()
            await asyncio.sleep(self._backoff.next(error))

    async def _attempt(self) -> DriverError | None:
        """List if need be, and watch until the stream ends; return why it failed, if it did."""
        try:
            if not self._version:
                await self.refresh()
            self.sessions += 1
            self._changed()
            await self._follow()
        except ApiGoneError as error:
            self._version = ""  # too old: list again
            return error
        except DriverError as error:
            self._version = ""
            self._failed(error)
            return error
        return None

    async def _follow(self) -> None:
        async with aclosing(self._api.watch_slices(self._selector, self._version)) as events:
            async for event in events:
                metadata = event.object.get("metadata") or {}
                self._version = str(metadata.get("resourceVersion") or self._version)
                if event.type != "BOOKMARK" and self._take(event.type, event.object, metadata):
                    self._changed()

    def _take(self, kind: str, item: JsonObject, metadata: JsonObject) -> bool:
        """Put an event in; say whether it was news."""
        name, uid = metadata["name"], str(metadata.get("uid"))
        known = self._items.get(name)
        if kind == "DELETED":
            return self._lose(name, uid)
        if uid in self._gone or (known is not None and not _newer(item, known)):
            return False
        self._items[name] = item
        return True

    def _lose(self, name: str, uid: str) -> bool:
        known = self._items.get(name)
        expected = uid in self._gone
        self._bury(uid)
        if expected or known is None or str(known["metadata"].get("uid")) != uid:
            return False
        del self._items[name]
        self._lost(name)
        return True

    def _lost(self, name: str) -> None:
        self.losses += 1
        self._changed()
        log.info("ResourceSlice %s was deleted by somebody else", name)

    def _bury(self, uid: str) -> None:
        if len(self._gone) >= _REMEMBERED:
            self._gone.clear()
        self._gone.add(uid)


def _newer(item: JsonObject, known: JsonObject) -> bool:
    """Compare resource versions: as numbers where they are (since 1.35 they must be), else any other one is newer."""
    left, right = (str(one["metadata"].get("resourceVersion")) for one in (item, known))
    if left.isdecimal() and right.isdecimal():
        return int(left) > int(right)
    return left != right
