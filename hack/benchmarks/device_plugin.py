"""The device-plugin API: Allocate against an empty call, the first list of 1,000 replicas, preferred sets."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
import time
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc.aio

from driver._pb import device_plugin_v1beta1_pb2 as pb
from driver._pb import device_plugin_v1beta1_pb2_grpc as pb_grpc
from driver.config.device_plugin import PluginConfig, decode_config
from driver.deviceplugin.links import Links
from driver.deviceplugin.prefer import Preference
from driver.deviceplugin.resources import offer
from driver.inventory.fake import FakeInventory
from driver.model.ownership import Owner, Ownership
from driver.monitor.observation import advance
from hack.benchmarks.floor import timed
from hack.benchmarks.report import Report, Row, median
from hack.benchmarks.world import World

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

CONFIG = """\
version: v1
sharing:
  timeSlicing:
    resources:
      - {name: nvidia.com/gpu, devices: 4, replicas: 250, rename: nvidia.com/shared}
"""
"""Of eight GPUs, four stay whole and four have 1,000 replicas."""


class Kubelet(pb_grpc.RegistrationServicer):
    """The kubelet's registration of device plugins."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._endpoints: dict[str, Path] = {}
        self._registered: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)

    async def Register(self, request: pb.RegisterRequest, context: Any) -> pb.Empty:  # noqa: N802
        """Note where a resource is served."""
        self._endpoints[request.resource_name] = self._directory / request.endpoint
        self._registered[request.resource_name].set()
        return pb.Empty()

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[Kubelet]:
        """Serve until the block ends."""
        self._directory.mkdir(parents=True)
        server = grpc.aio.server()
        pb_grpc.add_RegistrationServicer_to_server(self, server)  # type: ignore[no-untyped-call]
        server.add_insecure_port(f"unix:{self._directory / 'kubelet.sock'}")
        await server.start()
        yield self
        await server.stop(0)

    async def stub(self, resource: str) -> Any:
        """Wait for a resource, and return a client of it that is connected."""
        async with asyncio.timeout(10):
            await self._registered[resource].wait()
        stub: Any = pb_grpc.DevicePluginStub(grpc.aio.insecure_channel(f"unix:{self._endpoints[resource]}"))  # type: ignore[no-untyped-call]
        await stub.GetDevicePluginOptions(pb.Empty(), wait_for_ready=True)
        return stub


async def device_plugin(report: Report, rounds: int) -> None:
    """Measure an agent whose GPUs are the device-plugin API's."""
    with tempfile.TemporaryDirectory(prefix="gb", dir="/tmp") as directory:
        config = Path(directory) / "config.yaml"
        config.write_text(CONFIG)
        world = World(Path(directory), extra=("--device-plugin-config", str(config)))
        kubelet = Kubelet(world.kubelet_root / "device-plugins")
        async with kubelet.serving(), world.running():
            await allocate(await kubelet.stub("nvidia.com/gpu"), report, rounds)
            await first_list(await kubelet.stub("nvidia.com/shared"), report, max(rounds // 4, 1))
            report.add(
                Row(what="resident memory, device plugin on, 8 GPUs", value=world.resident_mib(), unit="MiB", limit=70)
            )
    await preferred(report, rounds)


async def allocate(stub: Any, report: Report, rounds: int) -> None:
    """Allocate two GPUs, by CDI names; an empty call over the same socket is measured in between."""
    listed = await stub.ListAndWatch(pb.Empty()).read()
    container = pb.ContainerAllocateRequest(devices_ids=[one.ID for one in listed.devices][:2])
    request = pb.AllocateRequest(container_requests=[container])
    empty, given = [], []
    for _ in range(rounds):
        empty.append(await timed(lambda: stub.GetDevicePluginOptions(pb.Empty())))
        given.append(await timed(lambda: stub.Allocate(request)))
    report.add(Row(what="Allocate, two GPUs", value=median(given), floor=median(empty), limit=2, floor_is="empty RPC"))


async def first_list(stub: Any, report: Report, rounds: int) -> None:
    """Open a list and read all of it."""
    samples = []
    for _ in range(rounds):
        stream = stub.ListAndWatch(pb.Empty())
        samples.append(await timed(stream.read))
        stream.cancel()
    report.add(Row(what="ListAndWatch, 1,000 replicas, first list", value=median(samples), limit=20))


async def preferred(report: Report, rounds: int) -> None:
    """Choose sets; this is the code's own time, without any call."""
    shared = {"sharing": {"timeSlicing": {"resources": [{"name": "gpu", "replicas": 8}]}}}
    for what, gpus, size, document in (
        ("4 of 8 GPUs", "h100:8", 4, None),
        ("4 of 16 GPUs", "h100:16", 4, None),
        ("8 of 64 replicas", "h100:8", 8, shared),
    ):
        preference, ids = await _preference(gpus, decode_config(document, "benchmark"))
        samples = [_choose(preference, ids, size) for _ in range(rounds)]
        report.add(Row(what=f"preferred allocation, {what}", value=median(samples), limit=1))


async def _preference(gpus: str, config: PluginConfig) -> tuple[Preference, list[str]]:
    snapshot = advance(None, await FakeInventory.from_spec(gpus, node_name="n").read())
    ours = Ownership(owner=Owner.DEVICE_PLUGIN, wanted=Owner.DEVICE_PLUGIN)
    snapshot = replace(snapshot, ownership={gpu.uuid: ours for gpu in snapshot.gpus})
    devices = offer(snapshot, config).resources["nvidia.com/gpu"].devices
    return Preference(devices, Links(snapshot.gpus)), [one.id for one in devices]


def _choose(preference: Preference, ids: list[str], size: int) -> float:
    began = time.perf_counter()
    preference.prefer(ids, [], size)
    return (time.perf_counter() - began) * 1000
