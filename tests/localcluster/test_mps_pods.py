"""MPS daemons as pods, whole: a pod's claim, the agent, the daemon's pod beside it; deaths, restarts, the end."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from driver.sharing.pod_manifest import DAEMON_LABEL
from tests.fakes.install import FakeDriver
from tests.localcluster.world import World
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

NAMESPACE = "gpu-dra"
MPS = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": "GpuConfig", "sharing": {"strategy": "MPS"}}
SHOW = "env | grep CUDA_MPS; ls /tmp/nvidia-mps; sleep 600"


class Sharing(World):
    """A node whose agent runs MPS daemons as pods."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.driver = FakeDriver(root / "driver")
        self.shm = Path(f"/dev/shm/gpu-dra-test-whole-{os.getpid()}")
        self.flags = (
            *(
                "--state-dir",
                str(root / "s"),
                "--mps",
                "pod",
                "--mps-image",
                "gpu-dra",
                "--driver-root",
                str(self.driver.root),
            ),
            *("--mps-control", str(self.driver.bin / "nvidia-cuda-mps-control"), "--mps-shm-dir", str(self.shm)),
        )

    def mps_pod(self, name: str) -> None:
        """Create a pod whose claim wants MPS."""
        request = {"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com"}}
        config = [{"opaque": {"driver": "gpu.nvidia.com", "parameters": MPS}}]
        claim = {"metadata": {"name": name}, "spec": {"devices": {"requests": [request], "config": config}}}
        self.store.create("resourceclaims", claim, "default")
        uses = {"resources": {"claims": [{"name": "gpu"}]}}
        container = {"name": "c", "image": "busybox", "command": ["sh", "-c", SHOW], **uses}
        body = {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 0,
            "containers": [container],
            "resourceClaims": [{"name": "gpu", "resourceClaimName": name}],
        }
        self.store.create("pods", {"metadata": {"name": name}, "spec": body}, "default")

    def daemons(self) -> list[dict[str, Any]]:
        """The pods of daemons."""
        return [pod for pod in self.store.list("pods", NAMESPACE) if DAEMON_LABEL in pod["metadata"].get("labels", {})]

    def left(self) -> list[str]:
        """The directories of daemons on the node."""
        return [str(path) for root in (self.root / "s/mps", self.shm) if root.exists() for path in root.iterdir()]

    def kill_daemon(self) -> None:
        """Kill the daemon's process."""
        (pod,) = self.daemons()
        (container,) = self.cluster.node("node-a").kubelet.runtime.of_pod(pod["metadata"]["uid"])
        os.kill(container.pid, signal.SIGKILL)


@pytest.fixture
async def world(short_tmp: Path) -> AsyncIterator[Sharing]:
    made = Sharing(short_tmp)
    async with made.cluster:
        selector = {"cel": {"expression": "device.driver == 'gpu.nvidia.com'"}}
        made.store.create("deviceclasses", {"metadata": {"name": "gpu.nvidia.com"}, "spec": {"selectors": [selector]}})
        made.store.create("namespaces", {"metadata": {"name": NAMESPACE}})
        yield made
    shutil.rmtree(made.shm, ignore_errors=True)


async def test_a_pod_and_its_daemons_pod_come_and_go_together(world: Sharing) -> None:
    await world.require_mounts()
    async with world.agent(*world.flags):
        world.mps_pod("train")
        await until(lambda: world.phase("train") == "Running" and "control" in world.log("train"))
        assert "CUDA_MPS_PIPE_DIRECTORY=/tmp/nvidia-mps" in world.log("train")
        (daemon,) = world.daemons()
        claim = world.store.get("resourceclaims", "train", "default")
        assert daemon["metadata"]["labels"][DAEMON_LABEL] == claim["metadata"]["uid"]
        world.store.delete("pods", "train", "default")
        await until(lambda: world.phase("train") == "gone" and not world.daemons())
        await until(lambda: world.left() == [])


async def test_the_daemon_outlives_the_agent_and_is_found_again(world: Sharing) -> None:
    async with world.agent(*world.flags):
        world.mps_pod("train")
        await until(lambda: world.phase("train") == "Running")
        (before,) = world.daemons()
    async with world.agent(*world.flags):
        world.store.delete("pods", "train", "default")
        await until(lambda: world.phase("train") == "gone" and not world.daemons())
        await until(lambda: world.left() == [])
    assert before["metadata"]["uid"]


async def test_a_daemon_that_dies_makes_its_gpu_unhealthy_until_the_claim_is_released(world: Sharing) -> None:
    async with world.agent(*world.flags, gpus="h100"):
        world.mps_pod("train")
        await until(lambda: world.phase("train") == "Running")
        world.kill_daemon()
        await until(lambda: "MpsDaemonDied" in world.events())
        await until(lambda: _taints(world))
        world.store.delete("pods", "train", "default")
        await until(lambda: world.phase("train") == "gone" and not _taints(world))
        await until(lambda: world.left() == [])


def _taints(world: Sharing) -> list[Any]:
    devices = [one for item in world.store.list("resourceslices") for one in item["spec"].get("devices") or ()]
    return [taint for device in devices for taint in device.get("taints") or ()]
