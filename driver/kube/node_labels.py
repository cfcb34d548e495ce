"""Our labels on this node's Node object, by server-side apply: only our own keys, under a field manager of our own.

A key that another manager has set (NVIDIA's feature discovery, node-feature-discovery, a person) is taken over, so that
nodes can move here from there; keys that we never set are never touched, and the server removes those that we set no
more. The Node is watched, since its former owner, on leaving, may remove what is ours by now.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from driver.backoff import Backoff
from driver.errors import ApiConflictError, DriverError
from driver.kube.client import APPLY_PATCH
from driver.labels import TIMESTAMP

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from driver.kube.client import KubeClient
    from driver.model.json_object import JsonObject

MANAGER = "gpu-dra"
"""The field manager."""

_NODES = "/api/v1/nodes"
_STEADY = 5.0  # seconds that a watch must have lasted to be called a success
_LABELS = ("fieldsV1", "f:metadata", "f:labels")


class NodeLabels:
    """The labels of one Node. `follow` keeps what is known of it current; the rest goes by that."""

    def __init__(self, client: KubeClient, node_name: str, *, now: Callable[[], float] = time.time) -> None:
        self._client = client
        self._name = node_name
        self.timestamp = True
        self._now = now
        self._node: JsonObject | None = None

    @property
    def where(self) -> str:
        """Where the labels are, for messages."""
        return f"Node {self._name}"

    @property
    def known(self) -> bool:
        """Whether the Node was read."""
        return self._node is not None

    def differing(self, labels: Mapping[str, str]) -> list[str]:
        """Return the keys that are not on the Node as they should be, but for the timestamp."""
        if self._node is None:
            return []
        present, own = self._labels(), self._own()
        wrong = [key for key, value in labels.items() if present.get(key) != value or key not in own]
        return sorted([*wrong, *(own - labels.keys() - {TIMESTAMP})])

    async def apply(self, labels: Mapping[str, str]) -> None:
        """Make these our labels, all of them.

        :raises ApiConflictError: the Node is another one by now.
        :raises ApiNotFoundError: it is gone.
        :raises ApiError: they are as before.
        """
        stamp = {TIMESTAMP: str(int(self._now()))} if labels and self.timestamp else {}
        try:
            # The UID makes the server refuse where the Node is gone, instead of creating one.
            metadata = {"name": self._name, "uid": self._uid(), "labels": {**labels, **stamp}}
            body = {"apiVersion": "v1", "kind": "Node", "metadata": metadata}
            query = {"fieldManager": MANAGER, "force": "true"}
            self._node = await self._client.patch(self._path, body, content_type=APPLY_PATCH, query=query)
        except ApiConflictError:
            self._node = None  # it is another one by now, or none
            await self._read()
            raise

    async def remove(self) -> None:
        """Take all our labels away.

        :raises ApiError: they are still there.
        """
        if self._node is None:
            await self._read()
        if self._own():
            await self.apply({})

    async def follow(self, changed: Callable[[], None], failed: Callable[[DriverError], None]) -> None:
        """Read the Node and watch it until cancelled; call `changed` when anything about it is news."""
        backoff = Backoff(0.5, 60.0)
        loop = asyncio.get_running_loop()
        while True:
            began, error = loop.time(), None
            try:
                await self._read()
                changed()
                await self._watch(changed)
            except DriverError as exc:
                error = exc
                failed(exc)
            if loop.time() - began > _STEADY:
                backoff.reset()
            await asyncio.sleep(backoff.next(error))

    def managers(self, key: str) -> list[str]:
        """Return who else has set a label, as far as the API server tells."""
        names = {str(entry.get("manager")) for entry in self._entries() if f"f:{key}" in _owned(entry)}
        return sorted(names - {MANAGER})

    async def _watch(self, changed: Callable[[], None]) -> None:
        version = str(self._metadata().get("resourceVersion") or "")
        selector = f"metadata.name={self._name}"
        async with aclosing(self._client.watch(_NODES, field_selector=selector, resource_version=version)) as events:
            async for event in events:
                if event.type in ("ADDED", "MODIFIED") and not self._is_old(event.object):
                    self._node = event.object
                    changed()

    def _is_old(self, node: JsonObject) -> bool:
        """Say whether an event is of before our last write, whose answer had it already (versions are numbers)."""
        versions = [str(one.get("resourceVersion")) for one in (node.get("metadata") or {}, self._metadata())]
        return all(one.isdecimal() for one in versions) and int(versions[0]) < int(versions[1])

    async def _read(self) -> None:
        self._node = await self._client.get(self._path)

    @property
    def _path(self) -> str:
        return f"{_NODES}/{self._name}"

    def _metadata(self) -> JsonObject:
        return (self._node or {}).get("metadata") or {}

    def _uid(self) -> str:
        return str(self._metadata().get("uid") or "")

    def _labels(self) -> Mapping[str, str]:
        return self._metadata().get("labels") or {}

    def _entries(self) -> list[Any]:
        return self._metadata().get("managedFields") or []

    def _own(self) -> set[str]:
        """Return the keys that the server knows as ours and that are there."""
        ours = [e for e in self._entries() if e.get("manager") == MANAGER and e.get("operation") == "Apply"]
        return {key.removeprefix("f:") for entry in ours for key in _owned(entry)} & self._labels().keys()


def _owned(entry: JsonObject) -> JsonObject:
    found: Any = entry
    for step in _LABELS:
        found = found.get(step) or {}
    return dict(found)
