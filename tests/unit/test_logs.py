from __future__ import annotations

import asyncio
import io
import json
import logging
import re
from typing import TYPE_CHECKING

import pytest

from driver import logs

if TYPE_CHECKING:
    from collections.abc import Iterator

log = logging.getLogger("driver.test")


@pytest.fixture(autouse=True)
def _restore() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    for name in ("asyncio", "grpc"):
        logging.getLogger(name).setLevel(logging.NOTSET)


def output(style: str) -> io.StringIO:
    stream = io.StringIO()
    logs.configure(level="info", style=style, stream=stream)
    return stream


def test_text() -> None:
    stream = output("text")
    log.debug("unseen")
    log.info("claim %s", "a\nb")
    with logs.call() as call:
        log.warning("within")
    first, second = stream.getvalue().splitlines()
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z INFO driver\.test claim a\\nb", first)
    assert second.endswith(f"WARNING driver.test [{call}] within")


def test_json() -> None:
    stream = output("json")
    with logs.call() as call:
        try:
            _ = 1 / 0
        except ZeroDivisionError:
            log.exception("failed\nbadly")
    log.info("after")
    first, second = (json.loads(line) for line in stream.getvalue().splitlines())
    assert (first["level"], first["logger"], first["message"], first["call"]) == (
        "error",
        "driver.test",
        "failed\nbadly",
        call,
    )
    assert "ZeroDivisionError" in first["exception"]
    assert "call" not in second


async def test_ids_follow_tasks_and_threads_and_do_not_mix() -> None:
    async def one() -> None:
        with logs.call() as call:
            await asyncio.sleep(0)
            assert await asyncio.to_thread(logs.call_id.get) == call
            assert await asyncio.create_task(current()) == call

    async def current() -> str:
        return logs.call_id.get()

    await asyncio.gather(*(one() for _ in range(5)))
    assert logs.call_id.get() == ""


def test_debug_is_ours_only() -> None:
    stream = io.StringIO()
    logs.configure(level="debug", stream=stream)
    log.debug("seen")
    logging.getLogger("grpc._cython.cygrpc").debug("unseen")
    assert stream.getvalue().count("\n") == 1
