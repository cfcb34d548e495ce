"""The DRA plugins that are registered on a node: which one is called, and what happens when they go away."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import grpc

from driver._pb import dra_v1_pb2, dra_v1_pb2_grpc, dra_v1beta1_pb2, dra_v1beta1_pb2_grpc
from driver.errors import PermanentError, TemporaryError
from driver.localcluster.kubelet.channels import RpcError, call, open_channel, stub

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from driver.localcluster.kubelet.health import HealthBoard
    from driver.localcluster.kubelet.times import Times

_SERVICES: dict[str, tuple[Any, Any]] = {
    "v1.DRAPlugin": (dra_v1_pb2, dra_v1_pb2_grpc.DRAPluginStub),
    "v1beta1.DRAPlugin": (dra_v1beta1_pb2, dra_v1beta1_pb2_grpc.DRAPluginStub),
}


class PluginError(TemporaryError):
    """A DRA plugin is not there, or its call failed; the kubelet comes back."""


class UnsupportedPluginError(PermanentError):
    """A plugin that this kubelet can't work with."""


class DraPlugin:
    """One registered instance of a driver; its messages are v1's or v1beta1's, which differ in nothing used here."""

    def __init__(self, driver: str, endpoint: str, service: str, times: Times) -> None:
        self.driver, self.endpoint, self.service = driver, endpoint, service
        self.connected = False
        self.channel = open_channel(endpoint)
        self._pb, kind = _SERVICES[service]
        self._stub = stub(kind, self.channel)
        self._times = times

    async def prepare(self, claims: Sequence[tuple[str, str, str]]) -> dict[str, Any]:
        """Prepare claims given as (namespace, uid, name); return the answers by UID.

        :raises PluginError: the call as a whole failed.
        """
        request = self._pb.NodePrepareResourcesRequest(claims=self._claims(claims))
        return dict((await self._call(self._stub.NodePrepareResources, request)).claims)

    async def unprepare(self, claims: Sequence[tuple[str, str, str]]) -> dict[str, Any]:
        """Unprepare claims given as (namespace, uid, name); return the answers by UID.

        :raises PluginError: the call as a whole failed.
        """
        request = self._pb.NodeUnprepareResourcesRequest(claims=self._claims(claims))
        return dict((await self._call(self._stub.NodeUnprepareResources, request)).claims)

    def _claims(self, claims: Sequence[tuple[str, str, str]]) -> list[Any]:
        return [self._pb.Claim(namespace=namespace, uid=uid, name=name) for namespace, uid, name in claims]

    async def _call(self, method: Any, request: Any) -> Any:
        try:
            return await call(method, request, self._times.prepare)
        except RpcError as exc:
            raise PluginError(str(exc)) from exc


class DraPlugins:
    """All registered DRA plugins. `on_gone` is called when a driver has had no connected plugin for a while."""

    def __init__(self, times: Times, health: HealthBoard, on_gone: Callable[[str], None]) -> None:
        self._times = times
        self._health = health
        self._on_gone = on_gone
        self._plugins: dict[str, list[DraPlugin]] = {}
        self._watches: dict[DraPlugin, asyncio.Task[None]] = {}
        self._gone: dict[str, asyncio.TimerHandle] = {}

    def get(self, driver: str) -> DraPlugin:
        """Return the newest connected plugin of a driver, else the newest.

        :raises PluginError: none is registered.
        """
        plugins = self._plugins.get(driver)
        if not plugins:
            raise PluginError(f"DRA driver {driver} is not registered")
        return next((plugin for plugin in reversed(plugins) if plugin.connected), plugins[-1])

    async def add(self, name: str, endpoint: str, versions: list[str]) -> None:
        """Take a plugin and use the first of its service versions that is known here.

        :raises UnsupportedPluginError: none is.
        """
        if not versions:
            raise UnsupportedPluginError("empty list of supported gRPC services (aka supported versions)")
        service = next((version for version in versions if version in _SERVICES), None)
        if service is None:
            raise UnsupportedPluginError(
                f"none of the plugin's services {versions} is supported by this kubelet: {', '.join(_SERVICES)}"
            )
        if any(plugin.endpoint == endpoint for plugin in self._plugins.get(name, ())):
            raise UnsupportedPluginError(f"endpoint {endpoint} already registered for DRA driver {name}")
        plugin = DraPlugin(name, endpoint, service, self._times)
        self._plugins.setdefault(name, []).append(plugin)
        self._watches[plugin] = asyncio.create_task(self._watch_connection(plugin))
        self._health.offer(name, endpoint, versions)

    def registered(self, name: str, endpoint: str) -> None:
        """Open the plugin's health stream, now that it knows it is registered."""
        plugin = next(plugin for plugin in self._plugins[name] if plugin.endpoint == endpoint)
        self._health.open(name, endpoint, plugin.channel)

    async def remove(self, name: str, endpoint: str) -> None:
        """Forget a plugin; the driver's slices go some time after its last one."""
        plugins = self._plugins.get(name, [])
        for plugin in [plugin for plugin in plugins if plugin.endpoint == endpoint]:
            plugins.remove(plugin)
            plugin.connected = False
            await self._close(plugin)
        if not plugins:
            self._plugins.pop(name, None)
        self._judge(name)

    async def aclose(self) -> None:
        """Forget all plugins, as the end of the kubelet's process does."""
        for timer in self._gone.values():
            timer.cancel()
        self._gone.clear()
        plugins = [plugin for of_driver in self._plugins.values() for plugin in of_driver]
        self._plugins.clear()
        for plugin in plugins:
            await self._close(plugin)

    async def _close(self, plugin: DraPlugin) -> None:
        task = self._watches.pop(plugin)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await self._health.close(plugin.driver, plugin.endpoint)
        await plugin.channel.close()

    async def _watch_connection(self, plugin: DraPlugin) -> None:
        while True:
            state = plugin.channel.get_state(try_to_connect=True)
            plugin.connected = state is grpc.ChannelConnectivity.READY
            self._judge(plugin.driver)
            await plugin.channel.wait_for_state_change(state)

    def _judge(self, driver: str) -> None:
        """Start or stop the clock after which the driver's slices are deleted."""
        if any(plugin.connected for plugin in self._plugins.get(driver, ())):
            timer = self._gone.pop(driver, None)
            if timer is not None:
                timer.cancel()
        elif driver not in self._gone:
            loop = asyncio.get_running_loop()
            self._gone[driver] = loop.call_later(self._times.wipe_after, self._on_gone, driver)
