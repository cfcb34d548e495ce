from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from driver.kube.client import KubeClient
from driver.kube.resources import ResourceApi
from driver.localcluster.apiserver import ApiServer, Fault, Features
from driver.model.shares import ShareMode, Shares
from driver.slices.build import build
from driver.slices.dropped import Feature
from driver.slices.normal import normal
from driver.slices.publish import SlicePublisher
from tests.unit.slices.helpers import FELL_OFF, NODE, OPTIONS, PARTITIONS, names, partitioned, snapshot, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from driver.model.snapshot import Snapshot
    from driver.slices.build import BuildOptions

RESOURCE = "resourceslices"


class Ears:
    """Hears Events and counts."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.counts: Counter[str] = Counter()

    def emit(self, reason: str, message: str, *, warning: bool = False) -> None:
        self.events.append(f"{reason}: {message}")

    def slice_written(self, verb: str) -> None:
        self.counts[verb] += 1

    def publish_failed(self, error_type: str) -> None:
        self.counts[error_type] += 1


class Node:
    """An API server with one Node, and publishers on it."""

    def __init__(self, server: ApiServer) -> None:
        self.server = server
        self.store = server.store
        self.ears = Ears()

    @property
    def slices(self) -> list[dict[str, Any]]:
        return self.store.list(RESOURCE)

    @property
    def writes(self) -> int:
        """How many writes of slices were asked of the API server."""
        counts = self.server.audit.counts
        return sum(counts[verb, RESOURCE] for verb in ("create", "update", "patch", "delete"))

    def holds(self, wanted: Snapshot, options: BuildOptions = OPTIONS) -> bool:
        """Say whether the API server has exactly the slices of a snapshot."""
        specs = build(wanted, options)
        stored = [item["spec"] for item in self.slices]
        return [normal(spec) for spec in specs] == [normal(spec) for spec in stored]

    @asynccontextmanager
    async def publisher(
        self, wanted: Snapshot | None = None, options: BuildOptions = OPTIONS, *, timeout: float = 10
    ) -> AsyncIterator[SlicePublisher]:
        async with KubeClient.from_kubeconfig(self.server.kubeconfig, timeout=timeout) as client:
            publisher = SlicePublisher(
                client, ResourceApi(client), options, events=self.ears, metrics=self.ears, longest_pause=0.3
            )
            if wanted is not None:
                publisher.publish(wanted)
            task = asyncio.create_task(publisher.run())
            try:
                yield publisher
            finally:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
            assert task.cancelled(), task.exception()


async def complete(publisher: SlicePublisher) -> None:
    await until(lambda: publisher.state.complete)


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    async with make_node(tmp_path) as node:
        yield node


@asynccontextmanager
async def make_node(tmp_path: Path, **features: Any) -> AsyncIterator[Node]:
    server = ApiServer(tmp_path / "apiserver", Features(**features))
    await server.start()
    server.store.create("nodes", {"metadata": {"name": NODE}})
    yield Node(server)
    await server.stop()


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


async def test_A13_deleted_slices_are_back_at_once(node: Node) -> None:
    async with node.publisher(snapshot("l4:130")) as publisher:
        await complete(publisher)
        for _ in range(3):
            for item in node.slices:  # as a starting kubelet does
                node.store.delete(RESOURCE, item["metadata"]["name"])
            async with asyncio.timeout(1):
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


# --- an API server that fails ----------------------------------------------------------------------------------------


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
    assert "RBAC" in publisher.state.error
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


# --- features that are off -------------------------------------------------------------------------------------------


@pytest.fixture
async def taintless(tmp_path: Path) -> AsyncIterator[Node]:
    async with make_node(tmp_path, gates={"DRADeviceTaints": False}) as node:
        yield node


async def test_where_taints_are_dropped_sick_gpus_are_withdrawn_and_it_is_told_once(taintless: Node) -> None:
    sick = snapshot("l4:3", taints={1: (FELL_OFF,)})
    async with taintless.publisher(sick) as publisher:
        await complete(publisher)
        assert names([item["spec"] for item in taintless.slices]) == [["gpu-0", "gpu-2"]]
        assert publisher.state.without == {Feature.TAINTS}
        publisher.publish(snapshot("l4:3", taints={0: (FELL_OFF,)}))
        await complete(publisher)
        assert names([item["spec"] for item in taintless.slices]) == [["gpu-1", "gpu-2"]]
        publisher.publish(snapshot("l4:3"))
        await complete(publisher)
    assert names([item["spec"] for item in taintless.slices]) == [["gpu-0", "gpu-1", "gpu-2"]]
    assert len(taintless.ears.events) == 1
    assert "drops device taints" in taintless.ears.events[0]
    assert taintless.ears.counts == {"create": 1, "update": 3, "FieldsDropped": 1}


async def test_a_release_that_has_taints_gets_them(taintless: Node) -> None:
    sick = snapshot("l4:2", taints={1: (FELL_OFF,)})
    async with taintless.publisher(sick) as publisher:
        await complete(publisher)
        await until(lambda: publisher._release == "v1.36.0")
        await taintless.server.stop()
        taintless.store.features = Features(kubernetes="1.37")
        await taintless.server.start()
        await until(lambda: taintless.holds(sick))
        await complete(publisher)
    assert publisher.state.without == frozenset()


async def test_another_dropped_field_is_told_once_and_never_written_in_turns(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A field that no feature of the driver depends on: the driver leaves the slices as the server has them."""

    def built(*about: Any) -> tuple[dict[str, Any], ...]:
        specs = build(*about)
        return tuple({**spec, "devices": [{**one, "colour": "red"} for one in spec["devices"]]} for spec in specs)

    monkeypatch.setattr("driver.slices.publish.build", built)
    async with node.publisher(snapshot("l4:2")) as publisher:
        await complete(publisher)
        item = node.slices[0]
        node.store.update(RESOURCE, {**item, "metadata": {**item["metadata"], "labels": {"look": "again"}}})
        publisher.publish(snapshot("l4:3"))
        await complete(publisher)
    assert node.ears.counts == {"create": 1, "update": 1, "FieldsDropped": 2}
    assert len(node.ears.events) == 1
    assert "without colour" in node.ears.events[0]


