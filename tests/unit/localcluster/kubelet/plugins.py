"""Plugins of the tests: a DRA plugin and a device plugin that record every call, as the recorded ones did."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import grpc
from google.protobuf.json_format import MessageToDict

from driver._pb import (
    device_plugin_v1beta1_pb2,
    device_plugin_v1beta1_pb2_grpc,
    dra_health_v1_pb2_grpc,
    dra_health_v1alpha1_pb2,
    dra_health_v1alpha1_pb2_grpc,
    dra_v1_pb2,
    dra_v1_pb2_grpc,
    dra_v1beta1_pb2,
    dra_v1beta1_pb2_grpc,
    pluginregistration_pb2,
    pluginregistration_pb2_grpc,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from driver.localcluster.kubelet.paths import NodePaths

DRIVER = "gpu.rec.example"


@dataclass
class Call:
    """One call that a plugin got."""

    method: str
    request: dict[str, Any]
    deadline: float | None


@dataclass
class Recorder:
    """All calls, in their order; shared by plugins that replace each other."""

    calls: list[Call] = field(default_factory=list)

    def note(self, method: str, request: Any, context: grpc.aio.ServicerContext) -> None:
        left = context.time_remaining()
        self.calls.append(
            Call(
                method, MessageToDict(request, preserving_proto_field_name=True), None if left is None else round(left)
            )
        )

    def methods(self) -> list[str]:
        return [call.method for call in self.calls]

    def of(self, method: str) -> list[dict[str, Any]]:
        return [call.request for call in self.calls if call.method == method]


class DraPlugin:
    """A DRA plugin: registration, DRA v1 and v1beta1, health. `answer(method, claim)` gives each claim's answer."""

    def __init__(
        self,
        paths: NodePaths,
        recorder: Recorder | None = None,
        *,
        driver: str = DRIVER,
        versions: tuple[str, ...] = ("v1.DRAPlugin", "v1beta1.DRAPlugin", "v1alpha1.DRAResourceHealth"),
        suffix: str = "",
        type_: str = "DRAPlugin",
    ) -> None:
        self.recorder = recorder or Recorder()
        self.driver, self.versions, self.type = driver, versions, type_
        self.registration = paths.plugins_registry / f"{driver}{suffix}-reg.sock"
        self.service = paths.plugins / driver / f"dra{suffix}.sock"
        self.answer: Callable[[str, Any], dict[str, Any]] = lambda method, claim: {"devices": [device()]}
        self.status: list[tuple[bool, str]] = []
        self.refuse_notice = False
        self.health: list[dict[str, Any]] = []
        self.hold = asyncio.Event()
        self.hold.set()
        self._changed = asyncio.Event()
        self._servers: list[grpc.aio.Server] = []

    async def start(self) -> None:
        self.service.parent.mkdir(parents=True, exist_ok=True)
        await self._serve(
            self.service,
            lambda server: (
                dra_v1_pb2_grpc.add_DRAPluginServicer_to_server(_Dra(self, dra_v1_pb2, "v1"), server),
                dra_v1beta1_pb2_grpc.add_DRAPluginServicer_to_server(_Dra(self, dra_v1beta1_pb2, "v1beta1"), server),
                dra_health_v1alpha1_pb2_grpc.add_DRAResourceHealthServicer_to_server(_Health(self), server),
                dra_health_v1_pb2_grpc.add_DRAResourceHealthServicer_to_server(_Health(self), server),
            ),
        )
        await self.start_registrar()

    async def start_registrar(self) -> None:
        add = pluginregistration_pb2_grpc.add_RegistrationServicer_to_server
        await self._serve(self.registration, lambda server: add(_Registrar(self), server))

    async def kill(self) -> None:
        """End as by SIGKILL: the sockets stay."""
        for server in self._servers:
            await server.stop(None)
        self._servers.clear()

    async def stop(self) -> None:
        """End in order: the sockets go."""
        for path in (self.registration, self.service):
            path.unlink(missing_ok=True)
        await self.kill()

    def report(self, *devices: dict[str, Any]) -> None:
        """Say something about the devices' health."""
        self.health = list(devices)
        self._changed.set()
        self._changed = asyncio.Event()

    async def _serve(self, path: Path, add: Callable[[grpc.aio.Server], Any]) -> None:
        path.unlink(missing_ok=True)
        server = grpc.aio.server()
        add(server)
        server.add_insecure_port(f"unix:{path}")
        await server.start()
        self._servers.append(server)


def device(name: str = "gpu-0", request: str = "r", **more: Any) -> dict[str, Any]:
    cdi = more.pop("cdi", [f"rec.example/gpu={name}"])
    return {"request_names": [request], "pool_name": "node1", "device_name": name, "cdi_device_ids": cdi, **more}


class _Registrar(pluginregistration_pb2_grpc.RegistrationServicer):
    def __init__(self, plugin: DraPlugin) -> None:
        self._plugin = plugin

    async def GetInfo(self, request: Any, context: Any) -> Any:
        self._plugin.recorder.note("Registration.GetInfo", request, context)
        return pluginregistration_pb2.PluginInfo(
            type=self._plugin.type,
            name=self._plugin.driver,
            endpoint=str(self._plugin.service),
            supported_versions=self._plugin.versions,
        )

    async def NotifyRegistrationStatus(self, request: Any, context: Any) -> Any:
        self._plugin.recorder.note("Registration.NotifyRegistrationStatus", request, context)
        self._plugin.status.append((request.plugin_registered, request.error))
        if self._plugin.refuse_notice:
            await context.abort(grpc.StatusCode.INTERNAL, "not now")
        return pluginregistration_pb2.RegistrationStatusResponse()


