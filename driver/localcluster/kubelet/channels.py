"""gRPC over Unix sockets, as the kubelet uses it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import grpc

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


def words(exc: grpc.aio.AioRpcError) -> str:
    """Return an RPC's failure as Go's client words it."""
    code = exc.code().name.title().replace("_", "")
    return f"rpc error: code = {code} desc = {exc.details()}"
