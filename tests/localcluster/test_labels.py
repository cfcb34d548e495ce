"""The agent's labels on the embedded cluster's node, and pods that go by them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.localcluster.world import GPU, NODE, World
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

PRODUCT = "nvidia.com/gpu.product"
H100 = "NVIDIA-H100-80GB-HBM3"


class Labelled(World):
    """A node whose labels are looked at."""

    def labels(self) -> dict[str, str]:
        found = self.store.get("nodes", NODE)["metadata"]["labels"]
        return {key: value for key, value in found.items() if key.startswith("nvidia.com/")}

    async def until_label(self, key: str, value: str | None) -> None:
        await until(lambda: self.labels().get(key) == value)


@pytest.fixture
async def world(short_tmp: Path) -> AsyncIterator[Labelled]:
    made = Labelled(short_tmp)
    async with made.cluster:
        yield made


async def test_a_pod_chooses_its_node_by_labels(world: Labelled) -> None:
    memory = {"key": "nvidia.com/gpu.memory", "operator": "Gt", "values": ["40000"]}
    affinity = {
        "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchExpressions": [memory]}]}
    }
    spec = {"nodeSelector": {PRODUCT: H100}, "affinity": {"nodeAffinity": affinity}}
    async with world.agent("--device-plugin", "on"):
        world.pod("fits", {GPU: "4"}, **spec)
        world.pod("other", {GPU: "1"}, nodeSelector={PRODUCT: "NVIDIA-L4"})
        await until(lambda: world.phase("fits") == "Succeeded")
        assert len(world.gpus_of("fits")) == 4
    assert world.phase("other") == "Pending"


async def test_labels_follow_the_config_and_stay_at_the_end(world: Labelled) -> None:
    world.config.write_text("version: v1\n")
    async with world.agent("--device-plugin-config", str(world.config)):
        await world.until_label(PRODUCT, H100)
        resources = "{timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 2}]}}"
        world.config.write_text(f"version: v1\nflags: {{migStrategy: mixed}}\nsharing: {resources}\n")
        await world.until_label(PRODUCT, f"{H100}-SHARED")
        assert world.labels()["nvidia.com/gpu.replicas"] == "2"
        assert world.labels()["nvidia.com/mig.strategy"] == "mixed"
    assert world.labels()[PRODUCT] == f"{H100}-SHARED"


async def test_labels_go_with_the_agent_if_so_set(world: Labelled) -> None:
    async with world.agent("--labels-at-exit", "remove", "--labels-timestamp", "off"):
        await world.until_label(PRODUCT, H100)
        assert "nvidia.com/gfd.timestamp" not in world.labels()
    assert world.labels() == {}


async def test_labels_in_a_feature_file(world: Labelled) -> None:
    file = world.root / "gpu-dra"
    async with world.agent("--labels", "nfd", "--labels-file", str(file), "--labels-at-exit", "remove"):
        await until(file.exists)
        assert f"{PRODUCT}={H100}\n" in file.read_text()
    assert not file.exists()
    assert world.labels() == {}


async def test_no_labels(world: Labelled) -> None:
    async with world.agent("--labels", "off"):
        await until(world.dra)
    assert world.labels() == {}