class _Dra:
    def __init__(self, plugin: DraPlugin, module: Any, version: str) -> None:
        self._plugin, self._pb, self.version = plugin, module, version

    async def NodePrepareResources(self, request: Any, context: Any) -> Any:
        self._plugin.recorder.note("NodePrepareResources", request, context)
        await self._plugin.hold.wait()
        response = self._pb.NodePrepareResourcesResponse()
        for claim in request.claims:
            answer = self._plugin.answer("prepare", claim)
            if answer is not None:
                response.claims[claim.uid].CopyFrom(self._pb.NodePrepareResourceResponse(**answer))
        return response

    async def NodeUnprepareResources(self, request: Any, context: Any) -> Any:
        self._plugin.recorder.note("NodeUnprepareResources", request, context)
        response = self._pb.NodeUnprepareResourcesResponse()
        for claim in request.claims:
            error = self._plugin.answer("unprepare", claim).get("error", "")
            response.claims[claim.uid].CopyFrom(self._pb.NodeUnprepareResourceResponse(error=error))
        return response


class _Health:
    def __init__(self, plugin: DraPlugin) -> None:
        self._plugin = plugin

    async def NodeWatchResources(self, request: Any, context: Any) -> Any:
        self._plugin.recorder.note("DRAResourceHealth.NodeWatchResources", request, context)
        while True:
            changed = self._plugin._changed
            if self._plugin.health:
                yield dra_health_v1alpha1_pb2.NodeWatchResourcesResponse(devices=self._plugin.health)
            await changed.wait()


class DevicePlugin:
    """A device plugin that records its calls; `prefer` and `respond` give its answers."""

    def __init__(self, paths: NodePaths, recorder: Recorder | None = None, *, endpoint: str = "rec-gpu.sock") -> None:
        self.recorder = recorder or Recorder()
        self.resource, self.endpoint = "rec.example/gpu", endpoint
        self.socket = paths.device_plugins / endpoint
        self.kubelet = paths.device_plugins / "kubelet.sock"
        self.devices: dict[str, str] = {}
        self.pre_start = ""
        self.prefer: Callable[[list[str], list[str], int], list[str]] = lambda have, must, size: have[:size]
        self.respond: Callable[[list[str]], dict[str, Any]] = lambda ids: {"envs": {"REC_GPUS": ",".join(ids)}}
        self._changed = asyncio.Event()
        self._server: grpc.aio.Server | None = None

    async def start(self) -> None:
        self.socket.unlink(missing_ok=True)
        self._server = grpc.aio.server()
        device_plugin_v1beta1_pb2_grpc.add_DevicePluginServicer_to_server(_Device(self), self._server)
        self._server.add_insecure_port(f"unix:{self.socket}")
        await self._server.start()

    async def register(self, *, version: str = "v1beta1") -> None:
        request = device_plugin_v1beta1_pb2.RegisterRequest(
            version=version, endpoint=self.endpoint, resource_name=self.resource
        )
        async with grpc.aio.insecure_channel(f"unix:{self.kubelet}") as channel:
            await device_plugin_v1beta1_pb2_grpc.RegistrationStub(channel).Register(request, timeout=10)

    async def kill(self) -> None:
        if self._server is not None:
            await self._server.stop(None)
            self._server = None

    def report(self, **devices: str) -> None:
        self.devices = {name.replace("_", "-"): health for name, health in devices.items()}
        self._changed.set()
        self._changed = asyncio.Event()


class _Device(device_plugin_v1beta1_pb2_grpc.DevicePluginServicer):
    def __init__(self, plugin: DevicePlugin) -> None:
        self._plugin, self._pb = plugin, device_plugin_v1beta1_pb2

    async def GetDevicePluginOptions(self, request: Any, context: Any) -> Any:
        self._plugin.recorder.note("GetDevicePluginOptions", request, context)
        return self._pb.DevicePluginOptions(pre_start_required=True, get_preferred_allocation_available=True)

    async def ListAndWatch(self, request: Any, context: Any) -> Any:
        while True:
            changed = self._plugin._changed
            topology = self._pb.TopologyInfo(nodes=[self._pb.NUMANode(ID=0)])
            devices = [
                self._pb.Device(ID=name, health=health, topology=topology)
                for name, health in self._plugin.devices.items()
            ]
            self._plugin.recorder.note("ListAndWatch: sent", request, context)
            yield self._pb.ListAndWatchResponse(devices=devices)
            await changed.wait()

    async def GetPreferredAllocation(self, request: Any, context: Any) -> Any:
        self._plugin.recorder.note("GetPreferredAllocation", request, context)
        answers = [
            self._plugin.prefer(list(item.available_deviceIDs), list(item.must_include_deviceIDs), item.allocation_size)
            for item in request.container_requests
        ]
        containers = [self._pb.ContainerPreferredAllocationResponse(deviceIDs=ids) for ids in answers]
        return self._pb.PreferredAllocationResponse(container_responses=containers)

    async def Allocate(self, request: Any, context: Any) -> Any:
        self._plugin.recorder.note("Allocate", request, context)
        answers = [self._plugin.respond(list(item.devices_ids)) for item in request.container_requests]
        containers = [self._pb.ContainerAllocateResponse(**answer) for answer in answers]
        return self._pb.AllocateResponse(container_responses=containers)

    async def PreStartContainer(self, request: Any, context: Any) -> Any:
        self._plugin.recorder.note("PreStartContainer", request, context)
        if self._plugin.pre_start:
            await context.abort(grpc.StatusCode.INTERNAL, self._plugin.pre_start)
        return self._pb.PreStartContainerResponse()
