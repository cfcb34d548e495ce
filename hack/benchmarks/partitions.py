"""Slices of a large node that is partitioned for claims: how long they take to build, how many writes they cost."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from driver.inventory.fake_gpus import build_gpus
from driver.inventory.fake_spec import load_node
from driver.inventory.profiles import load_products
from driver.kube.client import KubeClient
from driver.kube.resources import ResourceApi
from driver.localcluster.apiserver import ApiServer, Features
from driver.model.health import Effect, Health, Taint
from driver.model.snapshot import DriverVersions, Snapshot
from driver.slices.build import BuildOptions, build
from driver.slices.publish import SlicePublisher
from hack.benchmarks.report import Report, Row, median

NODE = "bench"
OPTIONS = BuildOptions(node_name=NODE, partitions=True)


class Counts:
    """Counts writes; hears no Events."""

    def __init__(self) -> None:
        self.writes: Counter[str] = Counter()

    def emit(self, reason: str, message: str, *, warning: bool = False) -> None:
        """Drop an Event."""

    def slice_written(self, verb: str) -> None:
        """Count a write."""
        self.writes[verb] += 1

    def publish_failed(self, error_type: str) -> None:
        """Count a failure as a write, so that it shows."""
        self.writes[error_type] += 1

    def take(self) -> int:
        """Return the count since the last time."""
        number = self.writes.total()
        self.writes.clear()
        return number


def snapshot(spec: str) -> Snapshot:
    """Return fake GPUs that are all partitioned for claims."""
    found = build_gpus(load_node(spec, load_products()), NODE)
    versions = DriverVersions(driver="580.105.08", cuda="13.0")
    return Snapshot(versions=versions, gpus=found, dynamic_mig=frozenset(gpu.uuid for gpu in found))


async def partitions(report: Report, rounds: int = 50) -> None:
    """Build the slices of 16 H100; publish them; then let a claim cut a GPU, and a GPU fall ill."""
    idle = snapshot("h100:16")
    report.add(Row(what="slices of 16 H100, all placements", value=median(_built(idle, rounds)), limit=50))
    specs = build(idle, OPTIONS)
    devices = sum(len(spec.get("devices", ())) for spec in specs)
    cut = snapshot("h100@mig=1g.10gb*7,h100:15")
    taint = Taint("gpu.nvidia.com/xid", "79", Effect.NO_SCHEDULE)
    ill = replace(idle, health=MappingProxyType({idle.gpus[0].uuid: Health(healthy=False, taints=(taint,))}))
    counts = Counts()
    with tempfile.TemporaryDirectory(prefix="gb", dir="/tmp") as directory:
        server = ApiServer(Path(directory), Features())
        await server.start()
        server.store.create("nodes", {"metadata": {"name": NODE}})
        async with KubeClient.from_kubeconfig(server.kubeconfig) as client:
            publisher = SlicePublisher(client, ResourceApi(client), OPTIONS, events=counts, metrics=counts)
            task = asyncio.create_task(publisher.run())
            for what, wanted, limit in (
                (f"writes of {devices} devices in {len(specs)} slices", idle, len(specs)),
                ("writes when a claim cuts a GPU in 7", cut, 0),
                ("writes when a GPU falls ill", ill, 1),
            ):
                await _published(publisher, wanted)
                report.add(Row(what=what, value=counts.take(), unit="", limit=limit))
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        await server.stop()


def _built(wanted: Snapshot, rounds: int) -> list[float]:
    samples = []
    for _ in range(rounds):
        began = time.perf_counter()
        build(wanted, OPTIONS)
        samples.append((time.perf_counter() - began) * 1000)
    return samples


async def _published(publisher: SlicePublisher, wanted: Snapshot) -> None:
    publisher.publish(wanted)
    async with asyncio.timeout(30):
        while not publisher.state.complete:  # noqa: ASYNC110  # the state is there to be read, by probes
            await asyncio.sleep(0.005)