# --- partitions and shares -------------------------------------------------------------------------------------------

SHARED = replace(OPTIONS, shares=Shares(ShareMode.MEMORY))
BOTH = replace(PARTITIONS, shares=Shares(ShareMode.COUNTED, 4))


@pytest.mark.parametrize("kubernetes", ["1.36", "1.37"])
async def test_partitions_are_published_with_the_fewest_writes(tmp_path: Path, kubernetes: str) -> None:
    async with make_node(tmp_path, kubernetes=kubernetes) as node:
        async with node.publisher(partitioned("h100:16"), PARTITIONS) as publisher:
            await complete(publisher)
        assert node.holds(partitioned("h100:16"), PARTITIONS)
        assert (publisher.state.slices, publisher.state.devices) == (10, 16 * 26)
        assert node.ears.counts == {"create": 10}
        assert not node.ears.events


async def test_a_claim_that_cuts_a_gpu_causes_no_write_and_an_illness_one(node: Node) -> None:
    async with node.publisher(partitioned("h100:3"), PARTITIONS) as publisher:
        await complete(publisher)
        before = node.writes
        for spec in (
            "h100@mig,h100:2",
            "h100@mig=1g.10gb:6,h100:2",
            "h100@mig=1g.10gb*7,h100@mig=4g.40gb+3g.40gb,h100",
        ):
            publisher.publish(partitioned(spec))
            await complete(publisher)
        assert node.writes == before
        publisher.publish(partitioned("h100:3", taints={1: (FELL_OFF,)}))
        await complete(publisher)
        assert node.writes == before + 1
        assert {item["spec"]["pool"]["generation"] for item in node.slices} == {1}


OLD = {"kubernetes": "1.34"}
OLD_WITH_COUNTERS = {"kubernetes": "1.34", "gates": {"DRAPartitionableDevices": True}}
OFF = {"kubernetes": "1.35"}
SWITCHED_OFF = {"gates": {"DRAPartitionableDevices": False}}


