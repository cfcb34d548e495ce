"""What an agent with other settings has left: our labels go, those of others stay."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from driver.agent.labels import remove_elsewhere
from driver.kube.client import KubeClient
from driver.kube.node_labels import MANAGER, NodeLabels
from driver.localcluster.apiserver import ApiServer, Fault
from driver.settings import load_settings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

NODE = "node-a"
PATH = f"/api/v1/nodes/{NODE}"
FOREIGN = {"nvidia.com/gpu.present": "true"}
OURS = {"nvidia.com/gpu.count": "8"}


class World:
    def __init__(self, server: ApiServer, client: KubeClient, file: Path) -> None:
        self.server, self.client, self.file = server, client, file

    async def left(self) -> None:
        """Leave labels in both places, as two former agents did."""
        place = NodeLabels(self.client, NODE)
        place.timestamp = False
        await place._read()
        await place.apply(OURS)
        self.file.write_text("nvidia.com/gpu.count=8\n")

    async def labels(self) -> dict[str, str]:
        return dict((await self.client.get(PATH))["metadata"].get("labels") or {})

    async def remove(self, labels: str) -> None:
        settings = load_settings({"node_name": NODE, "labels": labels, "labels_file": str(self.file)}, {})
        async with asyncio.timeout(20):
            await remove_elsewhere(settings, self.client)

    def writes(self) -> list[Any]:
        return [call for call in self.server.audit.calls if call.writes]


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    server = ApiServer(tmp_path / "api")
    await server.start()
    async with KubeClient.from_kubeconfig(server.kubeconfig) as client:
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE, "labels": FOREIGN}}
        await client.create("/api/v1/nodes", node)
        yield World(server, client, tmp_path / "gpu-dra")
    await server.stop()


@pytest.mark.parametrize(
    ("labels", "on_node", "in_file"), [("node", True, False), ("nfd", False, True), ("off", False, False)]
)
async def test_labels_stay_only_where_they_are_to_be(world: World, labels: str, on_node: bool, in_file: bool) -> None:
    await world.left()
    await world.remove(labels)
    assert (await world.labels() == {**FOREIGN, **OURS}) == on_node
    assert (await world.labels() == FOREIGN) != on_node
    assert world.file.exists() == in_file


async def test_where_nothing_is_left_nothing_is_written(world: World) -> None:
    world.server.audit.calls.clear()
    await world.remove("off")
    assert world.writes() == []
    assert MANAGER not in str(await world.client.get(PATH))


async def test_what_passes_is_tried_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    await world.left()
    monkeypatch.setattr("driver.agent.labels.Backoff.next", lambda self, error: 0.01)
    world.server.faults.add(Fault.on("patch", "nodes", status=500, times=2))
    await world.remove("off")
    assert await world.labels() == FOREIGN


async def test_who_may_not_is_told(world: World, caplog: pytest.LogCaptureFixture) -> None:
    await world.left()
    world.server.faults.add(Fault.on("patch", "nodes", status=403))
    await world.remove("off")
    assert f"labels that this agent may have written to Node {NODE} stay" in caplog.text


async def test_a_node_that_is_not_there_has_none(world: World) -> None:
    await world.client.delete(PATH)
    await world.remove("off")
