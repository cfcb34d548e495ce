"""A client of the kubelet's pod resources API, which knows the claims and devices that pods on this node use."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import grpc
import grpc.aio

from driver._pb import pod_resources_v1_pb2 as pb
from driver._pb import pod_resources_v1_pb2_grpc as pb_grpc
from driver.model.holder import ClaimedDevice, Container
from driver.model.names import DRIVER

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

log = logging.getLogger(__name__)

_TIMEOUT = 5.0  # seconds
_LARGEST = 16 * 1024 * 1024  # bytes: the kubelet's own limit for this API


class PodResources:
    """Asks the kubelet at `socket`. A connection per question: they are rare."""

    def __init__(self, socket: Path) -> None:
        self._socket = socket
        self._problem = ""

    async def claims_in_use(self) -> frozenset[tuple[str, str]] | None:
        """Return (namespace, name) of the claims with our devices that pods use, or None if the kubelet can't tell.

        Kubelets before 1.34 have the feature off and list no claim at all: what is missing here is no proof alone.
        """
        answer = await self._list()
        return None if answer is None else frozenset(_claims(answer))

    async def device_holders(self) -> Mapping[str, tuple[str, ...]] | None:
        """Return which pods (`namespace/name`) hold which devices of device plugins, or None if that can't be told.

        Keys are the ids without a replica's number, whichever resource and plugin they are of.
        """
        answer = await self._list()
        if answer is None:
            return None
        found: dict[str, dict[str, None]] = {}
        for pod in answer.pod_resources:
            for device in (one for container in pod.containers for one in _plugged(container)):
                found.setdefault(device, {})[f"{pod.namespace}/{pod.name}"] = None
        return {uuid: tuple(pods) for uuid, pods in found.items()}

    async def containers(self) -> tuple[Container, ...] | None:
        """Return the containers that have GPUs, by claims with this driver or by device plugins; None if not known."""
        answer = await self._list()
        return None if answer is None else tuple(_containers(answer))

    async def _list(self) -> pb.ListPodResourcesResponse | None:
        if not self._is_there():
            return None
        options = (("grpc.max_receive_message_length", _LARGEST), ("grpc.enable_http_proxy", 0))
        try:
            async with grpc.aio.insecure_channel(f"unix:{self._socket}", options=options) as channel:
                stub = pb_grpc.PodResourcesListerStub(channel)  # type: ignore[no-untyped-call]
                answer: pb.ListPodResourcesResponse = await stub.List(pb.ListPodResourcesRequest(), timeout=_TIMEOUT)
        except grpc.aio.AioRpcError as exc:
            self._failed(f"{exc.code().name}: {exc.details()}")
            return None
        self._problem = ""
        return answer

    def _failed(self, problem: str) -> None:
        """Tell it once: the next to ask may come in a few seconds."""
        if problem != self._problem:
            log.warning("the kubelet does not say which claims are in use: %s", problem)
        self._problem = problem

    def _is_there(self) -> bool:
        try:
            return self._socket.is_socket()
        except OSError as exc:
            self._failed(f"{self._socket}: {exc.strerror}")
            return False


def _containers(answer: pb.ListPodResourcesResponse) -> Iterator[Container]:
    for pod in answer.pod_resources:
        for container in pod.containers:
            claimed = tuple(_claimed(container))
            ours = tuple(one for one in dict.fromkeys(_plugged(container)) if one.startswith(("GPU-", "MIG-")))
            if claimed or ours:
                yield Container(
                    namespace=pod.namespace, pod=pod.name, name=container.name, claimed=claimed, plugged=ours
                )


def _plugged(container: pb.ContainerResources) -> Iterator[str]:
    """Yield what device plugins gave, without replicas' numbers."""
    return (one.partition("::")[0] for devices in container.devices for one in devices.device_ids)


def _claimed(container: pb.ContainerResources) -> Iterator[ClaimedDevice]:
    for resource in container.dynamic_resources:
        for one in resource.claim_resources:
            if one.driver_name == DRIVER:
                share = one.share_id if one.HasField("share_id") else None
                yield ClaimedDevice(resource.claim_namespace, resource.claim_name, one.device_name, share or None)


def _claims(answer: pb.ListPodResourcesResponse) -> set[tuple[str, str]]:
    containers = (container for pod in answer.pod_resources for container in pod.containers)
    return {(one.namespace, one.claim) for container in containers for one in _claimed(container)}
