"""The agent as a process: signals, exit statuses, and one line that says why it could not go on."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import sys
import threading
from typing import TYPE_CHECKING

import driver
from driver import logs
from driver.agent.agent import Agent
from driver.errors import DriverError
from driver.settings import Settings, describe

if TYPE_CHECKING:
    from collections.abc import Awaitable

log = logging.getLogger(__name__)

FAILED, MISCONFIGURED = 1, 2
"""Exit statuses besides 0."""


def run(settings: Settings) -> int:
    """Run the agent until SIGTERM or SIGINT; return the exit status of the process."""
    logs.configure(level=settings.log_level, style=settings.log_format)
    runner = asyncio.Runner()
    status = runner.run(serve(settings))
    if len(threading.enumerate()) > 1:
        # A name lookup or a driver call that hangs on its thread must not keep the process.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    runner.close()
    return status


async def serve(settings: Settings) -> int:
    """Run the agent until a signal or a failure; return the exit status."""
    stop = _on_signals()
    told = " ".join(f"{name}={value}" for name, value in describe(settings).items())
    log.info("gpu-dra %s on node %s: %s", driver.__version__, settings.node_name, told or "all defaults")
    try:
        agent = Agent(settings)
    except DriverError as exc:
        log.critical("cannot start: %s", exc)
        return MISCONFIGURED
    _on_hang_up(stop, agent)
    gc.freeze()  # what is imported by now stays; later collections need not look at it
    task = asyncio.create_task(agent.run())
    await _first(task, stop.wait())
    status = 0 if stop.is_set() else FAILED
    if status:
        _tell_why(task)
    else:
        log.info("stopping")
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await agent.stop()
    return status


def _on_signals() -> asyncio.Event:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    return stop


def _on_hang_up(stop: asyncio.Event, agent: Agent) -> None:
    """Look again at a SIGHUP, as NVIDIA's device plugin does; where a terminal has hung up, end."""
    at_terminal = sys.stdin is not None and sys.stdin.isatty()
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, stop.set if at_terminal else agent.look_again)


async def _first(task: asyncio.Task[None], other: Awaitable[object]) -> None:
    waiting = asyncio.ensure_future(other)
    await asyncio.wait((task, waiting), return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()


def _tell_why(task: asyncio.Task[None]) -> None:
    for error in _leaves(task.exception()):
        if isinstance(error, DriverError):
            log.critical("cannot go on: %s", error)
        else:
            log.critical("cannot go on: internal error", exc_info=error)


def _leaves(error: BaseException | None) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for inner in error.exceptions for leaf in _leaves(inner)]
    return [error] if error is not None else []