@pytest.mark.parametrize(
    ("features", "words"),
    [
        (OLD, "the API server is v1.34.0: MIG partitions are withdrawn"),
        (OLD_WITH_COUNTERS, "the API server is v1.34.0: MIG partitions are withdrawn"),
        (OFF, "the API server drops shared counters, as that feature is off: MIG partitions are withdrawn"),
        (SWITCHED_OFF, "the API server drops shared counters"),
    ],
)
async def test_without_counters_whole_gpus_are_offered_alone_and_it_is_told_once(
    tmp_path: Path, features: dict[str, Any], words: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with make_node(tmp_path, **features) as node:
        async with node.publisher(partitioned("h100:9,l4"), PARTITIONS) as publisher:
            await complete(publisher)
            publisher.publish(partitioned("h100:8,l4"))
            await complete(publisher)
        assert node.holds(snapshot("h100:8,l4"))
        assert publisher.state.without == {Feature.PARTITIONS}
        assert len(node.ears.events) == 1
        assert words in node.ears.events[0]
        assert node.ears.counts["FieldsDropped"] == 1
        assert caplog.text.count("MIG partitions are withdrawn") == 1


async def test_an_upgrade_of_the_api_server_brings_the_partitions(tmp_path: Path) -> None:
    async with make_node(tmp_path, kubernetes="1.34") as node:
        async with node.publisher(partitioned("h100:2"), PARTITIONS) as publisher:
            await complete(publisher)
            await node.server.stop()
            node.store.features = Features(kubernetes="1.36")
            await node.server.start()
            await until(lambda: node.holds(partitioned("h100:2"), PARTITIONS))
            await complete(publisher)
        assert publisher.state.without == frozenset()


@pytest.mark.parametrize("release", ["1.34", "1.36"])
@pytest.mark.parametrize("options", [OPTIONS, PARTITIONS])
async def test_nothing_is_told_where_no_gpu_is_to_be_partitioned(
    tmp_path: Path, release: str, options: BuildOptions
) -> None:
    async with make_node(tmp_path, kubernetes=release) as node:
        async with node.publisher(snapshot("h100:2"), options) as publisher:
            await complete(publisher)
        assert node.holds(snapshot("h100:2"))
        assert not node.ears.events


async def test_shares_are_published(node: Node) -> None:
    async with node.publisher(snapshot("h100:2,h100@mig=1g.10gb*2"), SHARED) as publisher:
        await complete(publisher)
    assert node.holds(snapshot("h100:2,h100@mig=1g.10gb*2"), SHARED)
    assert node.ears.counts == {"create": 1}


@pytest.mark.parametrize("features", [OLD, OFF, {"gates": {"DRAConsumableCapacity": False}}])
async def test_without_shares_each_device_is_exclusive_and_it_is_told_once(
    tmp_path: Path, features: dict[str, Any]
) -> None:
    async with make_node(tmp_path, **features) as node:
        async with node.publisher(snapshot("h100:2"), SHARED) as publisher:
            await complete(publisher)
            publisher.publish(snapshot("h100:3"))
            await complete(publisher)
        assert node.holds(snapshot("h100:3"))
        assert publisher.state.without == {Feature.SHARES}
        (event,) = node.ears.events
        assert "each device goes to one claim at a time" in event


async def test_where_both_are_off_plain_devices_are_left(tmp_path: Path) -> None:
    async with make_node(tmp_path, kubernetes="1.35") as node:
        async with node.publisher(partitioned("h100:2,l4"), BOTH) as publisher:
            await complete(publisher)
        assert node.holds(snapshot("h100:2,l4"))
        assert publisher.state.without == {Feature.PARTITIONS, Feature.SHARES}
        assert len(node.ears.events) == 2


async def test_a_webhook_that_adds_something_is_left_alone(node: Node) -> None:
    def label(store: Any, kind: Any, new: dict[str, Any], old: Any) -> None:
        if kind.plural == RESOURCE:
            for device in new["spec"].get("devices", ()):
                device.setdefault("attributes", {})["example.com/rack"] = {"string": "r1"}

    node.store.admission.append(label)
    async with node.publisher(snapshot("l4:2")) as publisher:
        await complete(publisher)
        publisher.publish(snapshot("l4:3"))
        await complete(publisher)
    assert node.ears.counts["create"] + node.ears.counts["update"] == 2
    assert "changed" in node.ears.events[0]
