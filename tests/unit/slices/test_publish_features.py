"""Publishing slices to an API server that drops taints, counters or shares."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from driver.localcluster.apiserver import Features
from driver.model.health import Effect, Taint
from driver.model.shares import ShareMode, Shares
from driver.slices.build import build
from driver.slices.dropped import Feature
from tests.unit.slices.helpers import FELL_OFF, OPTIONS, PARTITIONS, names, partitioned, snapshot
from tests.unit.slices.publishing import RESOURCE, Node, complete, make_node
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from driver.slices.build import BuildOptions


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
        await until(lambda: publisher._release and publisher._release.git_version == "v1.36.0")
        await taintless.server.stop()
        taintless.store.features = Features(kubernetes="1.37")
        await taintless.server.start()
        await until(lambda: taintless.holds(sick))
        await complete(publisher)
    assert publisher.state.without == frozenset()


@pytest.mark.parametrize(("release", "shown"), [("1.34", False), ("1.36", True)])
async def test_an_old_release_gets_no_taints_without_effect(tmp_path: Path, release: str, shown: bool) -> None:
    """Kubernetes before 1.35 would refuse the whole slice for one application's fault."""
    async with make_node(tmp_path, kubernetes=release, gates={"DRADeviceTaints": True}) as node:
        async with node.publisher(snapshot("l4:2")) as publisher:
            await complete(publisher)
            assert publisher._release is None  # nothing depends on it
            notice = Taint("gpu.nvidia.com/xid", "31", Effect.NONE)
            publisher.publish(snapshot("l4:2", taints={0: (notice, FELL_OFF), 1: (notice,)}))
            await complete(publisher)
        first, second = node.slices[0]["spec"]["devices"]
        assert [one["effect"] for one in first["taints"]] == ["NoSchedule", *(["None"] if shown else [])]
        assert ("taints" in second) is shown
        assert publisher.state.without == (frozenset() if shown else {Feature.NOTICES})
        told = ["the API server is v1.34.0: faults that leave a GPU in service are not shown in the ResourceSlices"]
        assert node.ears.events == ([] if shown else [f"ResourceSliceFieldsDropped: {one}" for one in told])


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
