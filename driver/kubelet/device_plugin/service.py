"""The calls of one extended resource. Whatever the kubelet sends is checked against what is offered at that moment."""

from __future__ import annotations

import asyncio
import itertools
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

import grpc
import grpc.aio

from driver._pb import device_plugin_v1beta1_pb2 as pb
from driver._pb import device_plugin_v1beta1_pb2_grpc as pb_grpc
from driver.cdi.spec import NO_EDITS
from driver.errors import DriverError, InvalidValueError
from driver.kubelet.device_plugin.answer import container_answer
from driver.kubelet.device_plugin.registrar import OPTIONS, Listeners

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence

    from driver.cdi.spec import ContainerEdits, DeviceNode
    from driver.config.device_plugin import PluginConfig
    from driver.deviceplugin.prefer import Preference
    from driver.deviceplugin.resources import Offered, Resource
    from driver.sharing.base import ClientEdits

log = logging.getLogger(__name__)

HEALTHY, UNHEALTHY = "Healthy", "Unhealthy"
CDI_STRATEGIES = frozenset({"cdi-annotations", "cdi-cri"})


class Files(Protocol):
    """The static CDI file (`driver.cdi.static.StaticSpec`)."""

    @property
    def error(self) -> str:
        """Why the file is not current; empty if it is."""
        ...

    @property
    def common(self) -> ContainerEdits:
        """What comes once per container."""
        ...

    @property
    def devices(self) -> Mapping[str, ContainerEdits]:
        """What each device that is in the file adds, by UUID."""
        ...

    def ensure(self) -> None:
        """Write the file again if it vanished or was changed.

        :raises StorageError: it can't be written.
        """
        ...


class Observer(Protocol):
    """Who counts and is told."""

    def allocated(self, resource: str, gpu_uuids: Iterable[str]) -> None:
        """Note that devices were given to a container that the kubelet may not list yet."""
        ...

    def allocate_refused(self, resource: str, code: str) -> None:
        """Note a refusal."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """What a resource offers now."""

    resource: Resource
    config: PluginConfig
    preference: Preference
    why_not: Callable[[str], str]
    """Says why an id may not be given away, by the newest facts; nothing if it may."""
    client_edits: Callable[[str], ClientEdits | None]
    """Tells what a client of a GPU's MPS daemon needs; None if there is no daemon."""
    extras: Callable[[PluginConfig], ContainerEdits] = lambda _: NO_EDITS
    """Tells what every container gets beside GPUs."""


