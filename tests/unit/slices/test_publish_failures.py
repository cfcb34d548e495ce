"""Publishing slices to an API server that fails, refuses, or is away."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from driver.kube.client import KubeClient
from driver.kube.resources import ResourceApi
from driver.localcluster.apiserver import ApiServer, Fault
from driver.slices.build import build
from driver.slices.publish import SlicePublisher
from tests.unit.slices.helpers import NODE, OPTIONS, snapshot
from tests.unit.slices.publishing import RESOURCE, Node, complete, make_node
from tests.waiting import until

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("status", [401, 403, 409, 410, 422, 429, 500, 503])
@pytest.mark.parametrize(
    ("verb", "resource"),
    [("get", "nodes"), ("list", RESOURCE), ("watch", RESOURCE), ("create", RESOURCE)],
)
async def test_whatever_fails_at_first_the_pool_is_published(node: Node, status: int, verb: str, resource: str) -> None:
    fault = node.server.faults.add(Fault.on(verb, resource, status=status, times=1))
    async with node.publisher(snapshot("l4:2")) as publisher:
        await until(lambda: fault.hits)
        publisher.publish(snapshot("l4:3"))  # what can't pass by itself is tried again when the GPUs change
        await complete(publisher)
    assert node.holds(snapshot("l4:3"))
    assert publisher.state.error == ""


@pytest.mark.parametrize("status", [401, 403, 404, 409, 410, 422, 429, 500])
@pytest.mark.parametrize("verb", ["update", "delete"])
async def test_a_change_that_fails_at_first_is_made_later(node: Node, status: int, verb: str) -> None:
    async with node.publisher(snapshot("l4:130")) as publisher:
        await complete(publisher)
        fault = node.server.faults.add(Fault.on(verb, RESOURCE, status=status, times=1))
        publisher.publish(snapshot("l4:65"))
        await until(lambda: fault.hits)
        publisher.publish(snapshot("l4:66"))
        await complete(publisher)
    assert node.holds(snapshot("l4:66"))


async def test_A14_the_state_says_that_nothing_is_published_while_the_api_server_is_down_at_start(node: Node) -> None:
    await node.server.stop()
    async with node.publisher(snapshot("l4:2")) as publisher:
        await until(lambda: publisher.state.error)
        assert not publisher.state.published
        await node.server.start()
        await complete(publisher)
    assert node.holds(snapshot("l4:2"))
    assert not node.ears.events  # nobody could have read one


async def test_an_api_server_that_goes_away_in_the_middle_finds_the_latest(node: Node) -> None:
    async with node.publisher(snapshot("l4:2")) as publisher:
        await complete(publisher)
        await node.server.stop()
        publisher.publish(snapshot("l4:3"))
        await until(lambda: publisher.state.error)
        assert publisher.state.published
        await node.server.start()
        await complete(publisher)
    assert node.holds(snapshot("l4:3"))


async def test_a_slow_api_server_is_tried_again(node: Node) -> None:
    fault = node.server.faults.add(Fault.on("create", RESOURCE, until=asyncio.Event(), times=1))
    async with node.publisher(snapshot("l4:2"), timeout=0.5) as publisher:
        await until(lambda: fault.hits)
        await complete(publisher)
    assert node.holds(snapshot("l4:2"))


async def test_a_create_whose_answer_was_lost_leaves_no_duplicate(node: Node) -> None:
    """The connection breaks after the slice was stored."""
    spec = build(snapshot("l4:2"), OPTIONS)[0]

    def stored_unseen(call: Any) -> bool:
        if (call.verb, call.resource) != ("create", RESOURCE):
            return False
        node.store.create(RESOURCE, {"metadata": {"generateName": f"00-gpu.nvidia.com-{NODE}-"}, "spec": spec})
        return True

    fault = node.server.faults.add(Fault(when=stored_unseen, drop=True, times=1))
    async with node.publisher(snapshot("l4:2")) as publisher:
        await until(lambda: fault.hits)
        await complete(publisher)
        await until(lambda: len(node.slices) == 1)
    assert node.holds(snapshot("l4:2"))


async def test_compacted_history_is_listed_again(node: Node) -> None:
    async with node.publisher(snapshot("l4:2")) as publisher:
        await complete(publisher)
        node.server.faults.add(Fault.on("watch", RESOURCE, status=410, times=1))
        node.store.compact()
        node.store.close_watches()
        node.store.delete(RESOURCE, node.slices[0]["metadata"]["name"])
        await until(lambda: node.holds(snapshot("l4:2")))


async def test_a_422_is_told_in_log_event_and_metric_and_tried_again(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    fault = node.server.faults.add(Fault.on("create", RESOURCE, status=422, message="spec.devices: Too many"))
    async with node.publisher(snapshot("l4:2")) as publisher:
        await until(lambda: fault.hits)
        await until(lambda: publisher.state.error)
        assert "spec.devices: Too many" in publisher.state.error
        assert "spec.devices: Too many" in caplog.text
        assert node.ears.events == [f"ResourceSlicesNotPublished: {publisher.state.error}"]
        assert node.ears.counts["ApiInvalidError"] == 1
        assert fault.hits == 1  # a long pause, unless something changes
        node.server.faults.clear()
        publisher.publish(snapshot("l4:3"))
        await complete(publisher)
    assert node.holds(snapshot("l4:3"))


async def test_missing_rbac_is_told_with_the_servers_words(tmp_path: Path) -> None:
    server = ApiServer(tmp_path, authorization=True)
    await server.start()
    server.store.create("nodes", {"metadata": {"name": NODE}})
    node = Node(server)
    async with KubeClient.from_kubeconfig(server.kubeconfig_for("nobody")) as client:
        publisher = SlicePublisher(client, ResourceApi(client), OPTIONS, events=node.ears, metrics=node.ears)
        task = asyncio.create_task(publisher.run())
        publisher.publish(snapshot("l4"))
        await until(lambda: publisher.state.error)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    await server.stop()
    assert 'User "nobody" cannot list resource "resourceslices"' in publisher.state.error
    assert "a role has to permit it: apply those of deploy/base" in publisher.state.error
    assert node.ears.events


async def test_a_missing_node_is_told_by_name(tmp_path: Path) -> None:
    async with make_node(tmp_path) as node:
        node.store.delete("nodes", NODE)
        async with node.publisher(snapshot("l4")) as publisher:
            await until(lambda: publisher.state.error)
            assert f"there is no Node '{NODE}'" in publisher.state.error
            node.store.create("nodes", {"metadata": {"name": NODE}})
            publisher.publish(snapshot("l4:2"))
            await complete(publisher)


async def test_an_unexpected_error_costs_an_update_not_the_process(
    node: Node, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> None:
        raise ValueError("a bug")

    with monkeypatch.context() as patch:
        patch.setattr("driver.slices.publish.build", broken)
        async with node.publisher(snapshot("l4")) as publisher:
            await until(lambda: "a bug" in publisher.state.error)
            patch.undo()
            await complete(publisher)
    assert "publishing failed unexpectedly" in caplog.text


async def test_a_node_without_a_uid_is_told_and_read_again(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    get = KubeClient.get

    async def garbage(client: KubeClient, path: str) -> dict[str, Any]:
        return {"metadata": {}} if path.startswith("/api/v1/nodes/") else await get(client, path)

    monkeypatch.setattr(KubeClient, "get", garbage)
    async with node.publisher(snapshot("l4")) as publisher:
        await until(lambda: "it has no metadata.uid" in publisher.state.error)
        monkeypatch.undo()
        await complete(publisher)
