"""A running API server and a client for it, over real TLS."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest
import yaml

from driver.localcluster.apiserver import ApiServer, Store

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

CLAIMS = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"
SLICES = "/apis/resource.k8s.io/v1/resourceslices"
PODS = "/api/v1/namespaces/default/pods"
CONFIGMAPS = "/api/v1/namespaces/default/configmaps"


@dataclass
class Answer:
    status: int
    headers: Any
    text: str
    body: Any = field(default=None)


class Client:
    """What a test asks with."""

    def __init__(self, server: ApiServer, token: str) -> None:
        self.server = server
        self.token = token
        context = ssl.create_default_context(cafile=str(server.ca_file))
        self.session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=context))

    def headers(self, **more: str) -> dict[str, str]:
        return ({"Authorization": f"Bearer {self.token}"} if self.token else {}) | more

    async def ask(self, method: str, path: str, body: Any = None, **headers: str) -> Answer:
        data = body if isinstance(body, (bytes, type(None))) else None
        json = None if isinstance(body, (bytes, type(None))) else body
        url = self.server.url + path
        async with self.session.request(method, url, data=data, json=json, headers=self.headers(**headers)) as response:
            text = await response.text()
            is_json = response.content_type == "application/json"
            return Answer(response.status, response.headers.copy(), text, await response.json() if is_json else None)

    async def patch(self, path: str, body: Any, kind: str = "merge-patch+json") -> Answer:
        import json

        return await self.ask("PATCH", path, json.dumps(body).encode(), **{"Content-Type": f"application/{kind}"})


@pytest.fixture
def store() -> Store:
    """A store with the namespace `default`."""
    found = Store()
    found.create("namespaces", {"metadata": {"name": "default"}})
    return found


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[ApiServer]:
    """A server that allows everything to everybody who is known."""
    running = ApiServer(tmp_path)
    await running.start()
    yield running
    await running.stop()


@pytest.fixture
async def client(server: ApiServer) -> AsyncIterator[Client]:
    """Its administrator."""
    config = yaml.safe_load(server.kubeconfig.read_text())
    found = Client(server, config["users"][0]["user"]["token"])
    yield found
    await found.session.close()


def claim(name: str = "c", **request: Any) -> dict[str, Any]:
    """A claim of one request."""
    asked = {"name": "r", "exactly": {"deviceClassName": "gpu.nvidia.com", **request}}
    return {"metadata": {"name": name}, "spec": {"devices": {"requests": [asked]}}}


def a_slice(name: str = "s", node: str = "n1", **spec: Any) -> dict[str, Any]:
    """A slice with one device."""
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    full = {"driver": "gpu.nvidia.com", "nodeName": node, "pool": pool, "devices": [{"name": "gpu-0"}], **spec}
    return {"metadata": {"name": name}, "spec": full}


def template(*names: str, **labels: str) -> dict[str, Any]:
    """A template of pods with containers of these names."""
    containers = [{"name": name, "image": name} for name in names or ("c",)]
    return {"metadata": {"labels": labels}, "spec": {"containers": containers}}


def pod(name: str = "p", **spec: Any) -> dict[str, Any]:
    """A pod of one container."""
    return {"metadata": {"name": name}, "spec": {"containers": [{"name": "c", "image": "busybox"}], **spec}}
