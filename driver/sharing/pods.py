"""The pods of one node in one namespace, followed by a watch: what is known is what the API server told last."""

from __future__ import annotations

import asyncio
import logging
from contextlib import aclosing
from typing import TYPE_CHECKING, Protocol

from driver.errors import ApiError, ApiGoneError, ApiNotFoundError
from driver.sharing.pod_manifest import trouble
from driver.sharing.process import Mortal
from driver.waiting import happens

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Mapping

    from driver.model.json_object import JsonObject

log = logging.getLogger(__name__)

_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 30.0  # seconds between tries while the API server is away
_FINAL = ("Succeeded", "Failed")


class Change(Protocol):
    """An event of a watch (`driver.kube.client.WatchEvent`)."""

    @property
    def type(self) -> str:
        """What happened: ADDED, MODIFIED, DELETED or BOOKMARK."""
        ...

    @property
    def object(self) -> JsonObject:
        """The pod as it is now, or was last; of a BOOKMARK only its `metadata.resourceVersion`."""
        ...


class PodApi(Protocol):
    """What is needed of the API server (`driver.kube.client.KubeClient`); errors are `ApiError`."""

    async def get(self, path: str) -> JsonObject:
        """Read one object.

        :raises ApiNotFoundError: there is none.
        """
        ...

    async def list(self, path: str, *, field_selector: str = "") -> JsonObject:
        """Read a collection: its `items`, and in `metadata.resourceVersion` where to watch from."""
        ...

    async def create(self, path: str, body: JsonObject) -> JsonObject:
        """Create an object in a collection; return it as stored."""
        ...

    async def delete(self, path: str, *, uid: str | None = None) -> JsonObject:
        """Delete an object, only if it has this UID where one is given.

        :raises ApiNotFoundError: it is gone already.
        :raises ApiConflictError: another one has its name now.
        """
        ...

    def watch(self, path: str, *, field_selector: str = "", resource_version: str = "") -> AsyncGenerator[Change]:
        """Yield the changes since a resource version until the server ends the stream.

        :raises ApiGoneError: the resource version is too old; list again.
        """
        ...


class PodLife(Mortal):
    """A pod until all its containers have ended, or it is gone."""

    def __init__(self, pod: JsonObject) -> None:
        super().__init__()
        self.uid = str(pod["metadata"]["uid"])
        self._ending = "ended"

    def see(self, pod: JsonObject | None) -> None:
        """Learn what became of it."""
        if not self.alive:
            return
        if pod is None or pod["metadata"]["uid"] != self.uid:
            self._ending = "has lost its pod"
        elif has_ended(pod):
            self._ending = f"ended, its pod is {trouble(pod)}"
        else:
            return
        self._ended.set_result(None)

    def ending(self) -> str:
        """Describe how it ended."""
        return self._ending


class Pods:
    """Follows the pods from the first time that they are asked for, until `aclose`."""

    def __init__(self, api: PodApi, namespace: str, node: str) -> None:
        self._api = api
        self.path = f"/api/v1/namespaces/{namespace}/pods"
        self._selector = f"spec.nodeName={node}"
        self._known: dict[str, JsonObject] = {}
        self._made = 0
        self._observers: set[Callable[[], object]] = set()
        self._task: asyncio.Task[None] | None = None
        self._beginning = asyncio.Lock()

    async def known(self) -> Mapping[str, JsonObject]:
        """Return the pods by name.

        :raises ApiError: they were never listed, and can't be now.
        """
        async with self._beginning:
            if self._task is None:
                version = await self._list()
                self._task = asyncio.create_task(self._follow(version), name="pods of MPS daemons")
        return self._known

    async def get(self, name: str) -> JsonObject | None:
        """Return one pod.

        :raises ApiError: as `known`.
        """
        return (await self.known()).get(name)

    async def create(self, body: JsonObject) -> PodLife:
        """Create a pod; return its life.

        :raises ApiError: it could not be created.
        """
        await self.known()
        made = await self._api.create(self.path, body)
        self._made += 1
        self._known.setdefault(made["metadata"]["name"], made)
        return self.life(made)

    def life(self, pod: JsonObject) -> PodLife:
        """Return the life of a known pod, told of all that the watch sees until it ends or is closed."""
        life, name = PodLife(pod), pod["metadata"]["name"]

        def look() -> None:
            life.see(self._known.get(name))
            if not life.alive:
                self._observers.discard(look)

        self._observers.add(look)
        look()
        return life

    async def delete(self, name: str, limit: float) -> bool:
        """Delete a pod; say whether it was gone within `limit` seconds.

        :raises ApiError: it could not be deleted.
        """
        known = await self.known()
        try:
            pod = known.get(name) or await self._api.get(f"{self.path}/{name}")  # another agent may just have made it
        except ApiNotFoundError:
            return True
        self._known.setdefault(name, pod)
        try:
            await self._api.delete(f"{self.path}/{name}", uid=pod["metadata"]["uid"])
        except ApiError as exc:
            if exc.status not in (404, 409):  # gone, or another pod has its name by now
                raise
        return await self._gone(name, str(pod["metadata"]["uid"]), limit)

    async def aclose(self) -> None:
        """Stop following."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _gone(self, name: str, uid: str, limit: float) -> bool:
        gone = asyncio.Event()

        def look() -> None:
            now = self._known.get(name)
            if now is None or now["metadata"]["uid"] != uid:
                gone.set()

        self._observers.add(look)
        try:
            look()
            return await happens(gone, limit)
        finally:
            self._observers.discard(look)

    async def _list(self) -> str:
        made = -1
        while made != self._made:  # a list may be older than a pod that was created meanwhile
            made = self._made
            listed = await self._api.list(self.path, field_selector=self._selector)
        self._known = {pod["metadata"]["name"]: pod for pod in listed["items"]}
        self._tell()
        return str(listed["metadata"]["resourceVersion"])

    async def _follow(self, version: str) -> None:
        pause = _FIRST_PAUSE
        while True:
            try:
                version = version or await self._list()
                pause = _FIRST_PAUSE
                while True:
                    version = await self._watch(version)
            except ApiGoneError:
                version = ""
            except ApiError as exc:
                log.warning("the pods of MPS daemons can't be watched, trying again in %.1f s: %s", pause, exc)
                version = ""
                await asyncio.sleep(pause)
                pause = min(pause * 2, _LONGEST_PAUSE)

    async def _watch(self, version: str) -> str:
        """Take in changes until the server ends the watch; return where it ended."""
        changes = self._api.watch(self.path, field_selector=self._selector, resource_version=version)
        async with aclosing(changes) as events:
            async for event in events:
                meta = event.object["metadata"]
                version = str(meta["resourceVersion"])
                if event.type == "DELETED":
                    self._known.pop(meta["name"], None)
                elif event.type != "BOOKMARK":
                    self._known[meta["name"]] = event.object
                self._tell()
        return version

    def _tell(self) -> None:
        for look in tuple(self._observers):
            look()


def has_ended(pod: JsonObject) -> bool:
    """Say whether a pod will not run any more."""
    return (pod.get("status") or {}).get("phase") in _FINAL
