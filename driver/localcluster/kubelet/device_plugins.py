"""Device plugins that registered: one per resource, with the devices it last listed."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

import grpc

from driver._pb import device_plugin_v1beta1_pb2 as pb
from driver._pb import device_plugin_v1beta1_pb2_grpc as pb_grpc
from driver.errors import TemporaryError
from driver.localcluster.kubelet.channels import RpcError, call, open_channel, stub, words

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from driver.localcluster.kubelet.times import Times

_log = logging.getLogger(__name__)


class DeviceError(TemporaryError):
    """A device plugin's call failed, or it has not enough devices."""


class DevicePlugin:
    """The kubelet's side of one device plugin; `changed` is called when what it offers changed."""

    def __init__(self, resource: str, socket: Path, times: Times, changed: Callable[[], None]) -> None:
        self.resource = resource
        self.devices: dict[str, bool] = {}
        """Device ids, and whether each is healthy."""
        self.topology: dict[str, tuple[int, ...]] = {}
        self.options = pb.DevicePluginOptions()
        self._times = times
        self._changed = changed
        self._channel = open_channel(socket)
        self._stub = stub(pb_grpc.DevicePluginStub, self._channel)
        self._task: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Ask for the options, then follow the list.

        :raises DeviceError: the plugin does not answer.
        """
        try:
            async with asyncio.timeout(self._times.dial):  # Python 3.11's wait_for may lose a cancellation
                await self._channel.channel_ready()
            self.options = await call(self._stub.GetDevicePluginOptions, pb.Empty())
        except TimeoutError as exc:
            raise DeviceError(f"failed to dial device plugin for {self.resource}: context deadline exceeded") from exc
        except RpcError as exc:
            raise DeviceError(f"failed to get device plugin options for {self.resource}: {exc}") from exc
        self._task = asyncio.create_task(self._follow())

    async def aclose(self) -> None:
        """Leave the plugin."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._channel.close()

    def healthy(self) -> set[str]:
        """Return the ids of the devices that may be handed out."""
        return {device for device, well in self.devices.items() if well}

    async def prefer(self, available: Sequence[str], must: Sequence[str], size: int) -> list[str]:
        """Ask which of the available devices to take; nothing if the plugin has no preference.

        :raises DeviceError:
        """
        if not self.options.get_preferred_allocation_available:
            return []
        container = pb.ContainerPreferredAllocationRequest(
            available_deviceIDs=available, must_include_deviceIDs=must, allocation_size=size
        )
        request = pb.PreferredAllocationRequest(container_requests=[container])
        answer = await self._call(self._stub.GetPreferredAllocation, request)
        return list(answer.container_responses[0].deviceIDs) if answer.container_responses else []

    async def allocate(self, devices: Sequence[str]) -> pb.ContainerAllocateResponse:
        """Allocate devices to one container.

        :raises DeviceError:
        """
        request = pb.AllocateRequest(container_requests=[pb.ContainerAllocateRequest(devices_ids=devices)])
        answer = await self._call(self._stub.Allocate, request)
        if not answer.container_responses:
            raise DeviceError(f"no containers in allocation response from the plugin for {self.resource}")
        response: pb.ContainerAllocateResponse = answer.container_responses[0]
        return response

    async def pre_start(self, devices: Sequence[str]) -> None:
        """Tell that a container with these devices starts, if the plugin wants to know.

        :raises DeviceError:
        """
        if self.options.pre_start_required:
            request = pb.PreStartContainerRequest(devices_ids=devices)
            await self._call(self._stub.PreStartContainer, request, timeout=self._times.pre_start)

    async def _follow(self) -> None:
        try:
            async for answer in self._stub.ListAndWatch(pb.Empty()):
                self.devices = {device.ID: device.health == "Healthy" for device in answer.devices}
                self.topology = {
                    device.ID: tuple(node.ID for node in device.topology.nodes)
                    for device in answer.devices
                    if device.HasField("topology")
                }
                self._changed()
            _log.info("device plugin for %s ended its list", self.resource)
        except grpc.aio.AioRpcError as exc:
            _log.info("device plugin for %s: ListAndWatch: %s", self.resource, words(exc))
        self.devices = dict.fromkeys(self.devices, False)
        self._changed()

    async def _call(self, method: Any, request: Any, *, timeout: float | None = None) -> Any:  # noqa: ASYNC109
        try:
            return await call(method, request, timeout)
        except RpcError as exc:
            raise DeviceError(f"device plugin for {self.resource}: {type(request).__name__}: {exc}") from exc
