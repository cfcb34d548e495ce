"""Watches over HTTP."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager

import pytest

from driver.localcluster.apiserver import streams
from tests.unit.localcluster.apiserver.conftest import PODS, SLICES, a_slice, pod


class Events:
    def __init__(self, response):
        self._response = response

    async def next(self):
        async with asyncio.timeout(10):
            line = await self._response.content.readline()
        return json.loads(line) if line else None

    async def names(self, count):
        events = [await self.next() for _ in range(count)]
        return [(event["type"], event["object"]["metadata"].get("name")) for event in events]


@asynccontextmanager
async def watching(client, path, **headers):
    async with client.session.get(client.server.url + path, headers=client.headers(**headers)) as response:
        assert response.status == 200
        yield Events(response)


async def test_a_watch_without_a_version_begins_with_the_present_state(client):
    await client.ask("POST", SLICES, a_slice("a"))
    async with watching(client, f"{SLICES}?watch=true") as events:
        assert await events.names(1) == [("ADDED", "a")]
        await client.ask("POST", SLICES, a_slice("b"))
        await client.ask("DELETE", f"{SLICES}/a")
        assert await events.names(2) == [("ADDED", "b"), ("DELETED", "a")]


async def test_a_watch_goes_on_where_a_list_ended(client):
    await client.ask("POST", SLICES, a_slice("a"))
    version = (await client.ask("GET", SLICES)).body["metadata"]["resourceVersion"]
    await client.ask("POST", SLICES, a_slice("b"))
    async with watching(client, f"{SLICES}?watch=1&resourceVersion={version}") as events:
        assert await events.names(1) == [("ADDED", "b")]


async def test_initial_events_end_with_a_bookmark(client):
    await client.ask("POST", SLICES, a_slice("a"))
    query = "watch=true&sendInitialEvents=true&allowWatchBookmarks=true&resourceVersionMatch=NotOlderThan"
    async with watching(client, f"{SLICES}?{query}") as events:
        assert await events.names(1) == [("ADDED", "a")]
        mark = await events.next()
    assert mark["type"] == "BOOKMARK"
    assert mark["object"]["kind"] == "ResourceSlice"
    assert mark["object"]["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}
    assert mark["object"]["metadata"]["resourceVersion"] == str(client.server.store.revision)


@pytest.mark.parametrize(
    ("query", "why"),
    [
        ("sendInitialEvents=true", "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan"),
        ("sendInitialEvents=true&resourceVersionMatch=Exact", "sendInitialEvents requires"),
        ("resourceVersionMatch=NotOlderThan", "forbidden for watch unless sendInitialEvents is provided"),
    ],
)
async def test_initial_events_are_asked_for_in_full(client, query, why):
    found = await client.ask("GET", f"{SLICES}?watch=true&{query}")
    assert (found.status, found.body["reason"]) == (422, "Invalid")
    assert why in found.body["message"]


async def test_bookmarks_come_while_nothing_happens(client, monkeypatch):
    monkeypatch.setattr(streams, "BOOKMARK_SECONDS", 0.01)
    version = client.server.store.revision
    async with watching(client, f"{SLICES}?watch=true&allowWatchBookmarks=true&resourceVersion={version}") as events:
        assert [type_ for type_, _ in await events.names(2)] == ["BOOKMARK", "BOOKMARK"]


async def test_a_compacted_version_is_an_error_within_the_stream(client):
    await client.ask("POST", SLICES, a_slice("a"))
    client.server.store.compact()
    async with watching(client, f"{SLICES}?watch=true&resourceVersion=1") as events:
        event = await events.next()
        assert (event["type"], event["object"]["code"], event["object"]["reason"]) == ("ERROR", 410, "Expired")
        assert await events.next() is None


async def test_a_version_of_the_future_is_refused(client):
    found = await client.ask("GET", f"{SLICES}?watch=true&resourceVersion=999999")
    assert (found.status, "Too large resource version" in found.body["message"]) == (504, True)


@pytest.mark.parametrize("query", ["resourceVersion=abc", "fieldSelector=nonsense", "labelSelector=a%20b"])
async def test_a_watch_with_bad_parameters_is_400(client, query):
    assert (await client.ask("GET", f"{SLICES}?watch=true&{query}")).status == 400


async def test_a_watch_ends_after_its_time(client):
    version = client.server.store.revision
    async with watching(client, f"{SLICES}?watch=true&timeoutSeconds=1&resourceVersion={version}") as events:
        assert await events.next() is None


async def test_one_object_can_be_watched(client):
    await client.ask("POST", PODS, pod("p"))
    await client.ask("POST", PODS, pod("q"))
    async with watching(client, f"{PODS}?watch=true&fieldSelector=metadata.name%3Dq") as events:
        assert await events.names(1) == [("ADDED", "q")]


async def test_a_watch_may_be_of_tables(client):
    await client.ask("POST", PODS, pod("p"))
    async with watching(client, f"{PODS}?watch=true", Accept="application/json;as=Table;v=v1;g=meta.k8s.io") as events:
        event = await events.next()
    assert (event["object"]["kind"], event["object"]["rows"][0]["cells"][0]) == ("Table", "p")


async def test_stopping_the_server_ends_watches(client):
    async with watching(client, f"{SLICES}?watch=true") as events:
        await client.server.stop()
        assert await events.next() is None


async def test_a_client_that_goes_away_leaves_no_watcher(client):
    store = client.server.store
    async with watching(client, f"{SLICES}?watch=true"):
        assert store.watchers("resourceslices") == 1
    async with asyncio.timeout(10):
        while store.watchers("resourceslices"):
            await client.ask("GET", "/version")
