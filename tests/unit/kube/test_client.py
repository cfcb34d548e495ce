from __future__ import annotations

import asyncio
import json
import secrets
from typing import TYPE_CHECKING, Any

import pytest
from aiohttp import web
from yarl import URL

from driver.errors import (
    ApiConflictError,
    ApiError,
    ApiForbiddenError,
    ApiGoneError,
    ApiInvalidError,
    ApiNotFoundError,
    ApiUnauthorizedError,
    ApiUnavailableError,
)
from driver.kube import transport
from driver.kube.client import JSON_PATCH, KubeClient
from driver.kube.config import ClusterConfig
from driver.localcluster.apiserver import ApiServer, Fault
from tests.unit.kube.conftest import NODES, answer

if TYPE_CHECKING:
    from tests.unit.kube.conftest import Serve

CONFIGMAPS = "/api/v1/namespaces/default/configmaps"


# --- verbs -----------------------------------------------------------------------------------------------------------


async def test_an_object_lives_through_all_verbs(client: KubeClient) -> None:
    made = await client.create(CONFIGMAPS, {"metadata": {"name": "a"}, "data": {"k": "1"}})
    path = f"{CONFIGMAPS}/a"
    assert (await client.get(path))["data"] == {"k": "1"}
    changed = await client.update(path, {**made, "data": {"k": "2"}})
    assert changed["metadata"]["resourceVersion"] != made["metadata"]["resourceVersion"]
    assert (await client.patch(path, {"data": {"k": "3"}}))["data"] == {"k": "3"}
    operations = [{"op": "replace", "path": "/data/k", "value": "4"}]
    assert (await client.patch(path, operations, content_type=JSON_PATCH))["data"] == {"k": "4"}
    await client.delete(path)
    with pytest.raises(ApiNotFoundError) as caught:
        await client.get(path)
    assert caught.value.reason == "NotFound"
    assert caught.value.status == 404


async def test_a_list_is_filtered_and_never_without_items(server: ApiServer, client: KubeClient) -> None:
    for name in "ab":
        server.store.create("nodes", {"metadata": {"name": name, "labels": {"is": name}}})
    named = await client.list(NODES, label_selector="is=b")
    assert [item["metadata"]["name"] for item in named["items"]] == ["b"]
    assert (await client.list(NODES, label_selector="is=c"))["items"] == []
    fields = await client.list(NODES, field_selector="metadata.name=a")
    assert [item["metadata"]["name"] for item in fields["items"]] == ["a"]
    assert int(fields["metadata"]["resourceVersion"]) > 0


async def test_a_list_reads_all_pages(serve: Serve) -> None:
    async def pages(request: web.BaseRequest) -> web.Response:
        page = int(request.query.get("continue", "0"))
        onward = {"continue": str(page + 1)} if page < 2 else {}
        return web.json_response(
            {"metadata": {"resourceVersion": "7", **onward}, "items": [{"metadata": {"name": str(page)}}]}
        )

    client = await serve(pages)
    whole = await client.list("/x", field_selector="a=b")
    assert [item["metadata"]["name"] for item in whole["items"]] == ["0", "1", "2"]
    assert whole["metadata"]["resourceVersion"] == "7"


@pytest.mark.parametrize(
    "body",
    [
        {"items": 5},
        {"items": [5]},
        {"items": [None]},
        {"items": [{}]},
        {"items": [{"metadata": {"name": 5}}]},
        {"items": [], "metadata": 5},
    ],
)
async def test_what_is_no_list_of_objects_is_an_error(serve: Serve, body: dict[str, Any]) -> None:
    client = await serve(lambda request: answer(json.dumps(body).encode()))
    with pytest.raises(ApiUnavailableError, match=r"GET /x: .* something else than a list of objects"):
        await client.list("/x")


