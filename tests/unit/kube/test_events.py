from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from driver.kube import events as module
from driver.kube.events import EventSink
from driver.localcluster.apiserver import ApiServer, Fault
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import pytest

    from driver.kube.client import KubeClient


class Clock:
    def __init__(self) -> None:
        self.now = datetime(2026, 1, 1, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now


@asynccontextmanager
async def running(sink: EventSink) -> AsyncIterator[EventSink]:
    task = asyncio.create_task(sink.run())
    try:
        yield sink
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def stored(server: ApiServer, namespace: str = "default") -> list[dict[str, Any]]:
    return server.store.list("events", namespace)


async def test_an_event_is_about_the_node(server: ApiServer, client: KubeClient) -> None:
    clock = Clock()
    async with running(EventSink(client, "node-a", now=clock)) as sink:
        sink.emit("GpuLost", "GPU-1 does not answer", warning=True)
        await until(lambda: stored(server))
    event = stored(server)[0]
    assert event["involvedObject"] == {"apiVersion": "v1", "kind": "Node", "name": "node-a", "uid": "node-a"}
    assert (event["type"], event["reason"], event["message"]) == ("Warning", "GpuLost", "GPU-1 does not answer")
    assert event["source"] == {"component": "gpu-dra", "host": "node-a"}
    assert (event["count"], event["firstTimestamp"]) == (1, "2026-01-01T00:00:00Z")


async def test_an_event_about_a_pod_is_in_its_namespace(server: ApiServer, client: KubeClient) -> None:
    server.store.create("namespaces", {"metadata": {"name": "team"}})
    pod = {"apiVersion": "v1", "kind": "Pod", "namespace": "team", "name": "p", "uid": "u"}
    async with running(EventSink(client, "node-a")) as sink:
        sink.emit("Prepared", "all is well", involved=pod)
        await until(lambda: stored(server, "team"))
    event = stored(server, "team")[0]
    assert event["involvedObject"] == pod
    assert event["type"] == "Normal"


async def test_repeats_raise_the_count_of_one_event(server: ApiServer, client: KubeClient) -> None:
    clock = Clock()
    async with running(EventSink(client, "node-a", now=clock)) as sink:
        for _ in range(3):
            sink.emit("GpuLost", "GPU-1")
        await until(lambda: stored(server))
        clock.now += timedelta(minutes=5)
        sink.emit("GpuLost", "GPU-1")
        sink.emit("GpuLost", "GPU-2")
        await until(lambda: len(stored(server)) == 2)
    counts = {event["message"]: (event["count"], event["lastTimestamp"]) for event in stored(server)}
    assert counts == {"GPU-1": (4, "2026-01-01T00:05:00Z"), "GPU-2": (1, "2026-01-01T00:05:00Z")}
    assert stored(server)[0]["firstTimestamp"] in ("2026-01-01T00:00:00Z", "2026-01-01T00:05:00Z")


async def test_a_repeat_of_an_expired_event_is_written_anew(server: ApiServer, client: KubeClient) -> None:
    async with running(EventSink(client, "node-a")) as sink:
        sink.emit("GpuLost", "GPU-1")
        await until(lambda: stored(server))
        server.store.delete("events", stored(server)[0]["metadata"]["name"], "default")
        sink.emit("GpuLost", "GPU-1")
        await until(lambda: stored(server))
    assert stored(server)[0]["count"] == 1


def lost(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return what the log says of Events that nobody will see."""
    return [record.getMessage() for record in caplog.records if record.name == module.__name__]


async def test_emitting_never_blocks_and_what_the_queue_has_no_room_for_is_logged(
    server: ApiServer, client: KubeClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "_WAITING", 10)
    sink = EventSink(client, "node-a")
    for number in range(15):
        sink.emit("Flood", f"number {number}")
    sink.emit("Flood", "number 0")  # a repeat takes no room
    assert [line.rpartition(": ")[2] for line in lost(caplog)] == [f"number {number}" for number in range(10, 15)]
    async with running(sink):
        await until(lambda: len(stored(server)) == 10)
    assert {event["message"]: event["count"] for event in stored(server)}["number 0"] == 2


async def test_a_burst_is_written_at_the_allowed_rate_and_repeats_meanwhile_are_one(
    server: ApiServer, client: KubeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_BURST", 3)
    monkeypatch.setattr(module, "_REFILL", 3600)
    async with running(EventSink(client, "node-a")) as sink:
        for number in range(5):
            sink.emit("Flood", f"number {number}")
        await until(lambda: len(stored(server)) == 3)
        for _ in range(10):
            sink.emit("Flood", "number 4")
            await asyncio.sleep(0)
    assert len(stored(server)) == 3
    assert server.audit.counts["create", "events"] == 3


async def test_an_api_server_that_is_away_gets_the_event_later(
    server: ApiServer, client: KubeClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "_FIRST_PAUSE", 0.01)
    fault = server.faults.add(Fault.on("create", "events", status=503, times=2))
    async with running(EventSink(client, "node-a")) as sink:
        sink.emit("GpuLost", "GPU-1")
        await until(lambda: stored(server))
    assert fault.hits == 2
    assert lost(caplog) == []


async def test_an_outage_of_hours_costs_what_is_no_news_any_more(
    server: ApiServer, client: KubeClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "_FIRST_PAUSE", 0.001)
    monkeypatch.setattr(module, "_LONGEST_PAUSE", 0.002)
    fault = server.faults.add(Fault.on("create", "events", status=503))
    now, passed = datetime(2026, 1, 1, tzinfo=UTC), 0.0
    async with running(EventSink(client, "node-a", now=lambda: now, clock=lambda: passed)) as sink:
        sink.emit("GpuLost", "GPU-1")
        now += timedelta(days=1)  # the wall clock may jump
        await until(lambda: fault.hits > 8)
        assert lost(caplog) == []
        passed = 3600.0
        await until(lambda: len(lost(caplog)) == 1)
        server.faults.clear()
        sink.emit("GpuLost", "GPU-2")
        await until(lambda: stored(server))
    assert [event["message"] for event in stored(server)] == ["GPU-2"]


async def test_a_repeat_while_the_first_is_being_written_raises_its_count(
    server: ApiServer, client: KubeClient
) -> None:
    gate = asyncio.Event()
    fault = server.faults.add(Fault.on("create", "events", until=gate))
    async with running(EventSink(client, "node-a")) as sink:
        sink.emit("GpuLost", "GPU-1")
        await fault.reached.wait()
        sink.emit("GpuLost", "GPU-1")
        gate.set()
        await until(lambda: stored(server) and stored(server)[0]["count"] == 2)
    assert len(stored(server)) == 1


async def test_a_refused_event_is_dropped_and_the_next_is_written(
    server: ApiServer, client: KubeClient, caplog: pytest.LogCaptureFixture
) -> None:
    server.faults.add(Fault.on("create", "events", status=403, times=1))
    async with running(EventSink(client, "node-a")) as sink:
        sink.emit("GpuLost", "GPU-1")
        sink.emit("GpuLost", "GPU-2")
        await until(lambda: stored(server))
    assert [event["message"] for event in stored(server)] == ["GPU-2"]
    assert len(lost(caplog)) == 1


async def test_long_and_odd_texts_are_cut_and_the_name_is_valid(server: ApiServer, client: KubeClient) -> None:
    async with running(EventSink(client, "Node.With_Odd.Name")) as sink:
        sink.emit("R" * 500, "\N{SNOWMAN}" * 1000 + "\ud800")
        await until(lambda: stored(server))
    event = stored(server)[0]
    assert len(event["message"].encode()) <= 1024
    assert len(event["reason"]) == 128
