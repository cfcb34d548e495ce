"""Watches over HTTP."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from aiohttp import web

from driver.localcluster.apiserver.codec import encoded, shown, to_json
from driver.localcluster.apiserver.errors import StatusError, bad_request
from driver.localcluster.apiserver.table import as_table, wants

if TYPE_CHECKING:
    from collections.abc import Mapping

    from driver.localcluster.apiserver.journal import Entry, Subscription
    from driver.localcluster.apiserver.objects import Object
    from driver.localcluster.apiserver.registry import Served, Target
    from driver.localcluster.apiserver.store import Store

BOOKMARK_SECONDS: Final = 30.0
"""How often a watch that allows bookmarks gets one while nothing happens."""

_DEFAULT_SECONDS = 3600
_END_OF_INITIAL = {"k8s.io/initial-events-end": "true"}


async def watch(store: Store, request: web.BaseRequest, target: Target) -> web.StreamResponse:
    """Stream events until the client, the server or the time limit ends it.

    :raises StatusError: 400 or 422 for parameters that can't be understood, 504 for a revision of the future.
    """
    served, query = target.served, request.query
    interest = store.interest(
        served.resource.plural, target.namespace, query.get("fieldSelector", ""), query.get("labelSelector", "")
    )
    if target.name:  # GET of one object with watch=true
        interest = store.interest(served.resource.plural, target.namespace, f"metadata.name={target.name}", "")
    initial = _wants_initial(query)
    since = None if initial else known_revision(query.get("resourceVersion", ""), store.revision)
    stream = _Stream(request, served, query)
    try:
        subscription = store.subscribe(served.resource.plural, interest, since)
    except StatusError as error:  # a watch that begins too far back is answered within the stream
        return await stream.failed(error)
    subscription.served = True
    try:
        await stream.run(store, subscription, initial=initial)
    finally:
        subscription.close()
    return stream.response


def _wants_initial(query: Mapping[str, str]) -> bool:
    given, match = query.get("sendInitialEvents"), query.get("resourceVersionMatch", "")
    if given is not None and match != "NotOlderThan":
        why = "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan"
    elif given is None and match:
        why = "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided"
    else:
        return given == "true"
    raise StatusError(422, "Invalid", f"ListOptions.meta.k8s.io is invalid: resourceVersionMatch: Forbidden: {why}")


def known_revision(text: str, now: int) -> int | None:
    """Return the revision that a client asks for; None is the present one (asked for by none or 0).

    :raises StatusError: 400 if it is no number, 504 if it is one of the future.
    """
    if text in ("", "0"):
        return None
    if not text.isdecimal():
        raise bad_request(
            f'resourceVersion: Invalid value: "{text}": strconv.ParseUint: parsing "{text}": invalid syntax'
        )
    if int(text) > now:
        message = f"Too large resource version: {text}, current: {now}"
        cause = {"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}
        raise StatusError(504, "Timeout", message, details={"causes": [cause]}, retry_after=1)
    return int(text)


class _Stream:
    """The answer of one watch."""

    def __init__(self, request: web.BaseRequest, served: Served, query: Mapping[str, str]) -> None:
        self._request = request
        self._served = served
        self._table = wants(request.headers.get("Accept", "")) == "Table"
        self._bookmarks = query.get("allowWatchBookmarks") in ("1", "true")
        limit = query.get("timeoutSeconds", "")
        self._seconds = float(limit) if limit.isdecimal() and int(limit) else _DEFAULT_SECONDS
        self.response = web.StreamResponse(headers={"Content-Type": "application/json"})
        self.response.enable_chunked_encoding()

    async def failed(self, error: StatusError) -> web.StreamResponse:
        """Send one ERROR event and end."""
        if not self.response.prepared:
            await self.response.prepare(self._request)
        await self.response.write(_line("ERROR", to_json(error.status())))
        await self.response.write_eof()
        return self.response

    async def run(self, store: Store, subscription: Subscription, *, initial: bool) -> None:
        """Send events until something ends it."""
        await self.response.prepare(self._request)
        if initial:
            await self._send(subscription.pending())
            await self.response.write(self._bookmark(store.revision, _END_OF_INITIAL))
        end = asyncio.get_running_loop().time() + self._seconds
        try:
            while await self._turn(store, subscription, end):
                pass
        except StatusError as error:
            await self.failed(error)

    async def _turn(self, store: Store, subscription: Subscription, end: float) -> bool:
        """Wait for the next events, a bookmark's time or the end."""
        left = end - asyncio.get_running_loop().time()
        if left <= 0:
            return False
        try:
            async with asyncio.timeout(min(left, BOOKMARK_SECONDS)):
                events = await subscription.next()
        except TimeoutError:
            if self._bookmarks:
                await self.response.write(self._bookmark(store.revision))
            return True
        if not events:
            return False
        await self._send(events)
        return True

    async def _send(self, events: list[tuple[str, Entry]]) -> None:
        if events:
            await self.response.write(b"".join(_line(type_, self._object(entry)) for type_, entry in events))

    def _object(self, entry: Entry) -> bytes:
        if self._table:
            return to_json(as_table(self._served, [entry.body], {"resourceVersion": str(entry.revision)}))
        return encoded(self._served, entry)

    def _bookmark(self, revision: int, annotations: Mapping[str, str] | None = None) -> bytes:
        meta: dict[str, Any] = {"resourceVersion": str(revision), "creationTimestamp": None}
        if annotations:
            meta["annotations"] = dict(annotations)
        obj: Object = {"metadata": meta}
        if self._table:
            body = as_table(self._served, [], meta)
        else:
            body = shown(self._served, {**obj, "apiVersion": self._served.resource.api_version})
        return _line("BOOKMARK", to_json(body))


def _line(type_: str, obj: bytes) -> bytes:
    return b'{"type":"' + type_.encode() + b'","object":' + obj + b"}\n"
