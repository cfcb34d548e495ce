from __future__ import annotations

import asyncio
import http.client
import json
import os
import socket
import stat
from typing import TYPE_CHECKING, Any

import pytest

from driver.telemetry.status_server import StatusServer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


async def document() -> dict[str, Any]:
    return {"gpus": [], "node": "n"}


def ask(path: Path, target: str = "/status", method: str = "GET") -> tuple[int, str]:
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(10)
        client.connect(str(path))
        client.sendall(f"{method} {target} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        answer = http.client.HTTPResponse(client, method=method)
        answer.begin()
        return answer.status, answer.read().decode()


@pytest.fixture
async def server(short_tmp: Path) -> AsyncIterator[StatusServer]:
    made = StatusServer(short_tmp / "state/status.sock", document)
    await made.start()
    yield made
    await made.stop()


async def test_it_answers_root_only(server: StatusServer, short_tmp: Path) -> None:
    path = short_tmp / "state/status.sock"
    code, text = await asyncio.to_thread(ask, path)
    assert (code, json.loads(text)) == (200, await document())
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [one.name for one in path.parent.iterdir()] == ["status.sock"]


@pytest.mark.parametrize(
    ("target", "method", "code"), [("/", "GET", 404), ("/metrics", "GET", 404), ("/status", "POST", 405)]
)
async def test_nothing_else_is_served(
    server: StatusServer, short_tmp: Path, target: str, method: str, code: int
) -> None:
    assert (await asyncio.to_thread(ask, short_tmp / "state/status.sock", target, method))[0] == code


async def test_it_goes_with_the_agent(short_tmp: Path) -> None:
    server = StatusServer(short_tmp / "s.sock", document)
    await server.start()
    await server.stop()
    assert not (short_tmp / "s.sock").exists()
    await server.stop()


async def test_a_dead_agents_socket_is_in_nobodys_way(short_tmp: Path) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(short_tmp / "s.sock"))
    server = StatusServer(short_tmp / "s.sock", document)
    await server.start()
    assert (await asyncio.to_thread(ask, short_tmp / "s.sock"))[0] == 200
    await server.stop()


async def test_in_a_rolling_update_the_newer_agent_answers(short_tmp: Path) -> None:
    async def newer() -> dict[str, Any]:
        return {"gpus": [], "node": "newer"}

    first, second = StatusServer(short_tmp / "s.sock", document), StatusServer(short_tmp / "s.sock", newer)
    await first.start()
    await second.start()
    await first.stop()
    assert json.loads((await asyncio.to_thread(ask, short_tmp / "s.sock"))[1])["node"] == "newer"
    await second.stop()
    assert not (short_tmp / "s.sock").exists()


@pytest.mark.parametrize("kind", ["too long", "no directory"])
async def test_a_place_where_none_can_be_costs_the_status_only(
    short_tmp: Path, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    (short_tmp / "file").write_text("")
    path = short_tmp / ("x" * 120 if kind == "too long" else "file") / "s.sock"
    server = StatusServer(path, document)
    await server.start()
    assert "gpu-dra status won't work" in caplog.text
    assert os.listdir(short_tmp) == ["file"]
    await server.stop()
