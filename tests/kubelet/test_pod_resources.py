from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import pytest

from driver._pb import pod_resources_v1_pb2 as pb
from driver.kubelet.pod_resources import PodResources

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
