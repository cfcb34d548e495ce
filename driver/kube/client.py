"""The Kubernetes API by its few verbs: JSON in, JSON out, errors as `driver.errors`.

The official client costs 20 MiB and a second at import, and its models cost CPU at every call; the driver needs six
verbs. There are no retries in here: callers know their deadlines.
"""

from __future__ import annotations

import json
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from driver.errors import ApiUnavailableError
from driver.kube import config, failures, lines
from driver.model.json_object import parse_json

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping
    from pathlib import Path
    from types import TracebackType
    from typing import Self

    from driver.kube.config import ClusterConfig
    from driver.kube.transport import Transport
    from driver.model.json_object import JsonObject

MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_MERGE_PATCH = "application/strategic-merge-patch+json"
JSON_PATCH = "application/json-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"

_JSON = "application/json"
_LATE = 30.0  # seconds after its time until a silent watch is given up
_PAGE = 500  # objects per answer of a list, as kubectl asks for


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchEvent:
    """A change seen by a watch: ADDED, MODIFIED, DELETED, or BOOKMARK (only its resource version counts)."""

    type: str
    object: JsonObject


class KubeClient:
    """One API server. Paths are absolute (`/api/v1/nodes/a`) and already quoted; objects are decoded JSON.

    Every call raises a subclass of `driver.errors.ApiError`. Connections are kept alive and shared by all calls; they
    are opened at the first one, so a client may be made before the event loop runs.
    """

    def __init__(self, cluster: ClusterConfig, *, timeout: float = 10.0) -> None:
        self._cluster = cluster
        self._timeout = timeout  # seconds, of one answer
        self._transport: Transport | None = None

    @classmethod
    def in_cluster(cls, *, timeout: float = 10.0) -> KubeClient:
        """Return a client of the cluster that this pod runs in.

        :raises SettingsError: the process is in no pod, or the pod has no service account token.
        """
        return cls(config.in_cluster(), timeout=timeout)

    @classmethod
    def from_kubeconfig(cls, path: Path | str, context: str | None = None, *, timeout: float = 10.0) -> KubeClient:
        """Return a client of a kubeconfig's current context, or of the one named.

        :raises SettingsError: naming the file and the field.
        """
        from driver.kube.kubeconfig import load

        return cls(load(path, context), timeout=timeout)

    @property
    def server(self) -> str:
        """The API server's URL, for messages."""
        return self._cluster.server

    async def get(self, path: str) -> JsonObject:
        """Read one object."""
        return self._decoded("GET", path, await self._open().request("GET", path))

    async def list(self, path: str, *, field_selector: str = "", label_selector: str = "") -> JsonObject:
        """Read a collection, all pages of it, as of one resource version (`metadata.resourceVersion`)."""
        query = {"fieldSelector": field_selector, "labelSelector": label_selector, "limit": str(_PAGE)}
        whole = await self._page(path, query)
        token = _continue_of(whole)
        while token:
            page = await self._page(path, {**query, "continue": token})
            whole["items"].extend(page["items"])
            token = _continue_of(page)
        return whole

    async def create(self, path: str, body: JsonObject) -> JsonObject:
        """Create an object in a collection; return it as stored."""
        return await self._send("POST", path, body, _JSON)

    async def update(self, path: str, body: JsonObject) -> JsonObject:
        """Replace an object, if its resource version is still the one in `body`; return it as stored."""
        return await self._send("PUT", path, body, _JSON)

    async def patch(
        self, path: str, body: Any, *, content_type: str = MERGE_PATCH, query: Mapping[str, str] | None = None
    ) -> JsonObject:
        """Patch an object; return it as stored. `query` carries `fieldManager` and `force` of an apply patch."""
        return await self._send("PATCH", _with_query(path, query or {}), body, content_type)

    async def delete(self, path: str, *, uid: str | None = None, resource_version: str | None = None) -> JsonObject:
        """Delete an object, only if it still has this UID and resource version where they are given (else 409)."""
        wanted = {"uid": uid, "resourceVersion": resource_version}
        preconditions = {key: value for key, value in wanted.items() if value is not None}
        body: JsonObject = {"kind": "DeleteOptions", "apiVersion": "v1"}
        if preconditions:
            body["preconditions"] = preconditions
        return await self._send("DELETE", path, body, _JSON)

    async def watch(
        self, path: str, *, field_selector: str = "", resource_version: str = "", timeout_seconds: int = 300
    ) -> AsyncGenerator[WatchEvent]:
        """Yield the changes since a resource version until the server ends the stream (about `timeout_seconds`).

        One that neither says anything nor ends is given up a while later: a server that hangs keeps its connections.

        :raises ApiGoneError: the resource version is too old; list again.
        """
        query = {
            "watch": "1",
            "allowWatchBookmarks": "true",
            "fieldSelector": field_selector,
            "resourceVersion": resource_version,
            "timeoutSeconds": str(timeout_seconds),
        }
        async with (
            aclosing(self._open().stream(_with_query(path, query), silence=timeout_seconds + _LATE)) as chunks,
            aclosing(lines.split(chunks)) as whole_lines,
        ):
            async for line in whole_lines:
                yield _event(path, line)

    async def aclose(self) -> None:
        """Close all connections; the client may not be used afterwards."""
        if self._transport is not None:
            await self._transport.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def _page(self, path: str, query: Mapping[str, str]) -> JsonObject:
        page = await self.get(_with_query(path, query))
        items = page["items"] = page.get("items") or []
        if (
            not isinstance(page.get("metadata") or {}, dict)
            or not isinstance(items, list)
            or not all(map(_named, items))
        ):
            raise ApiUnavailableError(f"GET {path}: {self.server} answered with something else than a list of objects")
        return page

    async def _send(self, method: str, path: str, body: Any, content_type: str) -> JsonObject:
        data = json.dumps(body, separators=(",", ":")).encode()
        return self._decoded(method, path, await self._open().request(method, path, data, content_type))

    def _open(self) -> Transport:
        if self._transport is None:
            from driver.kube.transport import Transport  # aiohttp takes long to import: only who calls pays

            self._transport = Transport(self._cluster, timeout=self._timeout)
        return self._transport

    def _decoded(self, method: str, path: str, data: bytes) -> JsonObject:
        try:
            value = parse_json(data)
        except ValueError as error:
            raise ApiUnavailableError(f"{method} {path}: {self.server} answered with no JSON: {error}") from error
        if not isinstance(value, dict):
            raise ApiUnavailableError(f"{method} {path}: {self.server} answered with {type(value).__name__}, no object")
        return value


def _with_query(path: str, query: Mapping[str, str]) -> str:
    given = {key: value for key, value in query.items() if value}
    return f"{path}?{urlencode(given)}" if given else path


def _continue_of(page: JsonObject) -> str:
    return str((page.get("metadata") or {}).get("continue") or "")


def _named(item: object) -> bool:
    """Say whether this is an object as the API server has them; else what answers is something else."""
    metadata = item.get("metadata") if isinstance(item, dict) else None
    return isinstance(metadata, dict) and isinstance(metadata.get("name"), str)


def _event(path: str, line: bytes) -> WatchEvent:
    try:
        value = parse_json(line)
        kind, item = value["type"], value["object"]
    except (ValueError, KeyError, TypeError) as error:
        raise ApiUnavailableError(f"watch {path}: a line is no watch event: {error!r}") from error
    if not isinstance(item, dict):
        raise ApiUnavailableError(f"watch {path}: an event without an object")
    if kind == "ERROR":
        raise failures.from_status(f"watch {path}", item)
    if not _named(item) and not (kind == "BOOKMARK" and isinstance(item.get("metadata"), dict)):
        raise ApiUnavailableError(f"watch {path}: an event about an object without a name")
    return WatchEvent(type=str(kind), object=item)
