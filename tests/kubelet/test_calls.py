from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio
import pytest

from driver import logs
from driver._pb import dra_health_v1_pb2 as health
from driver._pb import dra_health_v1_pb2_grpc as health_grpc
from driver.kubelet.calls import CallInterceptor
from driver.logs import call_id
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from .conftest import Seen


class Stream(health_grpc.DRAResourceHealthServicer):
    """A stream of two answers; then it fails, ends or waits."""

    def __init__(self, then: str) -> None:
        self._then = then
        self.calls: list[str] = []
        self.over = asyncio.Event()

    async def NodeWatchResources(self, request: Any, context: Any) -> AsyncIterator[health.NodeWatchResourcesResponse]:
        try:
            for _ in range(2):
                self.calls.append(call_id.get())
                yield health.NodeWatchResourcesResponse()
            if self._then == "fails":
                raise ZeroDivisionError("a bug")
            if self._then == "waits":
                await asyncio.Event().wait()
        finally:
            self.over.set()


@contextlib.asynccontextmanager
async def served(stream: Stream, path: Path, seen: Seen) -> AsyncIterator[health_grpc.DRAResourceHealthStub]:
    server = grpc.aio.server(interceptors=(CallInterceptor(seen),))
    health_grpc.add_DRAResourceHealthServicer_to_server(stream, server)
    server.add_insecure_port(f"unix:{path}")
    await server.start()
    async with grpc.aio.insecure_channel(f"unix:{path}") as channel:
        yield health_grpc.DRAResourceHealthStub(channel)
    await server.stop(0)


async def test_a_stream_has_one_id_and_its_end_is_told(
    short_tmp: Path, seen: Seen, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    stream = Stream("ends")
    async with served(stream, short_tmp / "s", seen) as stub:
        answers = [one async for one in stub.NodeWatchResources(health.NodeWatchResourcesRequest(), timeout=10)]
    assert len(answers) == 2
    assert len(set(stream.calls)) == 1
    assert stream.calls[0]
    assert "NodeWatchResources took" in caplog.text
    assert seen.started == []


async def test_a_stream_ends_with_its_caller(short_tmp: Path, seen: Seen, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    stream = Stream("waits")
    async with served(stream, short_tmp / "s", seen) as stub:
        call = stub.NodeWatchResources(health.NodeWatchResourcesRequest(), timeout=10)
        await call.read()
        await call.read()
        call.cancel()
        await until(stream.over.is_set)
        await until(lambda: "cancelled by its caller" in caplog.text)


async def test_a_stream_that_fails_is_told(short_tmp: Path, seen: Seen, caplog: pytest.LogCaptureFixture) -> None:
    async with served(Stream("fails"), short_tmp / "s", seen) as stub:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            _ = [one async for one in stub.NodeWatchResources(health.NodeWatchResourcesRequest(), timeout=10)]
    assert caught.value.code() is grpc.StatusCode.UNKNOWN
    assert "NodeWatchResources failed" in caplog.text


async def test_a_stream_that_is_open_at_the_end_is_told(
    short_tmp: Path, seen: Seen, caplog: pytest.LogCaptureFixture
) -> None:
    stream = Stream("waits")
    async with served(stream, short_tmp / "s", seen) as stub:
        call = stub.NodeWatchResources(health.NodeWatchResourcesRequest(), timeout=10)
        await call.read()
    await until(stream.over.is_set)
    assert "Traceback" not in caplog.text


def test_an_id_may_be_given_back_in_another_context() -> None:
    call = logs.call()
    contextvars.copy_context().run(call.__enter__)
    call.__exit__(None, None, None)
    assert call_id.get() == ""