class ResourceService(pb_grpc.DevicePluginServicer):
    """Serves one resource. `update` sets what it offers; every open list is told."""

    def __init__(self, state: State, files: Files, observer: Observer, cdi_name: Callable[[str], str]) -> None:
        self._files = files
        self._observer = observer
        self._cdi_name = cdi_name
        self._news = asyncio.Event()
        self._closed = False
        self.listeners = Listeners()
        self._set(state)

    def add_to(self, server: grpc.aio.Server) -> None:
        """Add this service to a server."""
        pb_grpc.add_DevicePluginServicer_to_server(self, server)  # type: ignore[no-untyped-call]

    def update(self, state: State) -> None:
        """Offer something else from now on."""
        changed = state.resource != self._state.resource
        self._set(state)
        if changed:
            news, self._news = self._news, asyncio.Event()
            news.set()

    def close(self) -> None:
        """End the lists."""
        self._closed = True
        self._news.set()

    def _set(self, state: State) -> None:
        self._state = state
        self._by_id = {one.id: one for one in state.resource.devices}
        self._list: pb.ListAndWatchResponse | None = None

    # --- calls -------------------------------------------------------------------------------------------------------

    async def GetDevicePluginOptions(self, request: pb.Empty, context: Any) -> pb.DevicePluginOptions:  # noqa: N802
        """Say what we can do."""
        return OPTIONS

    async def ListAndWatch(self, request: pb.Empty, context: Any) -> AsyncIterator[pb.ListAndWatchResponse]:  # noqa: N802
        """Tell the complete list, now and at each change, until the caller goes."""
        with self.listeners:
            while not self._closed:
                news = self._news
                yield self._listed()
                await news.wait()

    async def GetPreferredAllocation(  # noqa: N802
        self, request: pb.PreferredAllocationRequest, context: Any
    ) -> pb.PreferredAllocationResponse:
        """Say which of the available devices go best together."""
        answer = pb.PreferredAllocationResponse()
        for one in request.container_requests:
            try:
                chosen = self._state.preference.prefer(
                    one.available_deviceIDs, one.must_include_deviceIDs, one.allocation_size
                )
            except InvalidValueError as exc:
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"{self._state.resource.name}: {exc}")
            answer.container_responses.add(deviceIDs=chosen)
        return answer

    async def Allocate(self, request: pb.AllocateRequest, context: Any) -> pb.AllocateResponse:  # noqa: N802
        """Give devices to containers: all of a call, or none."""
        try:
            given = [self._checked(one.devices_ids) for one in request.container_requests]
            self._check_apart(given)
            answer = pb.AllocateResponse(container_responses=[self._answer(devices) for devices in given])
        except _Refused as exc:
            await self._refuse(context, exc)
        self._observer.allocated(self._state.resource.name, {one.gpu_uuid for devices in given for one in devices})
        return answer

    async def PreStartContainer(  # noqa: N802
        self, request: pb.PreStartContainerRequest, context: Any
    ) -> pb.PreStartContainerResponse:
        """Answer; nothing is left to do. We don't ask for this call."""
        return pb.PreStartContainerResponse()

    # --- Allocate ----------------------------------------------------------------------------------------------------

    def _checked(self, ids: Sequence[str]) -> list[Offered]:
        if not ids:
            raise _Refused(grpc.StatusCode.INVALID_ARGUMENT, "no device is asked for")
        if len(ids) > len(self._by_id):
            message = f"{len(ids)} devices are asked for, but there are {len(self._by_id)}"
            raise _Refused(grpc.StatusCode.INVALID_ARGUMENT, message)
        devices = [self._one(one) for one in ids]
        twice = sorted({one for one in ids if list(ids).count(one) > 1}) if len(set(ids)) < len(ids) else []
        if twice:
            raise _Refused(grpc.StatusCode.INVALID_ARGUMENT, f"asked for twice: {', '.join(twice)}")
        if self._state.resource.at_most_one and len(devices) > 1 and any(one.replicas > 1 for one in devices):
            raise _Refused(
                grpc.StatusCode.INVALID_ARGUMENT,
                f"{len(devices)} replicas are asked for, but they would not give more than one: ask for 1 "
                "(failRequestsGreaterThanOne is set)",
            )
        return devices

    def _one(self, one: str) -> Offered:
        device = self._by_id.get(one)
        why = self._state.why_not(one)  # by the newest facts, even if the list is not that new yet
        if device is None:
            raise _Refused(grpc.StatusCode.NOT_FOUND, f"device {one} {why or 'is not one of this resource'}")
        if why:
            raise _Refused(grpc.StatusCode.FAILED_PRECONDITION, f"device {one} {why}")
        if device.unhealthy:
            raise _Refused(grpc.StatusCode.FAILED_PRECONDITION, f"device {one} is unhealthy: {device.unhealthy}")
        return device

    @staticmethod
    def _check_apart(given: Sequence[Sequence[Offered]]) -> None:
        if len(given) > 1:
            ids = [one.id for devices in given for one in devices]
            if len(set(ids)) < len(ids):
                raise _Refused(grpc.StatusCode.INVALID_ARGUMENT, "one device is asked for by two containers")

    def _answer(self, devices: Sequence[Offered]) -> pb.ContainerAllocateResponse:
        config = self._state.config
        if CDI_STRATEGIES & set(config.flags.device_list_strategy):
            self._check_files(devices)
        nodes = self._nodes(devices) if config.flags.pass_device_specs else ()
        extras = self._extras(config)
        answer = container_answer(devices, config, cdi_name=self._cdi_name, nodes=(*nodes, *extras.device_nodes))
        answer.mounts.extend(
            pb.Mount(container_path=one.container_path, host_path=one.host_path, read_only=True)
            for one in extras.mounts
        )
        if self._state.resource.sharing == "mps":
            self._add_client(answer, devices)
        return answer

    def _extras(self, config: PluginConfig) -> ContainerEdits:
        try:
            return self._state.extras(config)
        except DriverError as exc:
            raise _Refused(grpc.StatusCode.UNAVAILABLE, str(exc)) from exc

    def _add_client(self, answer: pb.ContainerAllocateResponse, devices: Sequence[Offered]) -> None:
        """Let the container reach the MPS daemon of its GPU; whole devices of the resource have none."""
        gpus = {one.uuid for one in devices if one.replicas > 1}
        if len(gpus) > 1:
            message = "replicas of several GPUs are asked for, but a container reaches one MPS daemon: ask for 1"
            raise _Refused(grpc.StatusCode.INVALID_ARGUMENT, message)
        for gpu in gpus:
            edits = self._state.client_edits(gpu)
            if edits is None:
                raise _Refused(grpc.StatusCode.UNAVAILABLE, f"GPU {gpu} has no MPS daemon yet")
            answer.envs.update(edits.env)
            answer.mounts.extend(
                pb.Mount(container_path=one.container_path, host_path=one.host_path) for one in edits.mounts
            )

    def _check_files(self, devices: Sequence[Offered]) -> None:
        try:
            self._files.ensure()
        except DriverError as exc:
            raise _Refused(grpc.StatusCode.UNAVAILABLE, str(exc)) from exc
        missing = [one.uuid for one in devices if one.uuid not in self._files.devices]
        if missing:
            why = self._files.error or "its device nodes are not there yet"
            raise _Refused(grpc.StatusCode.UNAVAILABLE, f"device {missing[0]} has no CDI entry: {why}")

    def _nodes(self, devices: Sequence[Offered]) -> tuple[DeviceNode, ...]:
        edits = [self._files.devices[one.uuid] for one in devices if one.uuid in self._files.devices]
        nodes = itertools.chain(self._files.common.device_nodes, *(one.device_nodes for one in edits))
        return tuple({node.path: node for node in nodes}.values())

    async def _refuse(self, context: Any, refused: _Refused) -> NoReturn:
        message = f"{self._state.resource.name}: {refused}"
        log.warning("refused an allocation: %s", message)
        self._observer.allocate_refused(self._state.resource.name, refused.code.name)
        await context.abort(refused.code, message)
        raise AssertionError(message)

    # --- the list ----------------------------------------------------------------------------------------------------

    def _listed(self) -> pb.ListAndWatchResponse:
        if self._list is None:
            self._list = pb.ListAndWatchResponse(devices=[_listed(one) for one in self._state.resource.devices])
        return self._list


class _Refused(Exception):  # noqa: N818 (an outcome of a call, not an error of ours)
    def __init__(self, code: grpc.StatusCode, message: str) -> None:
        super().__init__(message)
        self.code = code


def _listed(one: Offered) -> pb.Device:
    health = UNHEALTHY if one.unhealthy else HEALTHY
    if one.numa_node is None:
        return pb.Device(ID=one.id, health=health)
    topology = pb.TopologyInfo(nodes=[pb.NUMANode(ID=one.numa_node)])
    return pb.Device(ID=one.id, health=health, topology=topology)
