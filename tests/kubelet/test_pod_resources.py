from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio
import pytest

from driver._pb import pod_resources_v1_pb2 as pb
from driver._pb import pod_resources_v1_pb2_grpc as pb_grpc
from driver.kubelet.pod_resources import PodResources

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


def claim(name: str, driver: str) -> pb.DynamicResource:
    return pb.DynamicResource(
        claim_name=name,
        claim_namespace="ns",
        claim_resources=[pb.ClaimResource(driver_name=driver, device_name="gpu-0")],
    )


class Lister(pb_grpc.PodResourcesListerServicer):
    def __init__(self) -> None:
        self.pods: list[pb.PodResources] = []
        self.refuse = False

    async def List(self, request: pb.ListPodResourcesRequest, context: Any) -> pb.ListPodResourcesResponse:
        if self.refuse:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "rejected by rate limit")
        return pb.ListPodResourcesResponse(pod_resources=self.pods)


@pytest.fixture
async def lister(short_tmp: Path) -> AsyncIterator[Lister]:
    made = Lister()
    server = grpc.aio.server()
    pb_grpc.add_PodResourcesListerServicer_to_server(made, server)
    server.add_insecure_port(f"unix:{short_tmp / 'kubelet.sock'}")
    await server.start()
    yield made
    await server.stop(0)


async def test_claims_in_use_are_ours_only(short_tmp: Path, lister: Lister) -> None:
    lister.pods = [
        pb.PodResources(
            name="p1",
            namespace="ns",
            containers=[
                pb.ContainerResources(name="a", dynamic_resources=[claim("mine", "gpu.nvidia.com")]),
                pb.ContainerResources(
                    name="b", dynamic_resources=[claim("mine", "gpu.nvidia.com"), claim("nic", "nic.example.com")]
                ),
            ],
        ),
        pb.PodResources(name="p2", namespace="ns"),
    ]
    assert await PodResources(short_tmp / "kubelet.sock").claims_in_use() == {("ns", "mine")}


async def test_no_pods_is_an_answer(short_tmp: Path, lister: Lister) -> None:
    assert await PodResources(short_tmp / "kubelet.sock").claims_in_use() == frozenset()


async def test_a_kubelet_that_cannot_tell(short_tmp: Path, lister: Lister, caplog: pytest.LogCaptureFixture) -> None:
    assert await PodResources(short_tmp / "absent.sock").claims_in_use() is None
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(short_tmp / "dead.sock"))
    assert await PodResources(short_tmp / "dead.sock").claims_in_use() is None
    lister.refuse = True
    assert await PodResources(short_tmp / "kubelet.sock").claims_in_use() is None
    assert "rejected by rate limit" in caplog.text
