"""The writer between a Snapshot and a Node of a real API server, or a feature file."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from driver.config.device_plugin import PluginConfig, decode_config
from driver.errors import ApiNotFoundError
from driver.feature_file import FeatureFile
from driver.inventory.host import Host
from driver.kube.client import APPLY_PATCH, KubeClient
from driver.kube.node_labels import MANAGER, NodeLabels
from driver.label_writer import LabelWriter
from driver.labels import TIMESTAMP
from driver.localcluster.apiserver import ApiServer, Fault
from driver.model.snapshot import Problem, Snapshot
from tests.unit.slices.helpers import snapshot
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

NODE = "node-a"
PATH = f"/api/v1/nodes/{NODE}"
FOREIGN = {"kubernetes.io/hostname": NODE, "nvidia.com/mig.config": "all-1g.10gb", "nvidia.com/gpu.present": "true"}


class Seen:
    """What was told and counted."""

    def __init__(self) -> None:
        self.events: list[tuple[str, str]] = []
        self.writes: list[str] = []

    def emit(self, reason: str, message: str, *, warning: bool = False) -> None:
        assert warning
        self.events.append((reason, message))

    def labels_written(self, error_type: str = "") -> None:
        self.writes.append(error_type)


class Bench:
    """A Node, and a writer that runs."""

    def __init__(self, server: ApiServer, client: KubeClient, root: Path) -> None:
        self.server, self.client, self.root, self.seen = server, client, root, Seen()

    async def node(self) -> dict[str, Any]:
        return await self.client.get(PATH)

    async def labels(self) -> dict[str, str]:
        return dict((await self.node())["metadata"].get("labels") or {})

    async def product(self) -> str | None:
        return (await self.labels()).get("nvidia.com/gpu.product")

    def writes(self) -> list[Any]:
        return [call for call in self.server.audit.calls if call.writes and call.resource == "nodes"]

    @contextlib.asynccontextmanager
    async def writer(self, spec: str = "h100:2", *, place: Any = None, **more: Any) -> AsyncIterator[LabelWriter]:
        where = place or NodeLabels(self.client, NODE, now=lambda: 1700000000.9)
        made = LabelWriter(where, Host(self.root, fake=True), tell=self.seen, observer=self.seen, **more)
        made.configure(PluginConfig())
        if spec:
            made.publish(snapshot(spec))
        task = asyncio.create_task(made.run())
        try:
            yield made
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    server = ApiServer(tmp_path / "api")
    await server.start()
    async with KubeClient.from_kubeconfig(server.kubeconfig) as client:
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE, "labels": FOREIGN}}
        await client.create("/api/v1/nodes", node)
        server.audit.calls.clear()
        yield Bench(server, client, tmp_path / "sys")
    await server.stop()


# --- the Node ---------------------------------------------------------------------------------------------------------


async def test_labels_are_applied_beside_foreign_ones_by_an_own_manager(bench):
    async with bench.writer():
        await until(bench.product)
    labels = await bench.labels()
    assert labels.items() >= FOREIGN.items()
    assert labels["nvidia.com/gpu.product"] == "NVIDIA-H100-80GB-HBM3"
    assert labels["nvidia.com/gpu.mode"] == "compute"
    assert labels[TIMESTAMP] == "1700000000"
    entries = {entry["manager"]: entry for entry in (await bench.node())["metadata"]["managedFields"]}
    own = entries[MANAGER]["fieldsV1"]["f:metadata"]["f:labels"]
    assert {f"f:{key}" for key in labels.keys() - FOREIGN.keys()} == own.keys()
    assert [call.verb for call in bench.writes()] == ["patch"]
    assert bench.seen.writes == [""]


async def test_right_labels_are_not_written_again_by_this_or_the_next_process(bench):
    async with bench.writer() as writer:
        await until(bench.product)
        before = await bench.node()
        writer.publish(replace(snapshot("h100:2"), problems=(Problem(object="gpu-0", message="something else"),)))
        writer.configure(PluginConfig())
    async with bench.writer("") as writer:
        writer._place._now = lambda: 1800000000.0  # time alone is no reason
        writer.publish(snapshot("h100:2"))
        await until(lambda: writer._written is not None)
    assert await bench.node() == before
    assert len(bench.writes()) == 1


async def test_what_changes_is_written_and_what_is_no_more_goes(bench):
    mixed = decode_config({"flags": {"migStrategy": "mixed"}}, "config")
    async with bench.writer("h100@mig=1g.10gb*2,h100") as writer:
        writer.configure(mixed)

        async def profile() -> str | None:
            return (await bench.labels()).get("nvidia.com/mig-1g.10gb.count")

        assert await until(profile) == "2"
        writer.publish(snapshot("l4"))
        await until(lambda: _is(bench.product, "NVIDIA-L4"))
    labels = await bench.labels()
    assert not [key for key in labels if "mig-" in key]
    assert labels.items() >= FOREIGN.items()
    assert labels["nvidia.com/mig.strategy"] == "mixed"


async def _is(get: Any, value: Any) -> bool:
    return await get() == value


async def test_labels_of_other_managers_are_taken_over(bench):
    theirs = {"nvidia.com/gpu.product": "old", "nvidia.com/gpu.count": "2", "nvidia.com/gpu.deploy.x": "true"}
    body = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE, "labels": theirs}}
    await bench.client.patch(PATH, body, content_type=APPLY_PATCH, query={"fieldManager": "gpu-feature-discovery"})
    async with bench.writer():
        await until(lambda: _is(bench.product, "NVIDIA-H100-80GB-HBM3"))
        # The peer goes, and gives up what it set: what is ours stays, what is its own goes.
        body["metadata"]["labels"] = {}
        await bench.client.patch(PATH, body, content_type=APPLY_PATCH, query={"fieldManager": "gpu-feature-discovery"})
        labels = await bench.labels()
    assert labels["nvidia.com/gpu.count"] == "2"
    assert "nvidia.com/gpu.deploy.x" not in labels
    assert bench.seen.events == []


@pytest.mark.parametrize("value", ["by-hand", None])
async def test_what_somebody_changes_or_removes_is_repaired(bench, value):
    async with bench.writer():
        await until(bench.product)
        await bench.client.patch(PATH, {"metadata": {"labels": {"nvidia.com/gpu.product": value}}})
        await until(lambda: _is(bench.product, "NVIDIA-H100-80GB-HBM3"))
    assert bench.seen.events == []


async def test_who_changes_them_again_and_again_is_told_of_and_not_fought(bench):
    async with bench.writer():
        await until(bench.product)

        async def fought() -> bool:
            await bench.client.patch(PATH, {"metadata": {"labels": {"nvidia.com/gpu.product": "theirs"}}})
            await asyncio.sleep(0.1)
            return bool(bench.seen.events)

        await until(fought)
        [(reason, message)] = bench.seen.events
    assert reason == "NodeLabelsContested"
    assert "nvidia.com/gpu.product" in message
    assert "stop the other one" in message


async def test_A_new_labels_are_written_even_while_an_old_fight_pauses(bench):
    async with bench.writer() as writer:
        await until(bench.product)
        writer._repairs.pause = lambda now: 3600.0
        await bench.client.patch(PATH, {"metadata": {"labels": {"nvidia.com/gpu.product": "theirs"}}})
        await until(lambda: bench.seen.events)
        writer.publish(snapshot("l4"))
        await until(lambda: _is(bench.product, "NVIDIA-L4"))


async def test_a_node_that_may_not_be_patched_is_told_once(bench):
    words = 'nodes "n" is forbidden: User "u" cannot patch resource "nodes" in API group "" at the cluster scope'
    fault = bench.server.faults.add(Fault.on("patch", "nodes", status=403, message=words))
    async with bench.writer() as writer:
        writer._long_pause.next = lambda error=None: 0.01
        await until(lambda: fault.hits >= 3)
        [(reason, message)] = bench.seen.events
        assert reason == "NodeLabelsNotWritten"
        assert "cannot patch" in message
        assert "a role has to permit it: apply those of deploy/base" in message
        assert message.endswith("set labels to off")
        bench.server.faults.clear()
        await until(bench.product)
    assert bench.seen.writes[:3] == ["ApiForbiddenError"] * 3


async def test_after_a_refusal_the_pause_is_long_but_news_are_tried_at_once(bench):
    bench.server.faults.add(Fault.on("patch", "nodes", status=403, times=1))
    async with bench.writer() as writer:
        await until(lambda: bench.seen.events)
        assert await bench.product() is None
        writer.publish(snapshot("l4"))
        await until(lambda: _is(bench.product, "NVIDIA-L4"))


@pytest.mark.parametrize("status", [409, 429, 500, 503])
async def test_what_passes_is_tried_again(bench, status):
    bench.server.faults.add(Fault.on("patch", "nodes", status=status, times=1))
    async with bench.writer():
        await until(bench.product)
    assert bench.seen.writes[-1] == ""
    assert len(bench.seen.writes) == 2


async def test_without_the_right_to_watch_labels_are_written_all_the_same(bench):
    fault = bench.server.faults.add(Fault.on("watch", "nodes", status=403))
    async with bench.writer():
        await until(bench.product)
        await until(lambda: fault.hits >= 2)
    assert [reason for reason, _ in bench.seen.events] == ["NodeLabelsNotWatched"]


async def test_the_node_comes_late(bench):
    await bench.client.delete(PATH)
    async with bench.writer():
        await until(lambda: bench.seen.events)
        assert "not found" in bench.seen.events[0][1]
        await bench.client.create("/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}})
        await until(bench.product)


async def test_a_node_that_is_made_anew_is_labelled_anew(bench):
    async with bench.writer():
        await until(bench.product)
        await bench.client.delete(PATH)
        await bench.client.create("/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}})
        await until(bench.product)


async def test_a_node_that_is_gone_is_never_made(bench):
    place = NodeLabels(bench.client, NODE)
    await place._read()
    await bench.client.delete(PATH)
    with pytest.raises(ApiNotFoundError):
        await place.apply({"nvidia.com/gpu.count": "1"})
    assert (await bench.client.list("/api/v1/nodes"))["items"] == []


async def test_unavailable_gpus_do_not_cost_the_labels_of_before(bench):
    async with bench.writer():
        await until(bench.product)
    async with bench.writer("") as writer:
        down = Snapshot(problems=(Problem(object="nvml", message="no library"),))
        assert down.unavailable
        writer.publish(down)
        assert writer._wanted is None
        writer.publish(Snapshot())  # a node that lost its GPUs for good
        await until(lambda: _is(bench.product, None))
    assert await bench.labels() == FOREIGN


@pytest.mark.parametrize("remove", [True, False])
async def test_labels_go_or_stay_at_the_end(bench, remove):
    async with bench.writer(remove_at_end=remove) as writer:
        await until(bench.product)
    await writer.stop()
    assert (await bench.labels() == FOREIGN) == remove
    assert (await bench.product() is None) == remove


async def test_what_can_not_be_removed_at_the_end_holds_nothing_up(bench, caplog):
    async with bench.writer(remove_at_end=True) as writer:
        await until(bench.product)
    bench.server.faults.add(Fault.on("patch", "nodes", status=403))
    await writer.stop()
    assert "stay" in caplog.text


async def test_the_timestamp_is_off_if_so_set(bench):
    async with bench.writer(timestamp=False):
        await until(bench.product)
    assert TIMESTAMP not in await bench.labels()


async def test_the_timestamp_is_off_if_the_peers_config_says_so(bench):
    async with bench.writer("") as writer:
        writer.configure(decode_config({"flags": {"gfd": {"noTimestamp": True}}}, "config"))
        writer.publish(snapshot("l4"))
        await until(bench.product)
    assert TIMESTAMP not in await bench.labels()


async def test_a_bug_costs_labels_only(bench, caplog):
    async with bench.writer() as writer:
        await until(bench.product)
        writer._place.differing = None
        writer.publish(snapshot("l4"))
        await until(lambda: "internal error" in caplog.text)
        del writer._place.differing
        writer.publish(snapshot("t4"))
        await until(lambda: _is(bench.product, "Tesla-T4"))


async def test_the_peers_file_with_the_machines_type_is_read(bench, tmp_path):
    file = tmp_path / "machine"
    file.write_text("NVIDIA DGX H100\n")
    config = decode_config({"flags": {"gfd": {"machineTypeFile": str(file)}}}, "config")
    async with bench.writer() as writer:
        writer.configure(config)

        async def machine() -> bool:
            return (await bench.labels()).get("nvidia.com/gpu.machine") == "NVIDIA-DGX-H100"

        await until(machine)


# --- the file ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def feature(tmp_path: Path) -> Path:
    (tmp_path / "features.d").mkdir()
    return tmp_path / "features.d" / "gpu-dra"


def content(file: Path) -> dict[str, str]:
    return dict(line.split("=") for line in file.read_text().splitlines())


async def test_labels_in_a_feature_file(bench, feature):
    async with bench.writer(place=FeatureFile(feature, now=lambda: 1700000000.0)):
        await until(feature.exists)
    found = content(feature)
    assert found["nvidia.com/gpu.product"] == "NVIDIA-H100-80GB-HBM3"
    assert found[TIMESTAMP] == "1700000000"
    assert list(found) == sorted(found)
    assert feature.stat().st_mode & 0o777 == 0o644
    assert bench.writes() == []
    assert [path.name for path in feature.parent.iterdir()] == ["gpu-dra"]


async def test_a_right_file_is_left_alone_and_a_wrong_one_repaired(bench, feature):
    async with bench.writer(place=FeatureFile(feature)):
        await until(feature.exists)
    before = feature.stat().st_ino
    async with bench.writer(place=FeatureFile(feature)) as writer:
        await until(lambda: writer._written is not None)
        assert feature.stat().st_ino == before
        feature.write_text("nvidia.com/gpu.product=x\n")
        await until(lambda: "nvidia.com/gpu.count" in feature.read_text())
        feature.unlink()
        await until(feature.exists)


async def test_no_directory_is_told_and_waited_for(bench, feature):
    feature.parent.rmdir()
    async with bench.writer(place=FeatureFile(feature)):
        await until(lambda: bench.seen.events)
        assert "install node-feature-discovery" in bench.seen.events[0][1]
        feature.parent.mkdir()
        await until(feature.exists)


async def test_a_feature_file_goes_at_the_end_if_so_set(bench, feature):
    async with bench.writer(place=FeatureFile(feature), remove_at_end=True) as writer:
        await until(feature.exists)
    await writer.stop()
    assert not feature.exists()
