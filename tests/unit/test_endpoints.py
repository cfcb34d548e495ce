from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import aiohttp
import pytest

from driver.endpoints import Endpoints
from driver.errors import ServeError
from driver.metrics import Metrics

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

MISSING: dict[str, str] = {}


@pytest.fixture
async def endpoints() -> AsyncIterator[Endpoints]:
    MISSING.clear()
    made = Endpoints(host="127.0.0.1", port=0, missing=lambda: MISSING, metrics=Metrics("node1").exposition)
    await made.start()
    yield made
    await made.stop()


async def ask(endpoints: Endpoints, path: str, method: str = "GET") -> tuple[int, str, str]:
    url = f"http://127.0.0.1:{endpoints.port}{path}"
    async with aiohttp.ClientSession() as session, session.request(method, url) as answer:
        return answer.status, answer.headers.get("Content-Type", ""), await answer.text()


async def test_healthz_says_that_the_process_answers(endpoints: Endpoints) -> None:
    MISSING["inventory"] = "no library"
    assert await ask(endpoints, "/healthz") == (200, "text/plain; charset=utf-8", "ok\n")


async def test_A14_readyz_says_what_is_missing(endpoints: Endpoints) -> None:
    assert (await ask(endpoints, "/readyz"))[::2] == (200, '{"ready": true, "missing": {}}\n')
    MISSING["kubelet"] = "the kubelet has not registered the driver yet"
    status, kind, text = await ask(endpoints, "/readyz")
    assert status == 503
    assert kind.startswith("application/json")
    assert text == '{"ready": false, "missing": {"kubelet": "the kubelet has not registered the driver yet"}}\n'


async def test_metrics_are_in_prometheus_text_format(endpoints: Endpoints) -> None:
    status, kind, text = await ask(endpoints, "/metrics")
    assert status == 200
    assert kind == "text/plain; version=0.0.4; charset=utf-8"
    assert "gpu_dra_build_info{" in text


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/", 404), ("GET", "/healthz/x", 404), ("POST", "/healthz", 405), ("HEAD", "/healthz", 200)],
)
async def test_other_requests(endpoints: Endpoints, method: str, path: str, status: int) -> None:
    assert (await ask(endpoints, path, method))[0] == status


async def test_a_port_in_use_is_a_clear_error() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        second = Endpoints(host="127.0.0.1", port=port, missing=dict, metrics=bytes)
        with pytest.raises(ServeError, match=rf"on 127.0.0.1:{port}: .*in use"):
            await second.start()


@pytest.mark.parametrize("host", ["203.0.113.1", "no such host"])
async def test_an_address_that_is_not_ours_is_a_clear_error(host: str) -> None:
    with pytest.raises(ServeError, match="choose another address"):
        await Endpoints(host=host, port=0, missing=dict, metrics=bytes).start()


async def test_stop_frees_the_port(endpoints: Endpoints) -> None:
    port = endpoints.port
    await endpoints.stop()
    await endpoints.stop()
    with pytest.raises(aiohttp.ClientConnectionError):
        async with aiohttp.ClientSession() as session:
            await session.get(f"http://127.0.0.1:{port}/healthz")