async def test_an_update_of_an_old_object_is_a_conflict(client: KubeClient) -> None:
    made = await client.create(CONFIGMAPS, {"metadata": {"name": "a"}})
    await client.patch(f"{CONFIGMAPS}/a", {"data": {"k": "1"}})
    with pytest.raises(ApiConflictError):
        await client.update(f"{CONFIGMAPS}/a", {**made, "data": {"k": "2"}})


@pytest.mark.parametrize("wrong", [{"uid": "another"}, {"resource_version": "1"}])
async def test_a_deletion_of_another_object_is_a_conflict(client: KubeClient, wrong: dict[str, str]) -> None:
    made = (await client.create(CONFIGMAPS, {"metadata": {"name": "a"}}))["metadata"]
    with pytest.raises(ApiConflictError):
        await client.delete(f"{CONFIGMAPS}/a", **wrong)
    await client.delete(f"{CONFIGMAPS}/a", uid=made["uid"], resource_version=made["resourceVersion"])


async def test_creating_twice_is_a_conflict(client: KubeClient) -> None:
    await client.create(CONFIGMAPS, {"metadata": {"name": "a"}})
    with pytest.raises(ApiConflictError) as caught:
        await client.create(CONFIGMAPS, {"metadata": {"name": "a"}})
    assert caught.value.reason == "AlreadyExists"


async def test_a_burst_of_calls_takes_no_more_than_its_share_of_connections(
    server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "_CONNECTIONS", 2)
    client = KubeClient.from_kubeconfig(server.kubeconfig)
    hold = asyncio.Event()
    fault = server.faults.add(Fault.on("list", "nodes", until=hold))
    calls = [asyncio.create_task(client.list(NODES)) for _ in range(6)]
    while fault.hits < 2:
        await asyncio.sleep(0)
    done, _ = await asyncio.wait(calls, timeout=0.05)
    assert not done
    assert fault.hits == 2
    hold.set()
    assert len(await asyncio.gather(*calls)) == 6
    await client.aclose()


async def test_calls_share_kept_connections(server: ApiServer, client: KubeClient, monkeypatch: Any) -> None:
    opened = []
    real = transport._socket
    monkeypatch.setattr(transport, "_socket", lambda address: opened.append(address) or real(address))
    for _ in range(5):
        await client.list(NODES)
    assert len(opened) == 1


# --- failures --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, ApiInvalidError),
        (401, ApiUnauthorizedError),
        (403, ApiForbiddenError),
        (404, ApiNotFoundError),
        (409, ApiConflictError),
        (410, ApiGoneError),
        (415, ApiInvalidError),
        (422, ApiInvalidError),
        (429, ApiUnavailableError),
        (500, ApiUnavailableError),
        (503, ApiUnavailableError),
        (504, ApiUnavailableError),
    ],
)
@pytest.mark.parametrize("method", ["get", "create"])
async def test_each_status_is_its_error_with_the_servers_words(
    server: ApiServer, client: KubeClient, status: int, kind: type[ApiError], method: str
) -> None:
    server.faults.add(Fault(status=status, message="what the server says"))
    with pytest.raises(kind) as caught:
        await (client.get(NODES) if method == "get" else client.create(NODES, {}))
    assert caught.value.status == status
    assert str(status) in str(caught.value)
    assert NODES in str(caught.value)
    assert "what the server says" in str(caught.value)


@pytest.mark.parametrize("status", [429, 503])
async def test_retry_after_is_passed_on(server: ApiServer, client: KubeClient, status: int) -> None:
    server.faults.add(Fault(status=status, retry_after=7))
    with pytest.raises(ApiUnavailableError) as caught:
        await client.get(NODES)
    assert caught.value.retry_after == 7


async def test_a_server_that_is_down_is_unavailable_and_comes_back(server: ApiServer, client: KubeClient) -> None:
    await client.list(NODES)
    await server.stop()
    with pytest.raises(ApiUnavailableError) as caught:
        await client.list(NODES)
    assert server.url in str(caught.value)
    assert caught.value.status == 0
    await server.start()
    await client.list(NODES)


