"""Register plugins: ask who they are, check it, tell them how it went (pluginregistration v1)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Protocol

from driver._pb import pluginregistration_pb2 as pb
from driver._pb import pluginregistration_pb2_grpc as pb_grpc
from driver.errors import DriverError, TemporaryError
from driver.localcluster.kubelet.channels import RpcError, call, open_channel, stub

if TYPE_CHECKING:
    from pathlib import Path

    from driver.localcluster.kubelet.times import Times


class RegistrationError(TemporaryError):
    """A plugin could not be registered this time."""


class PluginHandler(Protocol):
    """Who takes plugins of one type."""

    async def add(self, name: str, endpoint: str, versions: list[str]) -> None:
        """Take a plugin.

        :raises DriverError: it is not acceptable; the plugin is told.
        """

    async def remove(self, name: str, endpoint: str) -> None:
        """Forget a plugin."""

    def registered(self, name: str, endpoint: str) -> None:
        """Learn that the plugin knows it is registered."""


class Registrar:
    """Registers plugins with the handler of their type (`DRAPlugin`)."""

    def __init__(self, handlers: dict[str, PluginHandler], times: Times) -> None:
        self._handlers = handlers
        self._times = times
        self._known: dict[Path, pb.PluginInfo] = {}

    async def register(self, socket: Path) -> None:
        """Register the plugin behind a socket.

        :raises RegistrationError: try again later.
        """
        channel = open_channel(socket)
        try:
            try:
                async with asyncio.timeout(self._times.dial):  # Python 3.11's wait_for may lose a cancellation
                    await channel.channel_ready()
            except TimeoutError as exc:
                raise RegistrationError(f"failed to dial socket {socket}: context deadline exceeded") from exc
            await self._register(socket, stub(pb_grpc.RegistrationStub, channel))
        except RpcError as exc:
            raise RegistrationError(f"registration at socket {socket}: {exc}") from exc
        finally:
            await channel.close()

    async def deregister(self, socket: Path) -> None:
        """Forget the plugin behind a socket that is gone."""
        info = self._known.pop(socket, None)
        if info is not None:
            await self._handlers[info.type].remove(info.name, info.endpoint)

    async def _register(self, socket: Path, client: Any) -> None:
        info = await call(client.GetInfo, pb.InfoRequest(), self._times.get_info)
        try:
            handler = self._handlers.get(info.type)
            if handler is None:
                raise RegistrationError(f"no handler registered for plugin type: {info.type} at socket {socket}")
            await handler.add(info.name, info.endpoint or str(socket), list(info.supported_versions))
        except DriverError as exc:
            await self._notify(client, error=str(exc))
            raise RegistrationError(f"plugin registration failed with err: {exc}") from exc
        info.endpoint = info.endpoint or str(socket)
        self._known[socket] = info
        try:
            await self._notify(client)
        except BaseException:
            await self.deregister(socket)
            raise
        handler.registered(info.name, info.endpoint)

    async def _notify(self, client: Any, error: str = "") -> None:
        status = pb.RegistrationStatus(plugin_registered=not error, error=error)
        await call(client.NotifyRegistrationStatus, status, self._times.notify)
