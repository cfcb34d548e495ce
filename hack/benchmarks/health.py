"""Health: from a fault to the slice and to the kubelet's stream, and the slice writes that a storm of events causes."""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc.aio

from driver._pb import dra_health_v1_pb2 as pb
from driver._pb import dra_health_v1_pb2_grpc as pb_grpc
from driver.files import write_atomic
from hack.benchmarks.report import Report, Row, median
from hack.benchmarks.world import NODE, SLICES, World

if TYPE_CHECKING:
    from collections.abc import Callable

GPU = "gpu-3"
STORM = 5.0
"""Seconds."""
RATE = 1000
"""Events per second."""


async def measure(report: Report, rounds: int) -> None:
    """Break a GPU of an agent and look how soon it is told; then break it a thousand times a second."""
    with tempfile.TemporaryDirectory(prefix="gb", dir="/tmp") as directory:
        world = World(Path(directory))
        async with world.running():
            await asyncio.sleep(2)
            await _faults(world, report, rounds)
            await _storm(world, report)


async def _faults(world: World, report: Report, rounds: int) -> None:
    """Report an XID and recover, again and again; each is one change, and should be one write."""
    in_slice, in_stream, recovered = [], [], []
    before = _writes(world)
    for _ in range(rounds):
        slices, stream = await _both(world, lambda: _break(world, {"xid": 79}), healthy=False)
        in_slice.append(slices)
        in_stream.append(stream)
        await asyncio.sleep(1.1)
        slices, _ = await _both(world, lambda: _break(world, {}), healthy=True)
        recovered.append(slices)
        await asyncio.sleep(1.1)
    writes = (_writes(world) - before) / rounds / 2
    report.add(Row(what="an XID to its taint in the slice", value=median(in_slice), limit=1000))
    report.add(Row(what="the slowest of them", value=max(in_slice), limit=1000))
    report.add(Row(what="an XID to the kubelet's health stream", value=median(in_stream), limit=1000))
    report.add(Row(what="a recovery to the slice", value=median(recovered), limit=2000))
    report.add(Row(what="slice writes per change of health", value=writes, unit="", limit=1))


async def _storm(world: World, report: Report) -> None:
    """Report a thousand XIDs a second; the publisher writes at most once a second."""
    await asyncio.sleep(2)
    before, cpu, began, sent = _writes(world), world.cpu_seconds(), time.perf_counter(), 0
    while (passed := time.perf_counter() - began) < STORM:
        due = int(passed * RATE) - sent
        if due > 0:
            _break(world, {"xid": [(sent + number) % 150 + 1 for number in range(due)]})
            sent += due
        await asyncio.sleep(0.005)
    share = (world.cpu_seconds() - cpu) / (time.perf_counter() - began) * 100
    await asyncio.sleep(1.5)
    report.add(Row(what="events per second, in a storm", value=sent / STORM, unit=""))
    report.add(
        Row(what="slice writes per second of it", value=(_writes(world) - before) / (STORM + 1), unit="", limit=1)
    )
    report.add(Row(what="CPU in the storm", value=share, unit="%"))
    _break(world, {})


async def _both(world: World, change: Callable[[], None], *, healthy: bool) -> tuple[float, float]:
    """Change something; return the milliseconds until the slice and the stream say so."""
    ready = asyncio.Barrier(3)
    watchers = [
        asyncio.create_task(_slice_says(world, ready, healthy=healthy)),
        asyncio.create_task(_stream_says(world, ready, healthy=healthy)),
    ]
    async with asyncio.timeout(30):
        await ready.wait()
        began = time.perf_counter()
        change()
        slices, stream = await asyncio.gather(*watchers)
    return (slices - began) * 1000, (stream - began) * 1000


async def _slice_says(world: World, ready: asyncio.Barrier, *, healthy: bool) -> float:
    listed = await world.api.list(SLICES, field_selector=f"spec.nodeName={NODE}")
    version = listed["metadata"]["resourceVersion"]
    await ready.wait()
    async for event in world.api.watch(SLICES, field_selector=f"spec.nodeName={NODE}", resource_version=version):
        if event.type == "MODIFIED" and _is_tainted(event.object) is not healthy:
            return time.perf_counter()
    raise RuntimeError("the watch ended")


async def _stream_says(world: World, ready: asyncio.Barrier, *, healthy: bool) -> float:
    endpoint = world.kubelet_root / "plugins/gpu.nvidia.com/dra.sock"
    wanted = pb.HEALTHY if healthy else pb.UNHEALTHY
    async with grpc.aio.insecure_channel(f"unix:{endpoint}") as channel:
        stub: Any = pb_grpc.DRAResourceHealthStub(channel)  # type: ignore[no-untyped-call]
        stream = stub.NodeWatchResources(pb.NodeWatchResourcesRequest())
        await stream.read()
        await ready.wait()
        while True:
            answer = await stream.read()
            if any(one.device.device_name == GPU and one.health == wanted for one in answer.devices):
                stream.cancel()
                return time.perf_counter()


def _is_tainted(item: dict[str, Any]) -> bool:
    for device in item["spec"].get("devices") or ():
        if device["name"] == GPU:
            return any(taint["effect"] == "NoSchedule" for taint in device.get("taints") or ())
    return False


def _break(world: World, faults: dict[str, Any]) -> None:
    file = world.kubelet_root / "plugins/gpu.nvidia.com/faults.yaml"
    write_atomic(file, json.dumps({"gpus": {GPU: faults}}).encode(), durable=False)


def _writes(world: World) -> int:
    calls = [json.loads(line) for line in world.audit.read_text().splitlines()]
    return sum(call["resource"] == "resourceslices" and call["verb"] in {"create", "update", "patch"} for call in calls)
