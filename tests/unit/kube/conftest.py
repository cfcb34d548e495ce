"""An API server to talk to: the embedded cluster's, over TLS, and a bare HTTP server that may answer anything."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from aiohttp import web

from driver.kube.client import KubeClient
from driver.kube.config import ClusterConfig
from driver.localcluster.apiserver import ApiServer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

    Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]
    Serve = Callable[[Handler], Awaitable[KubeClient]]

NODES = "/api/v1/nodes"


async def answer(body: bytes, status: int = 200, **headers: str) -> web.Response:
    return web.Response(body=body, status=status, headers=headers)


async def serve_versions(server: ApiServer, *versions: str) -> None:
    """Restart the API server as one that serves these versions of `resource.k8s.io`."""
    await server.stop()
    server.store.features = replace(server.store.features, dra_versions=versions)
    await server.start()


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[ApiServer]:
    server = ApiServer(tmp_path / "apiserver")
    await server.start()
    yield server
    await server.stop()


@pytest.fixture
async def client(server: ApiServer) -> AsyncIterator[KubeClient]:
    async with KubeClient.from_kubeconfig(server.kubeconfig) as client:
        yield client


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    """Serve a handler over plain HTTP and return a client of it, with a time limit of two seconds."""
    runners = []
    clients = []

    async def serve(handler: Handler) -> KubeClient:
        runner = web.ServerRunner(web.Server(handler, handler_cancellation=True), shutdown_timeout=0.1)
        runners.append(runner)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        client = KubeClient(ClusterConfig(server=f"http://127.0.0.1:{runner.addresses[0][1]}"), timeout=2.0)
        clients.append(client)
        return client

    yield serve
    for client in clients:
        await client.aclose()
    for runner in runners:
        await runner.cleanup()
