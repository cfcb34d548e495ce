"""Logs for people and for machines: one line per event, and the id of the call it belongs to.

The id lives in a context variable, so that everything a call does, in its tasks and threads too, carries it.
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import secrets
import sys
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from collections.abc import Iterator

call_id: ContextVar[str] = ContextVar("call_id", default="")
"""The id of the call under way in this context; empty outside of calls."""


@contextlib.contextmanager
def call() -> Iterator[str]:
    """Give what happens within a fresh call id."""
    fresh = secrets.token_hex(4)
    token = call_id.set(fresh)
    try:
        yield fresh
    finally:
        with contextlib.suppress(ValueError):  # a stream may be closed in another context than it ran in
            call_id.reset(token)


class CallIdFilter(logging.Filter):
    """Puts the call id into each record, as `call`."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Add the id; every record passes."""
        record.call = call_id.get()
        return True


class TextFormatter(logging.Formatter):
    """`2026-01-02T03:04:05.678Z INFO driver.kubelet.dra [call] message`."""

    def format(self, record: logging.LogRecord) -> str:
        """Format one record; a traceback follows on lines of its own."""
        call = getattr(record, "call", "")
        where = f"{record.name} [{call}]" if call else record.name
        text = f"{_time(record)} {record.levelname} {where} {_single_line(record.getMessage())}"
        return f"{text}\n{self.formatException(record.exc_info)}" if record.exc_info else text


class JsonFormatter(logging.Formatter):
    """One JSON object per line, keys as in most log pipelines."""

    def format(self, record: logging.LogRecord) -> str:
        """Format one record."""
        entry = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if call := getattr(record, "call", ""):
            entry["call"] = call
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, ensure_ascii=False)


def configure(*, level: str = "INFO", style: str = "text", stream: TextIO | None = None) -> None:
    """Send all logs of the process to `stream` (standard error by default)."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.addFilter(CallIdFilter())
    handler.setFormatter(JsonFormatter() if style == "json" else TextFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    # What no format shows costs nothing (Python's Logging HOWTO, "Optimization").
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    for chatty in ("asyncio", "grpc"):
        logging.getLogger(chatty).setLevel(max(logging.INFO, root.level))


def _time(record: logging.LogRecord) -> str:
    return f"{_second(int(record.created))}.{int(record.created % 1 * 1000):03d}Z"


@functools.lru_cache(maxsize=2)
def _second(moment: int) -> str:
    """Render a second; most lines come in the same one."""
    return f"{datetime.fromtimestamp(moment, UTC):%Y-%m-%dT%H:%M:%S}"


def _single_line(text: str) -> str:
    return text.replace("\r", "\\r").replace("\n", "\\n")
