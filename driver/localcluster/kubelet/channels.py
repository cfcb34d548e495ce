"""gRPC over Unix sockets, as the kubelet uses it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import grpc

from driver.errors import TemporaryError

if TYPE_CHECKING:
    from pathlib import Path

_OPTIONS = (
    ("grpc.use_local_subchannel_pool", 1),  # an earlier plugin's backoff on this path must not slow the next one
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.enable_http_proxy", 0),
)


def open_channel(socket: Path | str) -> grpc.aio.Channel:
    """Open a channel to the socket; it connects on first use and again whenever it must."""
    return grpc.aio.insecure_channel(f"unix:{socket}", options=_OPTIONS)


def stub(kind: Any, channel: grpc.aio.Channel) -> Any:
    """Return a client of a generated kind: generated code has no types that say that it is asynchronous."""
    return kind(channel)


async def serve(socket: Path, add: Any, servicer: Any) -> grpc.aio.Server:
    """Serve one service on a socket, in place of whatever was there."""
    socket.unlink(missing_ok=True)  # noqa: ASYNC240 (one system call)
    server = grpc.aio.server()
    add(servicer, server)
    server.add_insecure_port(f"unix:{socket}")
    await server.start()
    return server


class RpcError(TemporaryError):
    """A call failed; the text is Go's, `code` is gRPC's (None if this side closed the connection meanwhile)."""

    def __init__(self, text: str, code: grpc.StatusCode | None = None) -> None:
        super().__init__(text)
        self.code = code


async def call(method: Any, request: Any, timeout: float | None = None) -> Any:  # noqa: ASYNC109 (it is gRPC's)
    """Make one call.

    A channel that is closed in another task cancels its calls: here that is an error like any other, while the
    cancellation of the caller stays what it is.

    :raises RpcError:
    """
    try:
        return await method(request, timeout=timeout)
    except grpc.aio.AioRpcError as exc:
        raise RpcError(words(exc), exc.code()) from exc
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        raise RpcError("rpc error: code = Canceled desc = grpc: the client connection is closing") from None


def words(exc: grpc.aio.AioRpcError) -> str:
    """Return an RPC's failure as Go's client words it."""
    code = exc.code().name.title().replace("_", "")
    return f"rpc error: code = {code} desc = {exc.details()}"
