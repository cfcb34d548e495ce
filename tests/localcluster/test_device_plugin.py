"""The agent's device plugin on the embedded cluster: pods that ask for extended resources, and moves between APIs."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from driver.localcluster.apiserver.objects import clone, metadata
from driver.localcluster.cluster import LocalCluster
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

GPU = "nvidia.com/gpu"
NODE = "node-a"


class World:
    """A cluster of one node with the agent on it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.cluster = LocalCluster(root / "c", time_scale=0.05)
        self.store = self.cluster.store
        self.config = root / "config"
        self.rules = root / "rules.yaml"

    @contextlib.asynccontextmanager
    async def agent(self, *flags: str, gpus: str = "h100:4") -> AsyncIterator[None]:
        command = [sys.executable, "-m", "driver", *self.cluster.agent_command(NODE, gpus=gpus)[1:], *flags]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("GPU_DRA_")}
        with (self.root / "agent.log").open("ab") as log:
            process = await asyncio.create_subprocess_exec(*command, stdout=log, stderr=log, env=environment)
        try:
            yield
        except BaseException:
            sys.stderr.write((self.root / "agent.log").read_text())
            raise
        finally:
            if process.returncode is None:
                process.terminate()
            async with asyncio.timeout(15):
                await process.wait()

    def counts(self, resource: str = GPU) -> tuple[str, str]:
        """Return (capacity, allocatable) of the node."""
        status = self.store.get("nodes", NODE).get("status") or {}
        return tuple((status.get(kind) or {}).get(resource, "-") for kind in ("capacity", "allocatable"))  # type: ignore[return-value]

    def dra(self) -> list[str]:
        return [one["name"] for item in self.store.list("resourceslices") for one in item["spec"].get("devices") or ()]

    def events(self) -> set[str]:
        return {event["reason"] for event in self.store.list("events")}

    def label(self, value: str | None) -> None:
        node = clone(self.store.get("nodes", NODE))
        node["metadata"].setdefault("labels", {})["nvidia.com/device-plugin.config"] = value
        if value is None:
            del node["metadata"]["labels"]["nvidia.com/device-plugin.config"]
        self.store.update("nodes", node)

    def pod(self, name: str, limits: dict[str, str], script: str = "nvidia-smi -L", **spec: Any) -> None:
        container = {"name": "c", "image": "busybox", "command": ["sh", "-c", script], "resources": {"limits": limits}}
        body = {"restartPolicy": "Never", "containers": [container], **spec}
        self.store.create("pods", {"metadata": {"name": name}, "spec": body}, "default")

    def claiming_pod(self, name: str) -> None:
        device = {"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com"}}
        claim = {"metadata": {"name": name}, "spec": {"devices": {"requests": [device]}}}
        self.store.create("resourceclaims", claim, "default")
        container = {"name": "c", "image": "busybox", "command": ["sh", "-c", "nvidia-smi -L; sleep 600"],
                     "resources": {"claims": [{"name": "gpu"}]}}  # fmt: skip
        body = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 0, "containers": [container],
                "resourceClaims": [{"name": "gpu", "resourceClaimName": name}]}  # fmt: skip
        self.store.create("pods", {"metadata": {"name": name}, "spec": body}, "default")

    def phase(self, name: str) -> str:
        found = self.store.find("pods", name, "default")
        return str((found or {}).get("status", {}).get("phase", "gone"))

    def log(self, name: str) -> list[str]:
        uid = metadata(self.store.get("pods", name, "default"))["uid"]
        path = self.cluster.node(NODE).kubelet.log_path(uid, "c", previous=False)
        return path.read_text().splitlines() if path else []

    def gpus_of(self, name: str) -> set[str]:
        return {line.partition("UUID: ")[2].rstrip(")") for line in self.log(name) if "UUID: " in line}

    async def status(self) -> tuple[int, dict[str, dict[str, Any]]]:
        """Return what `gpu-dra migrate --status` says, by GPU."""
        root = str(self.cluster.node(NODE).kubelet_root)
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "driver", "migrate", "--status", "-o", "json", "--kubelet-root", root,
            stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        out, _ = await process.communicate()
        return process.returncode or 0, {gpu["name"]: gpu for gpu in json.loads(out)["gpus"]}


@pytest.fixture
async def world(short_tmp: Path) -> AsyncIterator[World]:
    made = World(short_tmp)
    async with made.cluster:
        for name in ("gpu.nvidia.com",):
            selector = {"cel": {"expression": f"device.driver == '{name}'"}}
            made.store.create("deviceclasses", {"metadata": {"name": name}, "spec": {"selectors": [selector]}})
        yield made


async def test_a_pod_gets_its_gpus_beside_claims(world: World) -> None:
    async with world.agent("--ownership", "device-plugin:index=0,1,2"):
        await until(lambda: world.counts() == ("3", "3") and world.dra() == ["gpu-3"])
        world.pod("old", {GPU: "2"})
        world.claiming_pod("new")
        await until(lambda: world.phase("old") == "Succeeded" and len(world.gpus_of("new")) == 1)
        assert len(world.gpus_of("old")) == 2
        assert not world.gpus_of("old") & world.gpus_of("new")
        world.pod("greedy", {GPU: "4"})
        await until(lambda: "FailedScheduling" in world.events())
    await until(lambda: world.counts() == ("3", "0"))


