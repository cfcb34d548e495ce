"""The pod-resources API: which container holds which devices (podresources v1)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import grpc

from driver._pb import pod_resources_v1_pb2 as pb
from driver._pb import pod_resources_v1_pb2_grpc as pb_grpc
from driver.localcluster.apiserver.objects import metadata, name_of, namespace_of
from driver.localcluster.kubelet.channels import serve
from driver.localcluster.kubelet.pod_claims import claim_names, container_requests, containers_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from driver.localcluster.apiserver.objects import Object
    from driver.localcluster.kubelet.claims import ClaimManager
    from driver.localcluster.kubelet.device_manager import DeviceManager


class PodResources(pb_grpc.PodResourcesListerServicer):
    """Serves `pod-resources/kubelet.sock`. `pods()` returns the pods that are active on the node."""

    def __init__(
        self, directory: Path, claims: ClaimManager, devices: DeviceManager, pods: Callable[[], Iterable[Object]]
    ) -> None:
        self._socket = directory / "kubelet.sock"
        self._claims = claims
        self._devices = devices
        self._pods = pods
        self._server: grpc.aio.Server | None = None

    async def start(self) -> None:
        """Serve."""
        self._server = await serve(self._socket, pb_grpc.add_PodResourcesListerServicer_to_server, self)

    async def aclose(self) -> None:
        """Stop serving."""
        if self._server is not None:
            await self._server.stop(None)

    async def List(  # noqa: N802 (the name is gRPC's)
        self, request: pb.ListPodResourcesRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.ListPodResourcesResponse:
        """Return all active pods."""
        return pb.ListPodResourcesResponse(pod_resources=[self._pod(pod) for pod in self._pods()])

    async def Get(  # noqa: N802 (the name is gRPC's)
        self, request: pb.GetPodResourcesRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.GetPodResourcesResponse:
        """Return one active pod."""
        wanted = (request.pod_namespace, request.pod_name)
        for pod in self._pods():
            if (namespace_of(pod), name_of(pod)) == wanted:
                return pb.GetPodResourcesResponse(pod_resources=self._pod(pod))
        text = f"pod {request.pod_name} in namespace {request.pod_namespace} not found"
        await context.abort(grpc.StatusCode.UNKNOWN, text)
        raise AssertionError(text)

    async def GetAllocatableResources(  # noqa: N802 (the name is gRPC's)
        self, request: pb.AllocatableResourcesRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.AllocatableResourcesResponse:
        """Return all devices that may be handed out."""
        devices = [
            self._container_devices(resource, [device])
            for resource, ids in self._devices.all_devices().items()
            for device in ids
        ]
        return pb.AllocatableResourcesResponse(devices=devices)

    def _pod(self, pod: Object) -> pb.PodResources:
        containers = [self._container(pod, container) for container in _listed(pod)]
        return pb.PodResources(name=name_of(pod), namespace=namespace_of(pod), containers=containers)

    def _container(self, pod: Object, container: dict[str, Any]) -> pb.ContainerResources:
        grants = self._devices.grants(metadata(pod)["uid"], container["name"])
        devices = [self._container_devices(grant.resource, grant.devices) for grant in grants]
        names = dict.fromkeys(name for name, _ in container_requests(pod, container))
        return pb.ContainerResources(
            name=container["name"],
            devices=devices,
            dynamic_resources=[item for name in names for item in self._claim(pod, container, name)],
        )

    def _container_devices(self, resource: str, ids: Iterable[str]) -> pb.ContainerDevices:
        ids = list(ids)
        nodes = sorted({node for device in ids for node in self._devices.topology(resource, device)})
        topology = pb.PodTopologyInfo(nodes=[pb.PodNUMANode(ID=node) for node in nodes]) if nodes else None
        return pb.ContainerDevices(resource_name=resource, device_ids=ids, topology=topology)

    def _claim(self, pod: Object, container: dict[str, Any], name: str) -> list[pb.DynamicResource]:
        claim = self._claims.cache.get(namespace_of(pod), name)
        if claim is None or name not in claim_names(pod).values():
            return []
        wanted = [request for claim_name, request in container_requests(pod, container) if claim_name == name]
        resources = [
            pb.ClaimResource(
                cdi_devices=[pb.CDIDeviceName(name=cdi) for cdi in device.cdi],
                driver_name=driver,
                pool_name=device.pool,
                device_name=device.name,
                share_id=device.share,
            )
            for driver, devices in claim.devices.items()
            for device in devices
            if any(device.serves(request) for request in wanted)
        ]
        return [pb.DynamicResource(claim_name=name, claim_namespace=claim.namespace, claim_resources=resources)]


def _listed(pod: Object) -> list[dict[str, Any]]:
    """Return the containers that the API lists: init containers only if they stay (sidecars)."""
    passing = {
        item["name"] for item in pod["spec"].get("initContainers") or () if item.get("restartPolicy") != "Always"
    }
    return [container for container in containers_of(pod) if container["name"] not in passing]
