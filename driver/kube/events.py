"""Kubernetes Events: what happened, where people look for it (`kubectl describe node`, `kubectl get events`).

`emit` never waits and never fails: it queues. `run` writes, one Event per distinct happening; repeats raise its count.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
import uuid
from collections import OrderedDict
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from driver.errors import ApiNotFoundError, DriverError, TemporaryError
from driver.model import names
from driver.model.wording import cut, timestamp

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from driver.kube.client import KubeClient
    from driver.model.json_object import JsonObject

log = logging.getLogger(__name__)

_COMPONENT = "gpu-dra"
_WAITING = 256  # happenings that wait for the API server; more are dropped
_REMEMBERED = 512  # written ones whose repeats raise the count
_BURST = 25  # Events at once, then one per `_REFILL`
_REFILL = 2.0  # seconds
_FIRST_PAUSE = 2.0  # seconds before another try, doubling
_LONGEST_PAUSE = 30.0
_NEWS = 3600.0  # seconds for which an Event is worth writing: the API server keeps it no longer, by default
_LONGEST_MESSAGE = 1024  # bytes, the API's limit
_LONGEST_REASON = 128


@dataclass(slots=True, kw_only=True)
class _Happening:
    """One distinct happening: what waits to be written of it, and what has been written."""

    reason: str
    message: str
    warning: bool
    involved: Mapping[str, str]
    first: datetime
    last: datetime
    at: float  # the last moment by a clock that never jumps
    waiting: int = 0
    written: int = 0
    name: str = ""  # of the Event, once written
    tries: int = 0


class EventSink:
    """Events about the node, or about a pod or claim given as `involved`. Used from the event loop's thread only."""

    def __init__(
        self,
        client: KubeClient,
        node_name: str,
        *,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._node_name = node_name
        self._now = now
        self._clock = clock
        self._waiting: OrderedDict[tuple[str, ...], _Happening] = OrderedDict()
        self._known: OrderedDict[tuple[str, ...], _Happening] = OrderedDict()
        self._wake = asyncio.Event()

    def emit(
        self, reason: str, message: str, *, warning: bool = False, involved: Mapping[str, str] | None = None
    ) -> None:
        """Tell that something happened: a CamelCase reason, and a message for people.

        `involved` is an ObjectReference (kind, namespace, name, uid); by default the Node.
        """
        reason, message = cut(reason, _LONGEST_REASON), cut(message, _LONGEST_MESSAGE)
        about = dict(involved) if involved is not None else self._node()
        key = (reason, message, *(about.get(field, "") for field in ("kind", "namespace", "name", "uid")))
        now = self._now()
        happening = self._known.get(key) or self._waiting.get(key)
        if happening is None:
            happening = _Happening(
                reason=reason, message=message, warning=warning, involved=about, first=now, last=now, at=0.0
            )
        if key not in self._waiting and len(self._waiting) >= _WAITING:
            log.warning("Event %s is dropped, as %d others wait for the API server: %s", reason, _WAITING, message)
            return
        happening.waiting += 1
        happening.last, happening.at = now, self._clock()
        self._waiting[key] = happening
        self._wake.set()

    async def run(self) -> None:
        """Write what is emitted, until cancelled."""
        tokens = float(_BURST)
        loop = asyncio.get_running_loop()
        then = loop.time()
        while True:
            await self._wake.wait()
            if not self._waiting:
                self._wake.clear()
                continue
            now = loop.time()
            tokens, then = min(_BURST, tokens + (now - then) / _REFILL), now
            if tokens < 1:
                await asyncio.sleep((1 - tokens) * _REFILL)
                continue
            tokens -= 1
            await self._write_next()

    async def _write_next(self) -> None:
        key, happening = self._waiting.popitem(last=False)
        count, happening.waiting = happening.waiting, 0
        self._remember(key, happening)  # before the write: a repeat in the meantime is a repeat
        try:
            await self._write(happening, count)
        except DriverError as error:
            await self._failed(key, happening, count, error)
            return
        happening.tries = 0

    def _remember(self, key: tuple[str, ...], happening: _Happening) -> None:
        self._known[key] = happening
        self._known.move_to_end(key)
        while len(self._known) > _REMEMBERED:
            self._known.popitem(last=False)

    async def _failed(self, key: tuple[str, ...], happening: _Happening, count: int, error: DriverError) -> None:
        happening.tries += 1
        if isinstance(error, TemporaryError) and self._clock() - happening.at < _NEWS:
            happening.waiting += count
            self._waiting[key] = happening
            self._wake.set()
            await asyncio.sleep(min(_FIRST_PAUSE * 2 ** min(happening.tries - 1, 10), _LONGEST_PAUSE))
            return
        happening.tries = 0
        log.warning("Event %s could not be written: %s", happening.reason, error)

    async def _write(self, happening: _Happening, count: int) -> None:
        path = f"/api/v1/namespaces/{_namespace(happening.involved)}/events"
        total = happening.written + count
        if happening.name:
            change = {"count": total, "lastTimestamp": timestamp(happening.last), "message": happening.message}
            with contextlib.suppress(ApiNotFoundError):  # it has expired (one hour, by default): write another
                await self._client.patch(f"{path}/{happening.name}", change)
                happening.written = total
                return
            happening.first, total = happening.last, count
        body = self._body(happening, total)
        await self._client.create(path, body)
        happening.name, happening.written = body["metadata"]["name"], total

    def _body(self, happening: _Happening, count: int) -> JsonObject:
        stem = names.to_dns_label(happening.involved.get("name", "") or "gpu-dra")
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {
                "name": f"{stem}.{uuid.uuid4().hex[:16]}",
                "namespace": _namespace(happening.involved),
            },
            "involvedObject": dict(happening.involved),
            "reason": happening.reason,
            "message": happening.message,
            "type": "Warning" if happening.warning else "Normal",
            "source": {"component": _COMPONENT, "host": self._node_name},
            "reportingComponent": _COMPONENT,
            "reportingInstance": self._node_name,
            "firstTimestamp": timestamp(happening.first),
            "lastTimestamp": timestamp(happening.last),
            "count": count,
        }

    def _node(self) -> dict[str, str]:
        # The kubelet, too, gives the name as UID: that is what `kubectl describe node` looks for.
        return {"apiVersion": "v1", "kind": "Node", "name": self._node_name, "uid": self._node_name}


def _namespace(involved: Mapping[str, str]) -> str:
    return involved.get("namespace") or "default"
