"""MPS control daemons as pods, on the embedded cluster: its API server, its kubelet, a fake control program."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from driver.errors import DeviceNotReadyError, GpuToolError, SettingNotSupportedError
from driver.kube.client import KubeClient
from driver.localcluster.cluster import LocalCluster
from driver.sharing.base import MpsSpec
from driver.sharing.mps_pod import MpsPods, PodOptions
from driver.sharing.pod_manifest import Command, Image, manifest, own_image, pod_name, trouble
from driver.sharing.pods import Pods
from tests.unit.sharing.conftest import GPU, OTHER, keeping
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.fakes.install import FakeDriver

NODE, NAMESPACE = "node-a", "gpu-dra"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
UID = "0a5b2c3d-1111-4222-8333-444455556666"
OTHER_UID = "1a5b2c3d-1111-4222-8333-444455556666"
SPEC = MpsSpec(devices=(GPU, OTHER), active_thread_percentage=25, memory_limits={GPU: 512 << 20})
SHM = Path(f"/dev/shm/gpu-dra-test-pods-{os.getpid()}")


class World:
    """A node, and agents on it, one after another or at once."""

    def __init__(self, root: Path, driver: FakeDriver, client: KubeClient) -> None:
        self.root, self.driver, self.client = root, driver, client
        self.deaths: list[tuple[str, str]] = []
        self.agents: list[MpsPods] = []

    def agent(self, **options: Any) -> MpsPods:
        wanted: dict[str, Any] = {
            "root": self.root / "mps",
            "shm_root": SHM,
            "node": NODE,
            "driver_root": self.driver.root,
            "host_driver_root": self.driver.root,
            "image": "gpu-dra:test",
            "ready_timeout": 20.0,
        }
        pods = Pods(self.client, NAMESPACE, NODE)
        agent = MpsPods(self.driver.tools(), pods, self.client, PodOptions(**{**wanted, **options}))
        agent.on_death = lambda name, message: self.deaths.append((name, message))
        self.agents.append(agent)
        return agent

    async def pods(self) -> list[dict[str, Any]]:
        return list((await self.client.list(PODS))["items"])

    async def names(self) -> list[str]:
        return [pod["metadata"]["name"] for pod in await self.pods()]

    def log(self) -> list[str]:
        """What the daemon wrote to its log."""
        return (self.root / "mps" / UID / "log" / "control.log").read_text().splitlines()

    def leftovers(self) -> list[str]:
        return [str(path) for root in (self.root / "mps", SHM) if root.exists() for path in root.iterdir()]


@pytest.fixture
async def world(short_tmp: Path, driver: FakeDriver) -> AsyncIterator[World]:
    cluster = LocalCluster(short_tmp / "c", nodes=(NODE,), time_scale=0.2)
    async with cluster, KubeClient.from_kubeconfig(cluster.kubeconfig) as client:
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
        await client.create("/api/v1/namespaces", namespace)
        world = World(short_tmp, driver, client)
        yield world
        for agent in world.agents:
            await agent.aclose()
    shutil.rmtree(SHM, ignore_errors=True)


async def test_a_daemon_is_a_pod_on_the_node_that_has_its_limits_before_start_returns(world: World) -> None:
    agent = world.agent()
    await agent.start(UID, SPEC)
    (pod,) = await world.pods()
    assert pod["spec"]["nodeName"] == NODE
    assert pod["metadata"]["ownerReferences"][0]["kind"] == "Node"
    assert pod["spec"]["containers"][0]["env"][-1] == {"name": "CUDA_VISIBLE_DEVICES", "value": f"{GPU},{OTHER}"}
    assert world.log()[-3:] == [
        "Cmd:set_default_active_thread_percentage 25",
        f"Cmd:set_default_device_pinned_mem_limit {GPU} 512M",
        "Cmd:get_default_active_thread_percentage",
    ]
    assert agent.running() == {UID}
    await agent.stop(UID)
    assert await world.names() == []
    assert world.leftovers() == []
    assert world.deaths == []


async def test_its_containers_dev_shm_is_the_one_that_clients_get(world: World) -> None:
    agent = world.agent()
    await agent.start(UID, SPEC)
    _, shm = agent.edits(UID).mounts
    volumes = {volume["name"]: volume["hostPath"]["path"] for volume in (await world.pods())[0]["spec"]["volumes"]}
    assert volumes["shm"] == shm.host_path
    assert Path(shm.host_path).is_dir()


async def test_starting_again_changes_nothing(world: World) -> None:
    agent = world.agent()
    await asyncio.gather(*(agent.start(UID, SPEC) for _ in range(3)))
    (pod,) = await world.pods()
    await agent.start(UID, SPEC)
    assert [one["metadata"]["uid"] for one in await world.pods()] == [pod["metadata"]["uid"]]


async def test_other_limits_replace_the_pod_but_not_its_directories(world: World) -> None:
    agent = world.agent()
    await agent.start(UID, SPEC)
    before = (await world.pods())[0]["metadata"]["uid"], os.stat(agent.edits(UID).mounts[0].host_path).st_ino
    await agent.start(UID, replace(SPEC, active_thread_percentage=50))
    after = (await world.pods())[0]["metadata"]["uid"], os.stat(agent.edits(UID).mounts[0].host_path).st_ino
    assert after[0] != before[0]
    assert after[1] == before[1]
    assert "Cmd:set_default_active_thread_percentage 50" in world.log()
    assert world.deaths == []


async def test_a_pod_is_found_again_by_a_new_agent_and_others_are_swept(world: World) -> None:
    first = world.agent()
    await first.start(UID, SPEC)
    await first.start(OTHER_UID, SPEC)
    await first.aclose()
    second = world.agent()
    assert not await second.adopt(UID, replace(SPEC, multi_user=True))
    assert await second.adopt(UID, SPEC)
    assert second.running() == {UID}
    assert await second.sweep(keeping(UID)) == {OTHER_UID}
    assert await world.names() == [pod_name(UID)]
    await second.stop(UID)
    assert world.leftovers() == []


async def test_what_never_was_can_be_stopped_and_is_not_adopted(world: World) -> None:
    agent = world.agent()
    await agent.stop(UID)
    assert not await agent.adopt(UID, SPEC)
    assert await agent.sweep(keeping()) == frozenset()


async def test_a_daemon_that_dies_is_told_once(world: World) -> None:
    agent = world.agent()
    await agent.start(UID, SPEC)
    os.kill(_pid(world.root / "mps" / UID), signal.SIGKILL)
    await until(lambda: world.deaths)
    ((name, message),) = world.deaths
    assert name == UID
    assert "Error with status 137" in message
    assert agent.running() == frozenset()
    await agent.stop(UID)
    assert await world.names() == []
    assert len(world.deaths) == 1


async def test_a_pod_that_somebody_deletes_is_a_death_too(world: World) -> None:
    agent = world.agent()
    await agent.start(UID, SPEC)
    await world.client.delete(f"{PODS}/{pod_name(UID)}")
    await until(lambda: world.deaths)
    assert agent.running() == frozenset()


async def test_a_dead_daemon_is_made_anew_by_start(world: World) -> None:
    agent = world.agent()
    await agent.start(UID, SPEC)
    os.kill(_pid(world.root / "mps" / UID), signal.SIGKILL)
    await until(lambda: world.deaths)
    await agent.start(UID, SPEC)
    assert agent.running() == {UID}
    await agent.stop(UID)


@pytest.mark.parametrize("fault", ["fail", "die", "mute"])
async def test_a_daemon_that_does_not_come_up_leaves_nothing(world: World, fault: str) -> None:
    world.driver.control(mps={"start": fault})
    agent = world.agent(ready_timeout=1.0)
    with pytest.raises(GpuToolError, match="its pod: "):
        await agent.start(UID, SPEC)
    assert await world.names() == []
    assert world.leftovers() == []
    assert world.deaths == []


async def test_a_refused_limit_leaves_nothing(world: World) -> None:
    world.driver.control(mps={"refuse": True})
    with pytest.raises(SettingNotSupportedError, match="Invalid device"):
        await world.agent().start(UID, SPEC)
    assert await world.names() == []
    assert world.leftovers() == []


async def test_a_start_that_is_given_up_leaves_nothing(world: World) -> None:
    world.driver.control(mps={"start": "mute"})
    agent = world.agent()
    task = asyncio.create_task(agent.start(UID, SPEC))
    await until((world.root / "mps" / UID / "p" / "control").exists)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await world.names() == []
    assert world.leftovers() == []


async def test_a_pod_that_another_agent_has_just_made_is_replaced(world: World) -> None:
    one, other = world.agent(), world.agent()
    assert not await other.adopt(OTHER_UID, SPEC)  # its watch runs, and may be late
    await one.start(UID, SPEC)
    await other.start(UID, replace(SPEC, active_thread_percentage=50))
    assert other.running() == {UID}
    assert len(await world.pods()) == 1


async def test_without_the_drivers_tools_no_pod_is_made(world: World) -> None:
    world.driver.uninstall()
    with pytest.raises(DeviceNotReadyError):
        await world.agent().start(UID, SPEC)
    assert await world.names() == []


async def test_the_image_is_that_of_the_agents_own_pod(world: World) -> None:
    with pytest.raises(SettingNotSupportedError, match="set mps_image"):
        await world.agent(image="", pod_uid="7").start(UID, SPEC)
    main = {"name": "agent", "image": "registry.example/gpu-dra:1", "command": ["sleep", "600"]}
    body = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "agent"},
        "spec": {"nodeName": NODE, "containers": [main], "imagePullSecrets": [{"name": "key"}]},
    }
    made = await world.client.create(PODS, body)
    await world.agent(image="", pod_uid=made["metadata"]["uid"]).start(UID, SPEC)
    spec = next(pod["spec"] for pod in await world.pods() if pod["metadata"]["name"] == pod_name(UID))
    assert spec["containers"][0]["image"] == "registry.example/gpu-dra:1"
    assert spec["imagePullSecrets"] == [{"name": "key"}]


# --- the manifest ----------------------------------------------------------------------------------------------------


def test_no_daemonset_of_the_agents_may_take_the_pod_for_its_own() -> None:
    command = Command(argv=["x"], env={}, paths=())
    pod = manifest(UID, "tag", command, Image(name="i"), {"metadata": {"name": "n", "uid": "u"}})
    assert pod["metadata"]["labels"]["app.kubernetes.io/name"] != "gpu-dra"
    assert pod["spec"]["restartPolicy"] == "Never"
    assert pod["spec"]["automountServiceAccountToken"] is False


@pytest.mark.parametrize("name", [UID, GPU])
def test_pods_have_names_that_kubernetes_takes(name: str) -> None:
    assert pod_name(name) == pod_name(name).lower()
    assert len(pod_name(name)) <= 63


def test_an_image_keeps_its_pull_policy() -> None:
    container = {"image": "i", "imagePullPolicy": "Always"}
    assert own_image({"spec": {"containers": [container]}}) == Image(name="i", pull_policy="Always")


@pytest.mark.parametrize(
    ("status", "told"),
    [
        ({}, "Pending"),
        ({"phase": "Failed", "reason": "Evicted", "message": "out of memory"}, "Failed Evicted out of memory"),
        ({"containerStatuses": [{"state": {"waiting": {"reason": "ErrImagePull", "message": "no such"}}}]},
         "ErrImagePull no such"),
        ({"containerStatuses": [{"state": {"waiting": {"reason": "ContainerCreating"}}}]}, "Pending"),
        ({"containerStatuses": [{"state": {"terminated": {"reason": "Error", "exitCode": 1}}}], "phase": "Failed"},
         "Error with status 1"),
    ],
)  # fmt: skip
def test_the_trouble_of_a_pod_is_in_the_kubelets_words(status: dict[str, Any], told: str) -> None:
    assert trouble({"status": status}) == told


def _pid(directory: Path) -> int:
    """Find the daemon whose pipe directory this is."""
    mark = f"CUDA_MPS_PIPE_DIRECTORY={directory}/p".encode()
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                if mark in (entry / "environ").read_bytes() and b"-f" in (entry / "cmdline").read_bytes().split(b"\0"):
                    return int(entry.name)
            except OSError:
                continue
    raise AssertionError("no daemon runs")
