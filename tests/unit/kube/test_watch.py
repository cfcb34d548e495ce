from __future__ import annotations

import asyncio
import json
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import pytest
from aiohttp import web

from driver.errors import ApiError, ApiForbiddenError, ApiGoneError, ApiUnavailableError
from driver.localcluster.apiserver import ApiServer, Fault
from tests.unit.kube.conftest import NODES, answer

if TYPE_CHECKING:
    from driver.kube.client import KubeClient
    from tests.unit.kube.conftest import Serve


async def test_a_watch_brings_changes_since_a_version(server: ApiServer, client: KubeClient) -> None:
    version = (await client.list(NODES))["metadata"]["resourceVersion"]
    server.store.create("nodes", {"metadata": {"name": "a"}})
    server.store.patch("nodes", "a", {"metadata": {"labels": {"k": "v" * 63}}})
    server.store.delete("nodes", "a")
    seen = []
    async with aclosing(client.watch(NODES, resource_version=version)) as events:
        async for event in events:
            seen.append((event.type, event.object["metadata"]["name"]))
            if len(seen) == 3:
                break
    assert seen == [("ADDED", "a"), ("MODIFIED", "a"), ("DELETED", "a")]


async def test_a_watch_ends_when_the_server_ends_it(server: ApiServer, client: KubeClient) -> None:
    version = (await client.list(NODES))["metadata"]["resourceVersion"]
    watch = client.watch(NODES, resource_version=version)
    first = asyncio.create_task(anext(watch))
    server.store.create("nodes", {"metadata": {"name": "a"}})
    await first
    await server.stop()
    assert [event async for event in watch] == []


async def test_a_watch_from_a_forgotten_version_is_gone(server: ApiServer, client: KubeClient) -> None:
    version = (await client.list(NODES))["metadata"]["resourceVersion"]
    server.store.create("nodes", {"metadata": {"name": "a"}})
    server.store.delete("nodes", "a")
    server.store.compact()
    with pytest.raises(ApiGoneError):
        await anext(client.watch(NODES, resource_version=version))


async def test_a_watch_that_neither_speaks_nor_ends_is_given_up(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    async def hang(request: web.BaseRequest) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(_lines({"type": "ADDED", "object": {"metadata": {"name": "a"}}}))
        await asyncio.Event().wait()
        return response

    monkeypatch.setattr("driver.kube.client._LATE", 0.1)
    watch = (await serve(hang)).watch("/x", timeout_seconds=0)
    async with asyncio.timeout(10):
        assert (await anext(watch)).type == "ADDED"
        with pytest.raises(ApiUnavailableError, match=r"watch /x: .* did not answer in time"):
            await anext(watch)


async def test_a_refused_watch_is_its_error(server: ApiServer, client: KubeClient) -> None:
    server.faults.add(Fault.on("watch", status=403))
    with pytest.raises(ApiForbiddenError):
        await anext(client.watch(NODES))


def _lines(*events: dict[str, Any] | bytes) -> bytes:
    return b"".join(one if isinstance(one, bytes) else json.dumps(one).encode() + b"\n" for one in events)


async def test_a_watch_takes_long_lines_in_pieces_and_bookmarks(serve: Serve) -> None:
    long = {"type": "ADDED", "object": {"metadata": {"name": "a"}, "data": "x" * 300_000}}
    mark = {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "9"}}}

    async def stream(request: web.BaseRequest) -> web.StreamResponse:
        assert request.query["allowWatchBookmarks"] == "true"
        assert request.query["timeoutSeconds"] == "300"
        response = web.StreamResponse()
        await response.prepare(request)
        data = _lines(long, mark)
        for start in range(0, len(data), 7001):
            await response.write(data[start : start + 7001])
        return response

    client = await serve(stream)
    assert [(event.type, event.object) async for event in client.watch("/x")] == [
        ("ADDED", long["object"]),
        ("BOOKMARK", mark["object"]),
    ]


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        (_lines({"type": "ERROR", "object": {"kind": "Status", "code": 410, "message": "too old"}}), ApiGoneError),
        (_lines({"type": "ERROR", "object": {"kind": "Status", "code": 500, "message": "oh"}}), ApiUnavailableError),
        (_lines({"type": "ERROR", "object": {}}), ApiUnavailableError),
        (b"no JSON\n", ApiUnavailableError),
        (b'{"type": "ADDED"}\n', ApiUnavailableError),
        (b'{"type": "ADDED", "object": 3}\n', ApiUnavailableError),
        (b"[]\n", ApiUnavailableError),
        (_lines({"type": "ADDED", "object": {}}), ApiUnavailableError),
        (_lines({"type": "MODIFIED", "object": {"metadata": 5}}), ApiUnavailableError),
        (_lines({"type": "DELETED", "object": {"metadata": {"name": None}}}), ApiUnavailableError),
        (_lines({"type": "BOOKMARK", "object": {"metadata": []}}), ApiUnavailableError),
        (_lines({"type": 5, "object": {"metadata": {}}}), ApiUnavailableError),
    ],
)
async def test_a_bad_event_is_an_error(serve: Serve, line: bytes, kind: type[ApiError]) -> None:
    client = await serve(lambda request: answer(line))
    with pytest.raises(kind, match="watch /x"):
        await anext(client.watch("/x"))


async def test_a_watch_that_is_cut_amid_an_event_just_ends(serve: Serve) -> None:
    async def cut(request: web.BaseRequest) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(_lines({"type": "ADDED", "object": {"metadata": {"name": "a"}}}, b'{"type": "ADD'))
        assert request.transport is not None
        request.transport.close()
        return response

    client = await serve(cut)
    assert [event.object async for event in client.watch("/x")] == [{"metadata": {"name": "a"}}]