async def test_the_peers_config_edited_while_it_runs(world: World) -> None:
    def write(replicas: object, **more: object) -> None:
        sharing = {"resources": [{"name": GPU, "replicas": replicas, **more}]}
        world.config.write_text(yaml.safe_dump({"version": "v1", "sharing": {"timeSlicing": sharing}}))

    write(2)
    async with world.agent("--device-plugin-config", str(world.config)):
        await until(lambda: world.counts() == ("8", "8") and world.dra() == [])
        world.pod("shared", {GPU: "1"})
        await until(lambda: world.phase("shared") == "Succeeded")
        assert len(world.gpus_of("shared")) == 1
        write(1)
        await until(lambda: "DevicePluginConfigRefused" in world.events())
        assert world.counts() == ("8", "8")
        write(3, rename="nvidia.com/third")
        await until(lambda: world.counts("nvidia.com/third") == ("12", "12") and world.counts() == ("0", "0"))


async def test_the_nodes_label_picks_a_config(world: World) -> None:
    world.config.mkdir()
    (world.config / "default").write_text("version: v1\n")
    (world.config / "mig.yaml").write_text("version: v1\nflags: {migStrategy: mixed}\n")
    async with world.agent("--device-plugin-config", str(world.config), gpus="h100,h100@mig=1g.10gb*2"):
        await until(lambda: world.counts() == ("1", "1"))
        world.label("mig")
        await until(lambda: world.counts("nvidia.com/mig-1g.10gb") == ("2", "2"))
        world.pod("part", {"nvidia.com/mig-1g.10gb": "1"})
        await until(lambda: world.phase("part") == "Succeeded")
        assert any("MIG 1g.10gb" in line for line in world.log("part"))
        world.label("absent")
        await until(lambda: "DevicePluginConfigRefused" in world.events())
        assert world.counts("nvidia.com/mig-1g.10gb") == ("2", "2")
        world.label(None)
        await until(lambda: world.counts("nvidia.com/mig-1g.10gb") == ("0", "0"))


async def test_a_node_moves_from_one_api_to_the_other_under_load(world: World) -> None:
    world.rules.write_text("default: device-plugin\n")
    async with world.agent("--ownership-file", str(world.rules)):
        await until(lambda: world.counts() == ("4", "4"))
        hold = {"script": "nvidia-smi -L; sleep 600", "terminationGracePeriodSeconds": 0}
        for name in ("old-0", "old-1"):
            world.pod(name, {GPU: "1"}, **hold)
        await until(lambda: all(len(world.gpus_of(name)) == 1 for name in ("old-0", "old-1")))
        for name in ("new-0", "new-1", "new-2", "new-3"):
            world.claiming_pod(name)
        world.rules.write_text("default: dra\n")
        await until(lambda: world.counts()[1] == "0" and len(world.dra()) == 2)
        code, status = await world.status()
        waiting = {gpu["uuid"]: gpu["heldBy"] for gpu in status.values() if gpu["waitingFor"]}
        assert code == 1
        assert waiting == {uuid: [f"pod default/{name}"] for name in ("old-0", "old-1") for uuid in world.gpus_of(name)}
        assert "GPUOwnershipWaiting" in world.events()
        new = [f"new-{number}" for number in range(4)]
        await until(lambda: sum(len(world.gpus_of(name)) for name in new if world.phase(name) == "Running") == 2)
        held = set.union(*(world.gpus_of(name) for name in ("old-0", "old-1")))
        assert not held & set.union(*(world.gpus_of(name) for name in new if world.phase(name) == "Running"))
        for name in ("old-0", "old-1"):
            world.store.delete("pods", name, "default")
        await until(lambda: all(world.phase(name) == "Running" and world.gpus_of(name) for name in new))
        assert len(set.union(*(world.gpus_of(name) for name in new))) == 4
        code, status = await world.status()
        assert code == 0
        assert {name: (gpu["owner"], len(gpu["heldBy"])) for name, gpu in status.items()} == {
            f"gpu-{number}": ("dra", 1) for number in range(4)
        }


async def test_a_restarted_kubelet_gets_all_back(world: World) -> None:
    async with world.agent("--ownership", "device-plugin"):
        await until(lambda: world.counts() == ("4", "4"))
        world.pod("held", {GPU: "1"}, script="nvidia-smi -L; sleep 600")
        await until(lambda: len(world.gpus_of("held")) == 1)
        kubelet = world.cluster.node(NODE).kubelet
        for _ in range(2):
            await kubelet.restart()
        await until(lambda: world.counts() == ("4", "4"))
        world.pod("next", {GPU: "3"})
        await until(lambda: world.phase("next") == "Succeeded")


async def test_replicas_by_mps_and_the_way_back(world: World) -> None:
    sharing = {"mps": {"resources": [{"name": GPU, "replicas": 4}]}}
    world.config.write_text(yaml.safe_dump({"version": "v1", "sharing": sharing}))
    world.rules.write_text("default: device-plugin\n")
    flags = ("--device-plugin-config", str(world.config), "--ownership-file", str(world.rules))
    state = world.cluster.node(NODE).kubelet_root / "plugins/gpu.nvidia.com/plugin-mps.json"
    async with world.agent(*flags, gpus="h100:2"):
        await until(lambda: world.counts() == ("8", "8"))
        script = "env; sleep 600"
        world.pod("client", {GPU: "1"}, script=script, terminationGracePeriodSeconds=0)
        await until(lambda: "CUDA_MPS_PIPE_DIRECTORY=/tmp/nvidia-mps" in world.log("client"))
        assert len(json.loads(state.read_bytes())) == 2
        world.rules.write_text("default: dra\n")
        await until(lambda: len(world.dra()) == 1 and world.counts()[1] == "0")
        assert len(json.loads(state.read_bytes())) == 1
        world.store.delete("pods", "client", "default")
        await until(lambda: len(world.dra()) == 2)
        assert not state.exists()