async def test_a_dropped_connection_is_unavailable(server: ApiServer, client: KubeClient) -> None:
    server.faults.add(Fault(drop=True))
    with pytest.raises(ApiUnavailableError):
        await client.create(NODES, {"metadata": {"name": "a"}})


async def test_a_server_that_is_not_there_is_told_in_the_same_words_each_time(
    server: ApiServer, client: KubeClient
) -> None:
    await server.stop()
    with pytest.raises(ApiUnavailableError) as caught:
        await client.get(NODES)
    with pytest.raises(ApiUnavailableError) as again:
        await client.get(NODES)
    address = ("127.0.0.1", URL(client.server).port)
    assert str(caught.value) == f"GET {NODES}: {client.server}: Connect call failed {address}" == str(again.value)


async def test_a_slow_server_is_unavailable(serve: Serve) -> None:
    async def never(request: web.BaseRequest) -> web.Response:
        await asyncio.Event().wait()
        raise AssertionError

    client = await serve(never)
    with pytest.raises(ApiUnavailableError, match="did not answer in time"):
        await client.get("/x")


async def test_the_callers_deadline_cuts_a_slow_call(server: ApiServer, client: KubeClient) -> None:
    fault = server.faults.add(Fault(until=asyncio.Event()))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await client.get(NODES)
    server.faults.remove(fault)
    await client.list(NODES)


@pytest.mark.parametrize("body", [b"", b"<html>log in</html>", b"[1]", b"null", b"\xff", b"[" * 100_000])
async def test_an_answer_that_is_no_object_is_unavailable(serve: Serve, body: bytes) -> None:
    client = await serve(lambda request: answer(body))
    with pytest.raises(ApiUnavailableError, match="GET /x"):
        await client.get("/x")


async def test_what_speaks_no_http_is_told_in_the_same_words_each_time() -> None:
    told = set()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"\x16\x03\x01" + secrets.token_bytes(100))  # as if it were TLS
        writer.close()

    async with await asyncio.start_server(talk, "127.0.0.1", 0) as stranger:
        port = stranger.sockets[0].getsockname()[1]
        async with KubeClient(ClusterConfig(server=f"http://127.0.0.1:{port}")) as client:
            for _ in range(3):
                with pytest.raises(
                    ApiUnavailableError, match="does not speak HTTP as it should: Bad status line"
                ) as caught:
                    await client.get("/x")
                told.add(str(caught.value))
    assert len(told) == 1


async def test_a_redirect_is_not_followed(serve: Serve) -> None:
    client = await serve(lambda request: answer(b"", 302, Location="http://127.0.0.1:1/stolen"))
    with pytest.raises(ApiInvalidError) as caught:
        await client.get("/x")
    assert caught.value.status == 302


async def test_an_answer_without_end_is_cut(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "LARGEST_ANSWER", 1000)
    client = await serve(lambda request: answer(b"x" * 1001))
    with pytest.raises(ApiUnavailableError, match="longer than 1000 bytes"):
        await client.get("/x")
    client = await serve(lambda request: answer(json.dumps({"a": "x" * 980}).encode()))
    assert await client.get("/x")


async def test_a_missing_ca_file_is_unavailable_and_named(tmp_path: Any) -> None:
    from driver.kube.tls import Tls

    cluster = ClusterConfig(server="https://127.0.0.1:1", tls=Tls(ca_file=tmp_path / "gone.crt"))
    async with KubeClient(cluster) as client:
        with pytest.raises(ApiUnavailableError, match=r"gone\.crt"):
            await client.get("/x")


async def test_no_token_appears_in_errors(serve: Serve) -> None:
    from driver.kube.credentials import FixedToken

    client = await serve(lambda request: answer(b"no", 403))
    secret = KubeClient(ClusterConfig(server=client.server, token=FixedToken("s3cret")))
    async with secret:
        with pytest.raises(ApiForbiddenError) as caught:
            await secret.get("/x")
    assert "s3cret" not in repr(caught.value) + str(caught.value)
