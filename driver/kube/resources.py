"""`resource.k8s.io` in whatever version the API server serves; callers see v1."""

from __future__ import annotations

import re
from contextlib import aclosing
from typing import TYPE_CHECKING, NamedTuple

from driver.errors import ApiInvalidError, ApiNotFoundError, InvalidValueError
from driver.kube.client import APPLY_PATCH, WatchEvent
from driver.kube.versions import GROUP, VERSIONS, from_version, to_version
from driver.model import names

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable
    from typing import TypeVar

    from driver.kube.client import KubeClient
    from driver.model.json_object import JsonObject

    Answer = TypeVar("Answer")

PARTITIONABLE_SINCE = (1, 35)
"""The first release whose shared counters the driver uses: 1.34 wants them in the same slice as the devices."""

NOTICES_SINCE = (1, 35)
"""The first release that takes device taints without effect (`None`); an older one refuses the whole slice."""

FIELD_MANAGER = "gpu-dra"
"""Who owns what the driver applies."""


class ServerVersion(NamedTuple):
    """The API server's release, comparable with `(1, 35)` by its first two fields."""

    major: int
    minor: int
    git_version: str


class ResourceApi:
    """Claims and slices. The served version is found once, and again when its paths are gone (another release).

    All calls raise what `KubeClient` raises; `ApiNotFoundError` for the group as a whole says that DRA is off.
    """

    def __init__(self, client: KubeClient) -> None:
        self._client = client
        self._version: str | None = None

    async def version(self) -> str:
        """Return the best version of the group that is served and known to the driver."""
        if self._version is None:
            self._version = await self._discover()
        return self._version

    async def server_version(self) -> ServerVersion:
        """Read the API server's release."""
        answer = await self._client.get("/version")
        text = str(answer.get("gitVersion") or "")
        match = re.match(r"v?(\d{1,6})\.(\d{1,6})", text, re.ASCII)
        if match is None:
            raise ApiInvalidError(f"GET /version: gitVersion {text!r} is no version such as v1.36.2")
        return ServerVersion(int(match[1]), int(match[2]), text)

    async def claim(self, namespace: str, name: str) -> JsonObject:
        """Read a claim. Only its metadata and status are the same in every version.

        :raises InvalidValueError: a name that can't be one.
        :raises ApiNotFoundError: there is no such claim.
        """
        if not names.is_dns_label(namespace):
            raise InvalidValueError("claim.namespace", namespace, "a DNS label")
        if not names.is_dns_subdomain(name):
            raise InvalidValueError("claim.name", name, "a DNS subdomain")
        suffix = f"/namespaces/{namespace}/resourceclaims/{name}"
        return await self._on_served(lambda version: self._client.get(f"/apis/{GROUP}/{version}{suffix}"))

    async def apply_claim_devices(self, namespace: str, name: str, uid: str, devices: list[JsonObject]) -> JsonObject:
        """Make `devices` all that this driver says in a claim's `status.devices`; return the claim as stored.

        Server-side apply: what others say there stays. It is for the claim with this UID only (else 409).
        """
        path = f"/namespaces/{namespace}/resourceclaims/{name}/status"
        query = {"fieldManager": FIELD_MANAGER, "force": "true"}

        async def ask(version: str) -> JsonObject:
            body = {
                "apiVersion": f"{GROUP}/{version}",
                "kind": "ResourceClaim",
                "metadata": {"name": name, "namespace": namespace, "uid": uid},
                "status": {"devices": devices},
            }
            url = f"/apis/{GROUP}/{version}{path}"
            return await self._client.patch(url, body, content_type=APPLY_PATCH, query=query)

        return await self._on_served(ask)

    async def list_slices(self, field_selector: str = "") -> tuple[list[JsonObject], str]:
        """Return the slices, and the resource version to watch from."""

        async def ask(version: str) -> tuple[list[JsonObject], str]:
            answer = await self._client.list(_slices(version), field_selector=field_selector)
            items = [from_version(item, version, whole=True) for item in answer["items"]]
            return items, str((answer.get("metadata") or {}).get("resourceVersion") or "")

        return await self._on_served(ask)

    async def watch_slices(self, field_selector: str, resource_version: str) -> AsyncGenerator[WatchEvent]:
        """Yield changes of slices until the server ends the stream; see `KubeClient.watch`."""
        version = await self.version()
        try:
            async with aclosing(
                self._client.watch(_slices(version), field_selector=field_selector, resource_version=resource_version)
            ) as events:
                async for event in events:
                    yield WatchEvent(type=event.type, object=from_version(event.object, version))
        except ApiNotFoundError:
            self._forget(version)
            raise

    async def create_slice(self, item: JsonObject) -> JsonObject:
        """Create a slice; return it as stored."""

        async def ask(version: str) -> JsonObject:
            stored = await self._client.create(_slices(version), to_version(item, version))
            return from_version(stored, version, whole=True)

        return await self._on_served(ask)

    async def update_slice(self, item: JsonObject) -> JsonObject:
        """Replace a slice if its resource version is still the one in `item`; return it as stored."""

        async def ask(version: str) -> JsonObject:
            path = f"{_slices(version)}/{item['metadata']['name']}"
            return from_version(await self._client.update(path, to_version(item, version)), version, whole=True)

        return await self._on_served(ask)

    async def delete_slice(self, name: str, *, uid: str | None = None, resource_version: str | None = None) -> None:
        """Delete a slice if it is still this one."""

        async def ask(version: str) -> None:
            path = f"{_slices(version)}/{name}"
            await self._client.delete(path, uid=uid, resource_version=resource_version)

        await self._on_served(ask)

    async def list_classes(self) -> tuple[list[JsonObject], str]:
        """Return the DeviceClasses, whose specs are alike in all versions, and the resource version to watch from."""

        async def ask(version: str) -> tuple[list[JsonObject], str]:
            answer = await self._client.list(_classes(version))
            return answer["items"], str((answer.get("metadata") or {}).get("resourceVersion") or "")

        return await self._on_served(ask)

    async def watch_classes(self, resource_version: str) -> AsyncGenerator[WatchEvent]:
        """Yield changes of DeviceClasses until the server ends the stream; see `KubeClient.watch`."""
        version = await self.version()
        try:
            async with aclosing(self._client.watch(_classes(version), resource_version=resource_version)) as events:
                async for event in events:
                    yield event
        except ApiNotFoundError:
            self._forget(version)
            raise

    async def _on_served(self, ask: Callable[[str], Awaitable[Answer]]) -> Answer:
        """Ask with the known version; if its path is gone, with the one that is served now."""
        version = await self.version()
        try:
            return await ask(version)
        except ApiNotFoundError as error:
            if error.reason:  # an object is missing, not the path
                raise
            self._forget(version)
            if await self.version() == version:
                raise
        return await ask(await self.version())

    def _forget(self, version: str) -> None:
        if self._version == version:
            self._version = None

    async def _discover(self) -> str:
        try:
            group = await self._client.get(f"/apis/{GROUP}")
        except ApiNotFoundError as error:
            raise ApiNotFoundError(
                f"the API server at {self._client.server} does not serve {GROUP}: DRA needs Kubernetes 1.32 or later "
                "with that API group enabled",
                status=error.status,
                reason=error.reason,
            ) from error
        entries = group.get("versions")
        served = [one.get("version") for one in entries if isinstance(one, dict)] if isinstance(entries, list) else []
        for version in VERSIONS:
            if version in served:
                return version
        raise ApiNotFoundError(f"the API server serves {GROUP} as {served}, the driver speaks {list(VERSIONS)}")


def _slices(version: str) -> str:
    return f"/apis/{GROUP}/{version}/resourceslices"


def _classes(version: str) -> str:
    return f"/apis/{GROUP}/{version}/deviceclasses"
