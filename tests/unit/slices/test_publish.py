"""Publishing slices: as few writes as will do, and what others do to them undone."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from driver.localcluster.apiserver import Fault, Features
from driver.slices.build import build
from tests.unit.slices.helpers import NODE, OPTIONS, names, snapshot
from tests.unit.slices.publishing import RESOURCE, Node, complete, make_node
from tests.waiting import until

if TYPE_CHECKING:
    from pathlib import Path


# --- publishing ------------------------------------------------------------------------------------------------------


async def test_gpus_are_published_and_owned_by_the_node(node: Node) -> None:
    async with node.publisher(snapshot("h100:8,l4:130")) as publisher:
        await complete(publisher)
    assert node.holds(snapshot("h100:8,l4:130"))
    assert (publisher.state.published, publisher.state.slices, publisher.state.devices) == (True, 3, 138)
    assert node.ears.counts == {"create": 3}
    uid = node.store.get("nodes", NODE)["metadata"]["uid"]
    assert {item["metadata"]["ownerReferences"][0]["uid"] for item in node.slices} == {uid}


async def test_slices_stay_when_the_process_ends_and_the_next_one_writes_nothing(node: Node) -> None:
    async with node.publisher(snapshot("h100:8")) as publisher:
        await complete(publisher)
    assert node.holds(snapshot("h100:8"))
    before = node.writes
    async with node.publisher(snapshot("h100:8")) as publisher:
        await complete(publisher)
        assert publisher.state.published
    assert node.writes == before


async def test_a_node_without_gpus_has_an_empty_slice(node: Node) -> None:
    async with node.publisher(snapshot("l4:1", minor=0)) as publisher:
        publisher.publish(replace(snapshot("l4"), gpus=()))
        await complete(publisher)
    assert names([item["spec"] for item in node.slices]) == [[]]


async def test_the_same_inventory_again_causes_no_call_at_all(node: Node) -> None:
    async with node.publisher(snapshot("l4:2")) as publisher:
        await complete(publisher)
        calls = len(node.server.audit.calls)
        for _ in range(5):
            publisher.publish(snapshot("l4:2"))
            assert publisher.state.complete
            await asyncio.sleep(0)
        publisher.publish(snapshot("l4:3"))
        await complete(publisher)
    assert node.ears.counts == {"create": 1, "update": 1}
    assert len(node.server.audit.calls) == calls + 1


async def test_a_burst_of_changes_is_few_writes(node: Node) -> None:
    async with node.publisher(snapshot("l4:1")) as publisher:
        await complete(publisher)
        over = asyncio.Event()
        fault = node.server.faults.add(Fault.on("update", RESOURCE, until=over, times=1))
        publisher.publish(snapshot("l4:2"))
        await fault.reached.wait()
        for count in range(3, 40):
            publisher.publish(snapshot(f"l4:{count}"))
            await asyncio.sleep(0)
        over.set()
        await complete(publisher)
    assert node.holds(snapshot("l4:39"))
    assert node.ears.counts["update"] == 2


async def test_nothing_is_written_before_the_first_snapshot(node: Node) -> None:
    async with node.publisher() as publisher:
        await until(lambda: node.server.audit.counts["list", RESOURCE])
        assert node.writes == 0
        assert not publisher.state.published
        publisher.publish(snapshot("l4"))
        await complete(publisher)


@pytest.mark.parametrize("version", ["v1", "v1beta2", "v1beta1"])
async def test_every_served_version_will_do(tmp_path: Path, version: str) -> None:
    async with make_node(tmp_path, dra_versions=(version,)) as node:
        async with node.publisher(snapshot("h100:2")) as publisher:
            await complete(publisher)
            node.store.delete(RESOURCE, node.slices[0]["metadata"]["name"])
            await until(lambda: node.holds(snapshot("h100:2")))
        assert {call.version for call in node.server.audit.calls if call.resource == RESOURCE} == {version}


async def test_an_upgraded_api_server_is_followed(node: Node) -> None:
    server = node.server
    await server.stop()
    server.store.features = Features(dra_versions=("v1beta1",))
    await server.start()
    async with node.publisher(snapshot("l4:2")) as publisher:
        await complete(publisher)
        await server.stop()
        server.store.features = Features(dra_versions=("v1",))
        await server.start()
        publisher.publish(snapshot("l4:3"))
        await complete(publisher)
        node.store.delete(RESOURCE, node.slices[0]["metadata"]["name"])
        await until(lambda: node.holds(snapshot("l4:3")))


# --- others ----------------------------------------------------------------------------------------------------------


async def test_A13_deleted_slices_are_back_without_a_restart(node: Node) -> None:
    async with node.publisher(snapshot("l4:130")) as publisher:
        await complete(publisher)
        for _ in range(3):
            for item in node.slices:  # as a starting kubelet does
                node.store.delete(RESOURCE, item["metadata"]["name"])
            await until(lambda: node.holds(snapshot("l4:130")))
            await complete(publisher)
    assert publisher.state.published


async def test_a_foreign_change_is_undone(node: Node) -> None:
    async with node.publisher(snapshot("l4:2")) as publisher:
        await complete(publisher)
        item = node.slices[0]
        node.store.update(RESOURCE, {**item, "spec": {**item["spec"], "devices": []}})
        await until(lambda: node.holds(snapshot("l4:2")))


async def test_foreign_duplicates_go_and_slices_of_others_stay(node: Node) -> None:
    spec = build(snapshot("l4:9"), OPTIONS)[0]
    for name, change in {"dup": {}, "driver": {"driver": "x.com"}, "node": {"nodeName": "node-b"}}.items():
        node.store.create(RESOURCE, {"metadata": {"name": name}, "spec": {**spec, **change}})
    async with node.publisher(snapshot("l4:2")) as publisher:
        await complete(publisher)
    assert [item["metadata"]["name"] for item in node.slices][1:] == ["driver", "node"]
    assert node.ears.counts == {"delete": 1, "create": 1}


async def test_two_instances_of_a_rolling_update_do_not_fight(node: Node) -> None:
    async with node.publisher(snapshot("l4:70")) as old:
        await complete(old)
        before = node.writes
        async with node.publisher(snapshot("l4:70")) as new:
            await complete(new)
            assert node.writes == before
            node.store.delete(RESOURCE, node.slices[0]["metadata"]["name"])
            await until(lambda: node.holds(snapshot("l4:70")))
        await until(lambda: old.state.complete)
    assert node.holds(snapshot("l4:70"))


async def test_two_instances_that_disagree_write_ever_less_often(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    async with node.publisher(snapshot("l4:1")) as one, node.publisher(snapshot("l4:2")) as two:
        await until(lambda: "keeps changing" in caplog.text)
        assert not (one.state.complete and two.state.complete)
    assert node.writes < 40


async def test_a_node_that_is_made_anew_owns_the_slices(node: Node) -> None:
    async with node.publisher(snapshot("l4:2")) as publisher:
        await complete(publisher)
        node.store.delete("nodes", NODE)
        uid = node.store.create("nodes", {"metadata": {"name": NODE}})["metadata"]["uid"]
        for item in node.slices:
            node.store.delete(RESOURCE, item["metadata"]["name"])
        await until(lambda: [item["metadata"]["ownerReferences"][0]["uid"] for item in node.slices] == [uid])
