from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import pytest

from driver._pb import pod_resources_v1_pb2 as pb
from driver.kubelet.pod_resources import PodResources
from driver.model.holder import ClaimedDevice, Container

from .pods import Lister, claim

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


@pytest.fixture
async def lister(short_tmp: Path) -> AsyncIterator[Lister]:
    made = Lister()
    async with made.serving(short_tmp / "kubelet.sock"):
        yield made


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


async def test_a_kubelet_that_keeps_silent_is_told_of_once(
    short_tmp: Path, lister: Lister, caplog: pytest.LogCaptureFixture
) -> None:
    pods = PodResources(short_tmp / "kubelet.sock")
    for refuse, times in ((True, 1), (True, 1), (False, 1), (True, 2)):
        lister.refuse = refuse
        assert (await pods.containers() is None) == refuse
        assert caplog.text.count("rejected by rate limit") == times


async def test_containers_with_our_devices(short_tmp: Path, lister: Lister) -> None:
    share = "0b6c1a6e-2f52-4a7b-8f9e-0d1c2b3a4f5e"
    shared = pb.ClaimResource(driver_name="gpu.nvidia.com", device_name="gpu-1", share_id=share)
    claims = [
        claim("mine", "gpu.nvidia.com"),
        pb.DynamicResource(claim_name="part", claim_namespace="ns", claim_resources=[shared]),
        claim("nic", "nic.example.com"),
    ]
    devices = [
        pb.ContainerDevices(resource_name="nvidia.com/gpu", device_ids=["GPU-1::0", "GPU-1::3", "MIG-2"]),
        pb.ContainerDevices(resource_name="example.com/nic", device_ids=["nic-0"]),
    ]
    lister.pods = [
        pb.PodResources(
            name="p",
            namespace="ns",
            containers=[
                pb.ContainerResources(name="a", dynamic_resources=claims),
                pb.ContainerResources(name="b", devices=devices),
                pb.ContainerResources(name="c", devices=devices[1:], dynamic_resources=claims[2:]),
            ],
        )
    ]
    found = await PodResources(short_tmp / "kubelet.sock").containers()
    mine = (ClaimedDevice("ns", "mine", "gpu-0"), ClaimedDevice("ns", "part", "gpu-1", share))
    assert found == (
        Container(namespace="ns", pod="p", name="a", claimed=mine),
        Container(namespace="ns", pod="p", name="b", plugged=("GPU-1", "MIG-2")),
    )
    lister.refuse = True
    assert await PodResources(short_tmp / "kubelet.sock").containers() is None
