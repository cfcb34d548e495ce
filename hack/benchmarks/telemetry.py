"""Telling the use of GPUs: what a scrape takes, and what it costs to be able to answer."""

from __future__ import annotations

import asyncio
import re
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp
import grpc.aio

from driver._pb import pod_resources_v1_pb2 as pb
from driver._pb import pod_resources_v1_pb2_grpc as pb_grpc
from driver.inventory.fake import FakeInventory
from driver.model.snapshot import Snapshot
from driver.telemetry.exposition import exposition
from hack.benchmarks.report import Report, Row, median
from hack.benchmarks.world import NODE, World

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from driver.inventory.base import Reading
    from driver.model.usage import GpuUsage

GPUS = "h100:8@mig=1g.10gb*7"
PARTITIONS = 8 * 7
EVERYTHING = ("--ownership", "dra;device-plugin:index=7", "--dynamic-mig", "off")


class Pods(pb_grpc.PodResourcesListerServicer):
    """The kubelet's pod resources API, with a pod for each claim."""

    def __init__(self) -> None:
        self.pods: list[pb.PodResources] = []

    def use(self, claim: str, device: str) -> None:
        """Add a pod that uses a device by a claim."""
        resource = pb.ClaimResource(driver_name="gpu.nvidia.com", pool_name=NODE, device_name=device)
        dynamic = pb.DynamicResource(claim_name=claim, claim_namespace="default", claim_resources=[resource])
        container = pb.ContainerResources(name="main", dynamic_resources=[dynamic])
        self.pods.append(pb.PodResources(name=f"pod-of-{claim}", namespace="default", containers=[container]))

    async def List(self, request: Any, context: Any) -> pb.ListPodResourcesResponse:  # noqa: N802 - the API's name
        """Answer as a kubelet does."""
        return pb.ListPodResourcesResponse(pod_resources=self.pods)


async def telemetry(report: Report, rounds: int, idle_seconds: float) -> None:
    """Fill a node of 8 GPUs with 7 partitions each, seven in eight of them held, and scrape it."""
    with tempfile.TemporaryDirectory(prefix="gt", dir="/tmp") as directory:
        world = World(Path(directory), gpus=GPUS, extra=EVERYTHING)
        pods = Pods()
        server = grpc.aio.server()
        pb_grpc.add_PodResourcesListerServicer_to_server(pods, server)  # type: ignore[no-untyped-call]
        async with world.running(), aiohttp.ClientSession() as session:
            server.add_insecure_port(f"unix:{world.kubelet_root / 'pod-resources' / 'kubelet.sock'}")
            await server.start()
            await _hold(world, pods)
            url = f"http://127.0.0.1:{_port(world)}/metrics"
            await _until_told(session, url, "dra_mig_device_uuid", PARTITIONS)
            first = median(await asyncio.to_thread(_rendered, rounds))
            report.add(Row(what="text of 8 GPUs x 7 partitions, once per look", value=first, limit=50))
            report.add(
                Row(what="scrape, 8 GPUs x 7 partitions", value=median(await _scrapes(session, url, rounds)), limit=50)
            )
            report.extend(await _cost(world, session, url, max(idle_seconds, 20.0)))
            await server.stop(0)


async def _hold(world: World, pods: Pods) -> None:
    """Prepare a claim for each partition of the GPUs that are DRA's."""
    for gpu in range(7):
        for start in range(7):
            device = f"gpu-{gpu}-mig-1g10gb-19-{start}"
            claim = await world.claim([device])
            await world.prepare(claim)
            pods.use(claim.name, device)


def _port(world: World) -> int:
    found = re.search(r"serving health and metrics on 127\.0\.0\.1:(\d+)", (world.root / "agent.log").read_text())
    if found is None:
        raise RuntimeError("the agent serves no metrics")
    return int(found[1])


async def _until_told(session: aiohttp.ClientSession, url: str, text: str, least: int) -> None:
    for _ in range(120):
        if (await _scrape(session, url)).count(text) >= least:
            return
        await asyncio.sleep(0.5)
    raise RuntimeError(f"{url} does not tell {text}")


def _rendered(rounds: int) -> list[float]:
    """Return the milliseconds that the first scrape after each look at the GPUs takes beyond the others."""
    inventory = FakeInventory.from_spec(GPUS, node_name=NODE)
    reading, usage = asyncio.run(_seen(inventory))
    snapshot, times = Snapshot(versions=reading.versions, gpus=reading.gpus), []
    for _ in range(rounds):
        began = time.perf_counter()
        exposition(snapshot, usage, {}, NODE).encode()
        times.append((time.perf_counter() - began) * 1000)
    return times


async def _seen(inventory: FakeInventory) -> tuple[Reading, Mapping[str, GpuUsage]]:
    return await inventory.read(), await inventory.usage()


async def _scrape(session: aiohttp.ClientSession, url: str) -> str:
    async with session.get(url) as answer:
        return await answer.text()


async def _scrapes(session: aiohttp.ClientSession, url: str, rounds: int) -> Sequence[float]:
    """Return the milliseconds of each scrape."""
    times = []
    for _ in range(rounds):
        began = time.perf_counter()
        await _scrape(session, url)
        times.append((time.perf_counter() - began) * 1000)
    return times


async def _cost(world: World, session: aiohttp.ClientSession, url: str, seconds: float) -> list[Row]:
    """Scrape every ten seconds and do nothing else."""
    await asyncio.sleep(3)
    cpu, began = world.cpu_seconds(), time.perf_counter()
    while (left := seconds - (time.perf_counter() - began)) > 0:
        await _scrape(session, url)
        await asyncio.sleep(min(10.0, left))
    share = (world.cpu_seconds() - cpu) / (time.perf_counter() - began) * 100
    return [
        Row(what="CPU, idle, telemetry and a scrape every 10 s", value=share, unit="%", limit=1),
        Row(what="resident memory, everything on", value=world.resident_mib(), unit="MiB", limit=70),
    ]
