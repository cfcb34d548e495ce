"""The agent's device plugin on the embedded cluster: pods that ask for extended resources, and moves between APIs."""

from __future__ import annotations

import json

import yaml

from tests.localcluster.world import GPU, NODE, World
from tests.waiting import until


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
