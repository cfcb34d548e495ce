"""`kubectl exec`, over WebSockets (KEP-4006): `v5.channel.k8s.io`, and `v4` of older clients.

A message begins with its channel: 0 input, 1 output, 2 errors, 3 how it ended (a Status), 4 the terminal's size, and
255 to close one.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from aiohttp import WSMsgType, web

from driver.localcluster.apiserver.errors import StatusError, bad_request

if TYPE_CHECKING:
    from driver.localcluster.apiserver.objects import Object

_PROTOCOLS: Final = ("v5.channel.k8s.io", "v4.channel.k8s.io")
_INPUT, _RESULT, _SIZE, _CLOSE = 0, 3, 4, 255
_SUCCESS: Final = {"metadata": {}, "status": "Success"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecRequest:
    """A command to run in a container; `pod` is the object."""

    pod: Object
    container: str
    command: tuple[str, ...]
    stdin: bool = False
    tty: bool = False


class Running(Protocol):
    """A command that runs, as `containers.execution` has it."""

    @property
    def outputs(self) -> tuple[int, ...]:
        """The numbers of its output streams."""

    async def read(self, number: int) -> bytes:
        """Return some output, nothing at the end."""

    async def write(self, data: bytes) -> None:
        """Give it input."""

    def end_input(self) -> None:
        """End its input."""

    def resize(self, columns: int, rows: int) -> None:
        """Set its terminal's size."""

    async def wait(self) -> int:
        """Return its exit status."""

    async def aclose(self) -> None:
        """End it."""


ExecSource = Callable[[ExecRequest], Awaitable[Running]]
"""Starts a command in a container. May raise `StatusError`."""


async def serve(request: web.BaseRequest, source: ExecSource | None, wanted: ExecRequest) -> web.StreamResponse:
    """Run a command for a client, until it or the client ends.

    :raises StatusError: for every refusal.
    """
    socket = web.WebSocketResponse(protocols=_PROTOCOLS, max_msg_size=1 << 20)
    if not socket.can_prepare(request):
        _check_running(wanted)  # kubectl asks so, too, to hear why WebSockets were refused
        raise bad_request(
            "exec is served over WebSockets only: use kubectl 1.30 or later, or another client that has them"
        )
    if source is None:
        raise StatusError(501, "NotImplemented", "this cluster runs no containers")
    running = await source(wanted)
    try:
        await socket.prepare(request)
        listener = asyncio.create_task(_listen(socket, running))
        try:
            await _talk(socket, running)
        finally:
            listener.cancel()
            await asyncio.gather(listener, return_exceptions=True)
        await socket.close()
    finally:
        await running.aclose()
    return socket


def _check_running(wanted: ExecRequest) -> None:
    status = wanted.pod.get("status") or {}
    found = [item for kind in ("containerStatuses", "initContainerStatuses") for item in status.get(kind) or ()]
    if not any(item.get("name") == wanted.container and (item.get("state") or {}).get("running") for item in found):
        raise bad_request(f'container not found ("{wanted.container}"): it does not run')


async def _talk(socket: web.WebSocketResponse, running: Running) -> None:
    """Send what the command writes, then how it ended."""
    try:
        await asyncio.gather(*(_pass_on(socket, running, number) for number in running.outputs))
        await socket.send_bytes(bytes([_RESULT]) + json.dumps(_result(await running.wait())).encode())
    except ConnectionError:
        return  # the client has gone


async def _pass_on(socket: web.WebSocketResponse, running: Running, number: int) -> None:
    while data := await running.read(number):
        await socket.send_bytes(bytes([number]) + data)


async def _listen(socket: web.WebSocketResponse, running: Running) -> None:
    """Pass on what the client sends; when it goes, so does the command."""
    async for message in socket:
        if message.type is WSMsgType.BINARY and message.data:
            await _heard(message.data[0], message.data[1:], running)
    await running.aclose()


async def _heard(channel: int, data: bytes, running: Running) -> None:
    if channel == _INPUT:
        await running.write(data)
    elif channel == _CLOSE and data[:1] == bytes([_INPUT]):
        running.end_input()
    elif channel == _SIZE:
        size = _decoded(data)
        columns, rows = size.get("Width"), size.get("Height")
        if (
            isinstance(columns, int)
            and isinstance(rows, int)
            and max(columns, rows) < 1 << 16
            and min(columns, rows) >= 0
        ):
            running.resize(columns, rows)


def _decoded(data: bytes) -> dict[str, Any]:
    try:
        value = json.loads(data)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _result(status: int) -> dict[str, Any]:
    if status == 0:
        return dict(_SUCCESS)
    return {
        "metadata": {},
        "status": "Failure",
        "reason": "NonZeroExitCode",
        "message": f"command terminated with non-zero exit code: exit status {status}",
        "details": {"causes": [{"reason": "ExitCode", "message": str(status)}]},
    }
