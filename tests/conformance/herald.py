"""A registration of the driver's service that is not the driver's own, as a kubelet may meet it.

A kubelet takes an endpoint once. While somebody else has registered it, the driver's own registration is refused; and
whoever registers it may do so before the driver serves it.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

import grpc.aio

from driver._pb import pluginregistration_pb2 as pb
from driver._pb import pluginregistration_pb2_grpc as pb_grpc
from tests.conformance.manifests import DRIVER

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


@contextlib.asynccontextmanager
async def announced(kubelet_root: Path, name: str, patience: float) -> AsyncIterator[None]:
    """Have the kubelet know the driver's service by a registration called `name`; it forgets it at the end."""
    herald = _Herald(kubelet_root / f"plugins/{DRIVER}/dra.sock")
    socket = kubelet_root / f"plugins_registry/{DRIVER}-{name}-reg.sock"
    server = grpc.aio.server()
    pb_grpc.add_RegistrationServicer_to_server(herald, server)  # type: ignore[no-untyped-call]
    server.add_insecure_port(f"unix:{socket}")
    await server.start()
    try:
        async with asyncio.timeout(patience):
            error = await herald.told
        assert not error, f"the kubelet did not register {herald.endpoint}: {error}"
        yield
    finally:
        await server.stop(0)
        socket.unlink(missing_ok=True)


class _Herald(pb_grpc.RegistrationServicer):
    def __init__(self, endpoint: Path) -> None:
        self.endpoint = endpoint
        self.told: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def GetInfo(self, request: pb.InfoRequest, context: Any) -> pb.PluginInfo:
        return pb.PluginInfo(
            type="DRAPlugin",
            name=DRIVER,
            endpoint=str(self.endpoint),
            supported_versions=["v1.DRAPlugin", "v1beta1.DRAPlugin"],
        )

    async def NotifyRegistrationStatus(
        self, request: pb.RegistrationStatus, context: Any
    ) -> pb.RegistrationStatusResponse:
        if not self.told.done():
            self.told.set_result("" if request.plugin_registered else request.error or "no reason given")
        return pb.RegistrationStatusResponse()
