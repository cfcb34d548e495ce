"""Waiting for what the API shows, by watches; what did not come is told with all that is known."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING, TypeVar

from driver.errors import ApiGoneError, ApiUnavailableError
from tests.conformance import describe
from tests.conformance.api import collection

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from tests.conformance.api import Api, Object

T = TypeVar("T")

_PAUSE = 0.2  # seconds, after an API server that did not answer


class NotSeenError(AssertionError):
    """What was waited for did not come."""


class Waiter:
    """Waits at most `patience` seconds for each thing, in one namespace."""

    def __init__(self, api: Api, namespace: str, patience: float) -> None:
        self._api, self.namespace, self.patience = api, namespace, patience

    async def until(
        self,
        kind: str,
        look: Callable[[Sequence[Object]], T | None],
        what: str,
        *,
        name: str = "",
        field_selector: str = "",
    ) -> T:
        """Return what `look` makes of the objects of a kind, as soon as it is neither None nor False.

        :raises NotSeenError: it stayed so.
        """
        path = collection(kind, self.namespace)
        selector = f"metadata.name={name}" if name else field_selector
        last: Sequence[Object] = ()
        try:
            async with asyncio.timeout(self.patience), aclosing(self._states(path, selector)) as states:
                async for last in states:
                    found = look(last)
                    if found is not None and found is not False:
                        return found
        except TimeoutError:
            shown = await describe.all_of(self._api, last, self.namespace)
            raise NotSeenError(f"waited {self.patience:g} s in vain: {what}\n{shown}") from None
        raise AssertionError("a watch has no end")

    async def one(self, kind: str, name: str, holds: Callable[[Object], object], what: str) -> Object:
        """Return an object as soon as it exists and `holds`."""
        return await self.until(
            kind, lambda items: next((item for item in items if holds(item)), None), f"{kind} {name} {what}", name=name
        )

    async def gone(self, kind: str, name: str = "") -> None:
        """Return when an object, or all of a kind in the namespace, are gone."""
        await self.until(kind, lambda items: not items, f"{kind} {name or 'objects'} are gone", name=name)

    async def _states(self, path: str, selector: str) -> AsyncIterator[Sequence[Object]]:
        """Yield all objects, again after each change; the API server may be away in between."""
        while True:
            try:
                listed = await self._api.list(path, field_selector=selector)
                items = {_key(item): item for item in listed["items"]}
                yield list(items.values())
                version = listed["metadata"]["resourceVersion"]
                async with aclosing(self._api.watch(path, field_selector=selector, resource_version=version)) as events:
                    async for event in events:
                        if event.type == "BOOKMARK":
                            continue
                        items.pop(_key(event.object), None)
                        if event.type != "DELETED":
                            items[_key(event.object)] = event.object
                        yield list(items.values())
            except ApiGoneError:
                continue
            except ApiUnavailableError:
                await asyncio.sleep(_PAUSE)


def _key(item: Object) -> tuple[str, str]:
    return item["metadata"].get("namespace", ""), item["metadata"]["name"]
