"""A plugin on real sockets under a short kubelet root, and what a kubelet does with it."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import grpc.aio
import pytest

from driver._pb import dra_v1_pb2 as v1
from driver._pb import dra_v1_pb2_grpc as v1_grpc
from driver._pb import pluginregistration_pb2 as reg
from driver._pb import pluginregistration_pb2_grpc as reg_grpc
from driver.claims.record import PreparedDevice
from driver.kubelet.plugin import KubeletPaths, KubeletPlugin
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence
    from pathlib import Path

    from driver.claims.allocation import ClaimRef
    from driver.errors import DriverError


def prepared(uid: str, share_id: str | None = None) -> PreparedDevice:
    return PreparedDevice(
        requests=("gpu",), pool="node1", device="gpu-0", cdi_ids=(f"example.com/claim={uid}-gpu-0",), share_id=share_id
    )


@dataclass
class ScriptedClaims:
    """A claim service whose outcomes a test sets; it records what reached it."""

    outcomes: dict[str, Any] = field(default_factory=dict)
    calls: list[tuple[str, tuple[ClaimRef, ...]]] = field(default_factory=list)
    deadlines: list[float] = field(default_factory=list)
    since: int | None = None
    gate: asyncio.Event | None = None
    during: Callable[[], None] | None = None
    cancelled: int = 0
    together: int = 0
    most_together: int = 0

    async def prepare(
        self, refs: Sequence[ClaimRef], *, deadline: float, since: int | None = None
    ) -> dict[str, tuple[PreparedDevice, ...] | DriverError]:
        self.since = since
        await self._enter("prepare", refs, deadline)
        return {ref.uid: self.outcomes.get(ref.uid, (prepared(ref.uid),)) for ref in refs if ref.uid not in self._mute}

    async def unprepare(self, refs: Sequence[ClaimRef], *, deadline: float) -> dict[str, DriverError | None]:
        await self._enter("unprepare", refs, deadline)
        return {ref.uid: self.outcomes.get(ref.uid) for ref in refs if ref.uid not in self._mute}

    @property
    def _mute(self) -> set[str]:
        return {uid for uid, outcome in self.outcomes.items() if outcome is ...}

    async def _enter(self, operation: str, refs: Sequence[ClaimRef], deadline: float) -> None:
        self.calls.append((operation, tuple(refs)))
        self.deadlines.append(deadline - asyncio.get_running_loop().time())
        if self.during is not None:
            self.during()
        if self.gate is not None:
            self.together += 1
            self.most_together = max(self.most_together, self.together)
            try:
                await self.gate.wait()
            except asyncio.CancelledError:
                self.cancelled += 1
                raise
            finally:
                self.together -= 1


@dataclass
class Seen:
    """What a plugin's observer was told."""

    started: list[str] = field(default_factory=list)
    finished: list[str] = field(default_factory=list)
    failures: list[tuple[str, str]] = field(default_factory=list)
    registrations: list[bool] = field(default_factory=list)
    warnings: list[tuple[str, str]] = field(default_factory=list)

    def call_started(self, operation: str) -> None:
        self.started.append(operation)

    def call_finished(self, operation: str, seconds: float) -> None:
        assert seconds >= 0
        self.finished.append(operation)

    def claim_failed(self, operation: str, error_type: str) -> None:
        self.failures.append((operation, error_type))

    def registered(self, value: bool) -> None:
        self.registrations.append(value)

    def warn(self, reason: str, message: str) -> None:
        self.warnings.append((reason, message))


class Kubelet:
    """The kubelet's side: a root directory, and calls over the sockets in it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.paths = KubeletPaths(plugins=root / "plugins", registry=root / "plugins_registry")
        self.service = self.paths.plugins / "gpu.nvidia.com" / "dra.sock"
        self.registration = self.paths.registry / "gpu.nvidia.com-reg.sock"

    async def get_info(self, path: Path | None = None) -> reg.PluginInfo:
        async with grpc.aio.insecure_channel(f"unix:{path or self.registration}") as channel:
            return await reg_grpc.RegistrationStub(channel).GetInfo(reg.InfoRequest(), timeout=5)

    async def notify(self, registered: bool, error: str = "") -> None:
        status = reg.RegistrationStatus(plugin_registered=registered, error=error)
        async with grpc.aio.insecure_channel(f"unix:{self.registration}") as channel:
            await reg_grpc.RegistrationStub(channel).NotifyRegistrationStatus(status, timeout=5)

    @contextlib.asynccontextmanager
    async def connected(self, path: Path | None = None) -> AsyncIterator[v1_grpc.DRAPluginStub]:
        async with grpc.aio.insecure_channel(f"unix:{path or self.service}") as channel:
            yield v1_grpc.DRAPluginStub(channel)


def prepare_request(*uids: str) -> v1.NodePrepareResourcesRequest:
    return v1.NodePrepareResourcesRequest(claims=[v1.Claim(namespace="ns", name=f"c-{uid}", uid=uid) for uid in uids])


def unprepare_request(*uids: str) -> v1.NodeUnprepareResourcesRequest:
    return v1.NodeUnprepareResourcesRequest(claims=[v1.Claim(namespace="ns", name=f"c-{uid}", uid=uid) for uid in uids])


@pytest.fixture
def kubelet(short_tmp: Path) -> Kubelet:
    made = Kubelet(short_tmp)
    made.paths.registry.mkdir(parents=True)
    return made


@pytest.fixture
def claims() -> ScriptedClaims:
    return ScriptedClaims()


@pytest.fixture
def seen() -> Seen:
    return Seen()


@contextlib.asynccontextmanager
async def running(plugin: KubeletPlugin) -> AsyncIterator[asyncio.Task[None]]:
    """Run a plugin until the block ends."""
    task = asyncio.create_task(plugin.run())
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await plugin.stop(0.2)


@pytest.fixture
async def plugin(kubelet: Kubelet, claims: ScriptedClaims, seen: Seen) -> AsyncIterator[KubeletPlugin]:
    """A plugin that serves."""
    made = KubeletPlugin(kubelet.paths, claims, seen, warn=seen.warn)
    async with running(made):
        await until(kubelet.registration.exists)
        yield made
