"""Device plugins on real sockets, and the kubelet's device manager that they register with."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import grpc.aio

from driver._pb import device_plugin_v1beta1_pb2 as pb
from driver._pb import device_plugin_v1beta1_pb2_grpc as pb_grpc
from driver.cdi.extras import Extras
from driver.cdi.fake import FakeEdits
from driver.cdi.static import StaticSpec
from driver.kubelet.device_plugin.plugins import DevicePlugins, PluginPaths
from driver.localcluster.kubelet.device_grants import Grants
from driver.localcluster.kubelet.device_manager import DeviceManager
from driver.localcluster.kubelet.times import Times
from driver.model.ownership import Owner, Ownership
from driver.root import Root
from tests.unit.deviceplugin.helpers import config
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Sequence
    from pathlib import Path

    from driver.model.snapshot import Snapshot

GPU = "nvidia.com/gpu"


@dataclass
class Heard:
    """What observers and tellers were told."""

    given: list[set[str]] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    registered: list[tuple[str, bool]] = field(default_factory=list)
    offered: dict[str, tuple[int, int]] = field(default_factory=dict)
    events: list[tuple[str, str]] = field(default_factory=list)

    def call_started(self, operation: str) -> None: ...
    def call_finished(self, operation: str, seconds: float) -> None: ...

    def allocated(self, resource: str, gpu_uuids: Iterable[str]) -> None:
        self.given.append(set(gpu_uuids))

    def allocate_refused(self, resource: str, code: str) -> None:
        self.refused.append(code)

    def resource_registered(self, resource: str, registered: bool) -> None:
        self.registered.append((resource, registered))

    def resource_offered(self, resource: str, *, healthy: int, unhealthy: int) -> None:
        self.offered[resource] = (healthy, unhealthy)

    def emit(self, reason: str, message: str, *, warning: bool = False) -> None:
        self.events.append((reason, message))

    def told(self, reason: str) -> str:
        return next((message for found, message in self.events if found == reason), "")


class Plugins:
    """Device plugins under test, in a directory of a kubelet's."""

    def __init__(self, root: Path, pod_uid: str = "") -> None:
        self.directory = root / "dp"
        self.cdi = root / "cdi"
        self.heard = Heard()
        self.files = StaticSpec(self.cdi, FakeEdits(root / "bin"))
        paths = PluginPaths(directory=self.directory, pod_uid=pod_uid)
        self.root = root / "host"
        self.extras = Extras(Root(self.root), Root(self.root))
        self.plugins = DevicePlugins(paths, self.files, self.heard, self.heard, extras=self.extras)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Plugins]:
        task = asyncio.create_task(self.plugins.run())
        try:
            yield self
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await self.plugins.stop(0.2)

    @contextlib.asynccontextmanager
    async def stub(self, endpoint: str = "nvidia-gpu") -> AsyncIterator[pb_grpc.DevicePluginStub]:
        async with grpc.aio.insecure_channel(f"unix:{self.directory / endpoint}.sock") as channel:
            yield pb_grpc.DevicePluginStub(channel)

    async def allocate(self, *containers: Sequence[str], endpoint: str = "nvidia-gpu") -> list[Any]:
        requests = [pb.ContainerAllocateRequest(devices_ids=ids) for ids in containers]
        async with self.stub(endpoint) as stub:
            answer = await stub.Allocate(pb.AllocateRequest(container_requests=requests), timeout=5)
        return list(answer.container_responses)

    async def refused(self, *containers: Sequence[str], endpoint: str = "nvidia-gpu") -> tuple[str, str]:
        try:
            await self.allocate(*containers, endpoint=endpoint)
        except grpc.aio.AioRpcError as exc:
            return exc.code().name, str(exc.details())
        raise AssertionError(f"{containers} were given")


class Kubelet:
    """The embedded kubelet's device manager, which may be started several times."""

    def __init__(self, root: Path) -> None:
        self.directory = root / "dp"
        self._state = root / "grants.json"
        self.changes = 0
        self.manager: DeviceManager

    async def start(self) -> None:
        self.directory.mkdir(exist_ok=True)
        self.manager = DeviceManager(self.directory, Grants(self._state), Times(), self._changed)
        await self.manager.start()

    async def stop(self) -> None:
        await self.manager.aclose()

    def counts(self, resource: str = GPU) -> tuple[int, int] | None:
        """Return (capacity, allocatable)."""
        return self.manager.resources().get(resource)

    def _changed(self) -> None:
        self.changes += 1


async def offered(plugins: Plugins, kubelet: Kubelet, found: Snapshot, document: object = None, **flags: str) -> None:
    """Offer what a node has, and wait until the kubelet has it."""
    plugins.plugins.configure(config(document, **flags))
    plugins.plugins.publish(found)
    await until(lambda: sum(healthy for healthy, _ in plugins.heard.offered.values()) > 0)
    await until(lambda: all(kubelet.counts(name) == (sum(counts), counts[0])
                            for name, counts in plugins.heard.offered.items()))  # fmt: skip


def ids_of(found: Snapshot) -> list[str]:
    return [gpu.uuid for gpu in found.gpus]


def drained(found: Snapshot, index: int) -> Snapshot:
    owners = {**found.ownership, found.gpus[index].uuid: Ownership(owner=Owner.WITHHELD, wanted=Owner.DRA)}
    return replace(found, ownership=MappingProxyType(owners))
