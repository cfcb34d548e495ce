"""The kubelet's device manager: registration of device plugins, extended resources, devices for containers."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from typing import TYPE_CHECKING, Any

import grpc

from driver._pb import device_plugin_v1beta1_pb2 as pb
from driver._pb import device_plugin_v1beta1_pb2_grpc as pb_grpc
from driver.localcluster.apiserver.objects import metadata, name_of
from driver.localcluster.kubelet.channels import serve
from driver.localcluster.kubelet.device_grants import Grant, Granted, Grants, merged
from driver.localcluster.kubelet.device_plugins import DeviceError, DevicePlugin
from driver.localcluster.kubelet.pod_claims import by_claim, containers_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from driver.localcluster.apiserver.objects import Object
    from driver.localcluster.kubelet.times import Times

_log = logging.getLogger(__name__)
_VERSION = "v1beta1"
_RESOURCE = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")


class DeviceManager(pb_grpc.RegistrationServicer):
    """Serves Registration on `kubelet.sock` and hands out devices.

    A starting manager deletes every socket in its directory, as the kubelet does: plugins have to notice.
    """

    def __init__(self, directory: Path, grants: Grants, times: Times, changed: Callable[[], None]) -> None:
        self._directory = directory
        self._grants = grants
        self._times = times
        self._changed = changed
        self._plugins: dict[str, DevicePlugin] = {}
        self._server: grpc.aio.Server | None = None
        self._admission = asyncio.Lock()

    async def start(self) -> None:
        """Delete old sockets, then serve."""
        self._grants.load()
        for path in self._directory.iterdir():
            if path.is_socket():
                path.unlink()
        socket = self._directory / "kubelet.sock"
        self._server = await serve(socket, pb_grpc.add_RegistrationServicer_to_server, self)

    async def aclose(self) -> None:
        """Stop serving and leave the plugins."""
        if self._server is not None:
            await self._server.stop(None)
        for plugin in self._plugins.values():
            await plugin.aclose()
        self._plugins.clear()

    def resources(self) -> dict[str, tuple[int, int]]:
        """Return (capacity, allocatable) by resource; an unhealthy device lowers allocatable only."""
        counts = {name: (len(plugin.devices), len(plugin.healthy())) for name, plugin in self._plugins.items()}
        return {grant.resource: (0, 0) for grant in self._grants} | counts

    def granted(self, pod_uid: str, container: str) -> Granted:
        """Return what the devices of a container put into it."""
        return merged(self._grants.of(pod_uid, container))

    def grants(self, pod_uid: str, container: str) -> list[Grant]:
        """Return the devices that a container holds."""
        return self._grants.of(pod_uid, container)

    def all_grants(self) -> list[Grant]:
        """Return all grants of the node."""
        return list(self._grants)

    def topology(self, resource: str, device: str) -> tuple[int, ...]:
        """Return the NUMA nodes of a device."""
        plugin = self._plugins.get(resource)
        return plugin.topology.get(device, ()) if plugin else ()

    def all_devices(self) -> dict[str, list[str]]:
        """Return the healthy devices by resource."""
        return {name: sorted(plugin.healthy()) for name, plugin in self._plugins.items()}

    async def allocate(self, pod: Object) -> None:
        """Give the pod's containers the devices they ask for; once, however often it is called.

        Devices of init containers are used again by the containers that follow.

        :raises DeviceError: there are not enough, or a plugin refused: the pod can't be admitted.
        """
        async with self._admission:
            init = {container["name"] for container in pod["spec"].get("initContainers") or ()}
            reusable: dict[str, set[str]] = {}
            claimed = by_claim(pod)
            for container in containers_of(pod):
                for resource, count in _wanted(container).items():
                    if (container["name"], resource) in claimed:
                        continue
                    if resource in self._plugins or self._grants.held(resource):
                        free = reusable.setdefault(resource, set())
                        devices = await self._allocate(pod, container["name"], resource, count, free)
                        if container["name"] in init:
                            free.update(devices)
                        else:
                            free.difference_update(devices)

    def release(self, pod_uid: str) -> None:
        """Free what a pod held."""
        self._grants.release(pod_uid)

    async def pre_start(self, pod_uid: str, container: str) -> None:
        """Tell the plugins that want to know that a container is about to start.

        :raises DeviceError: a plugin refused.
        """
        for grant in self._grants.of(pod_uid, container):
            plugin = self._plugins.get(grant.resource)
            if plugin is not None:
                await plugin.pre_start(grant.devices)

    async def Register(  # noqa: N802 (the name is gRPC's)
        self, request: pb.RegisterRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.Empty:
        """Take a device plugin: check it, dial back, ask for its options."""
        refusal = _refusal(request)
        if refusal:
            await context.abort(grpc.StatusCode.UNKNOWN, refusal)
        plugin = DevicePlugin(request.resource_name, self._directory / request.endpoint, self._times, self._changed)
        try:
            await plugin.open()
        except DeviceError as exc:
            await plugin.aclose()
            await context.abort(grpc.StatusCode.UNKNOWN, str(exc))
        old = self._plugins.get(request.resource_name)
        self._plugins[request.resource_name] = plugin
        if old is not None:
            plugin.devices = plugin.devices or dict.fromkeys(old.devices, False)
            await old.aclose()
        return pb.Empty()

    async def _allocate(
        self, pod: Object, container: str, resource: str, count: int, reusable: set[str]
    ) -> tuple[str, ...]:
        uid = metadata(pod)["uid"]
        for grant in self._grants.of(uid, container):
            if grant.resource == resource:
                return grant.devices
        plugin = self._plugins.get(resource)
        if plugin is None:
            raise DeviceError(f"no registered device plugin for {resource}")
        must = sorted(reusable & plugin.healthy())[:count]
        available = plugin.healthy() - self._grants.held(resource)
        if count - len(must) > len(available):
            raise DeviceError(
                f"requested number of devices unavailable for {resource}. "
                f"Requested: {count - len(must)}, Available: {len(available)}"
            )
        devices = await self._choose(plugin, available, must, count)
        response = await plugin.allocate(devices)
        grant = Grant(pod=uid, container=container, resource=resource, devices=devices, response=response)
        self._grants.add(grant)
        _log.info("pod %s, container %s: %s of %s", name_of(pod), container, ", ".join(devices), resource)
        return devices

    async def _choose(self, plugin: DevicePlugin, available: set[str], must: list[str], count: int) -> tuple[str, ...]:
        """Take the plugin's preference as far as it is possible, and fill up with the first others."""
        if count == len(must):
            return tuple(must)
        preferred = await plugin.prefer(sorted(available | set(must)), must, count)
        order = dict.fromkeys([*must, *(device for device in preferred if device in available), *sorted(available)])
        return tuple(order)[:count]


def _wanted(container: dict[str, Any]) -> dict[str, int]:
    """Return how many of each extended resource a container asks for."""
    limits = container.get("resources", {}).get("limits") or {}
    wanted: dict[str, int] = {}
    for name, quantity in limits.items():
        if "/" in name:
            with contextlib.suppress(ValueError):
                wanted[name] = int(quantity)
    return {name: count for name, count in wanted.items() if count > 0}


def _refusal(request: pb.RegisterRequest) -> str:
    if request.version != _VERSION:
        return (
            f"requested API version {request.version!r} is not supported by kubelet. Supported version is {_VERSION!r}"
        )
    domain = request.resource_name.partition("/")[0]
    if not _RESOURCE.fullmatch(request.resource_name) or domain == "kubernetes.io" or domain.endswith(".kubernetes.io"):
        return f"the ResourceName {request.resource_name!r} is invalid"
    if "/" in request.endpoint or not request.endpoint:
        return f"the endpoint {request.endpoint!r} is invalid: it names a socket in the device-plugins directory"
    return ""
