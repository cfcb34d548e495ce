"""The kubelet's pod resources API, with the answers that a test sets."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio

from driver._pb import pod_resources_v1_pb2 as pb
from driver._pb import pod_resources_v1_pb2_grpc as pb_grpc

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


def claim(name: str, driver: str, namespace: str = "ns") -> pb.DynamicResource:
    return pb.DynamicResource(
        claim_name=name,
        claim_namespace=namespace,
        claim_resources=[pb.ClaimResource(driver_name=driver, device_name="gpu-0")],
    )


class Lister(pb_grpc.PodResourcesListerServicer):
    def __init__(self) -> None:
        self.pods: list[pb.PodResources] = []
        self.refuse = False
        self.asked = 0

    def use(self, name: str, namespace: str) -> None:
        """Let a pod use a claim of ours."""
        container = pb.ContainerResources(name="c", dynamic_resources=[claim(name, "gpu.nvidia.com", namespace)])
        self.pods.append(pb.PodResources(name="p", namespace=namespace, containers=[container]))

    @contextlib.asynccontextmanager
    async def serving(self, path: Path) -> AsyncIterator[None]:
        path.parent.mkdir(parents=True, exist_ok=True)
        server = grpc.aio.server()
        pb_grpc.add_PodResourcesListerServicer_to_server(self, server)
        server.add_insecure_port(f"unix:{path}")
        await server.start()
        yield
        await server.stop(0)

    async def List(self, request: pb.ListPodResourcesRequest, context: Any) -> pb.ListPodResourcesResponse:
        self.asked += 1
        if self.refuse:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "rejected by rate limit")
        return pb.ListPodResourcesResponse(pod_resources=self.pods)
