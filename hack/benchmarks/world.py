"""The surroundings of a measured agent: an API server and the agent, each a process of its own, and this as kubelet."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import tempfile
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio

from driver._pb import dra_v1_pb2 as dra
from driver._pb import dra_v1_pb2_grpc as dra_grpc
from driver._pb import pluginregistration_pb2 as registration
from driver._pb import pluginregistration_pb2_grpc as registration_grpc
from driver.errors import ApiError
from driver.kube.client import KubeClient

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

NODE = "bench"
MEMORY = "/dev/shm" if os.path.isdir("/dev/shm") else None  # noqa: PTH112
"""Where CDI files go: on a node they are in /run, which is in memory."""
SLICES = "/apis/resource.k8s.io/v1/resourceslices"
CLAIMS = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"


class World:
    """Paths, processes and clients of one benchmark."""

    def __init__(self, root: Path, *, gpus: str = "h100:8", extra: Sequence[str] = (), pause: float = 0) -> None:
        self.root = root
        self._pause = pause
        self.extra = extra
        self.gpus = gpus
        self.kubelet_root = root / "k"
        self.cdi_dir = Path()
        self.audit = root / "audit.jsonl"
        self.kubeconfig = Path()
        self.api: KubeClient
        self.agent: asyncio.subprocess.Process
        self.stub: Any
        self.startup: dict[str, float] = {}

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[World]:
        """Start all, and stop all at the end."""
        with tempfile.TemporaryDirectory(prefix="gb", dir=MEMORY) as memory:
            self.cdi_dir = Path(memory)
            async with self._running():
                yield self

    @contextlib.asynccontextmanager
    async def _running(self) -> AsyncIterator[None]:
        for directory in ("plugins", "plugins_registry", "pod-resources"):
            (self.kubelet_root / directory).mkdir(parents=True)
        server = await _spawn(
            [
                sys.executable,
                "-m",
                "driver.localcluster.apiserver",
                "--root",
                str(self.root / "api"),
                "--audit-file",
                str(self.audit),
            ],
            self.root / "apiserver.log",
        )
        try:
            assert server.stdout is not None
            self.kubeconfig = Path((await server.stdout.readline()).decode().strip())
            self.api = KubeClient.from_kubeconfig(self.kubeconfig)
            await self.api.create("/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}})
            await self._start_agent()
            yield
        finally:
            with contextlib.suppress(AttributeError):
                await _stop(self.agent)
            with contextlib.suppress(AttributeError):
                await self.api.aclose()
            await _stop(server)

    async def _start_agent(self) -> None:
        began = time.perf_counter()
        self.agent = await _spawn(
            [
                *(sys.executable, "-m", "driver", "run", "--gpus", self.gpus, "--node-name", NODE),
                *("--kubelet-root", str(self.kubelet_root), "--cdi-dir", str(self.cdi_dir)),
                *("--kubeconfig", str(self.kubeconfig), "--http-address", "127.0.0.1:0"),
                *self.extra,
            ],
            self.root / "agent.log",
        )
        published, registered = await asyncio.gather(self._published(), self._registered())
        self.startup = {"slices published": published - began, "registered": registered - began}

    async def _published(self) -> float:
        """Wait for all slices of the pool: only then is it whole to a scheduler."""
        seen: set[str] = set()
        async for event in self.api.watch(SLICES, field_selector=f"spec.nodeName={NODE}"):
            if event.type in {"ADDED", "MODIFIED"}:
                seen.add(event.object["metadata"]["name"])
                if len(seen) == event.object["spec"]["pool"]["resourceSliceCount"]:
                    return time.perf_counter()
        raise RuntimeError("the watch ended before all slices came")

    async def _registered(self) -> float:
        """Act as the kubelet's plugin watcher: connect to the socket once it is there."""
        directory = self.kubelet_root / "plugins_registry"
        while not (found := list(directory.glob("*.sock"))):
            if self.agent.returncode is not None:
                raise RuntimeError(f"the agent ended: {(self.root / 'agent.log').read_text()}")
            await asyncio.sleep(0.002)
        async with grpc.aio.insecure_channel(f"unix:{found[0]}") as channel:
            stub: Any = registration_grpc.RegistrationStub(channel)  # type: ignore[no-untyped-call]
            info = await stub.GetInfo(registration.InfoRequest(), wait_for_ready=True, timeout=10)
            await stub.NotifyRegistrationStatus(registration.RegistrationStatus(plugin_registered=True))
        moment = time.perf_counter()
        self.stub = dra_grpc.DRAPluginStub(grpc.aio.insecure_channel(f"unix:{info.endpoint}"))  # type: ignore[no-untyped-call]
        return moment

    async def rest(self) -> None:
        """Let the agent and the API server fall idle, as a kubelet's call finds them."""
        await asyncio.sleep(self._pause)

    # --- claims ------------------------------------------------------------------------------------------------------

    async def claim(self, devices: Sequence[str], *, parameters: dict[str, Any] | None = None) -> dra.Claim:
        """Create a claim that is allocated to devices, as the scheduler would leave it."""
        name = f"c-{uuid.uuid4().hex[:12]}"
        request = {"name": "r", "exactly": {"deviceClassName": "gpu.nvidia.com", "count": len(devices)}}
        created = await self.api.create(
            CLAIMS,
            {
                "apiVersion": "resource.k8s.io/v1",
                "kind": "ResourceClaim",
                "metadata": {"name": name, "namespace": "default"},
                "spec": {"devices": {"requests": [request]}},
            },
        )
        results = [{"request": "r", "driver": "gpu.nvidia.com", "pool": NODE, "device": device} for device in devices]
        allocation: dict[str, Any] = {"results": results}
        if parameters is not None:
            opaque = {"driver": "gpu.nvidia.com", "parameters": parameters}
            allocation["config"] = [{"source": "FromClaim", "opaque": opaque}]
        created["status"] = {"allocation": {"devices": allocation}}
        await self.api.update(f"{CLAIMS}/{name}/status", created)
        return dra.Claim(namespace="default", name=name, uid=created["metadata"]["uid"])

    async def forget(self, claims: Sequence[dra.Claim]) -> None:
        """Delete claims that were unprepared."""
        for claim in claims:
            with contextlib.suppress(ApiError):
                await self.api.delete(f"{CLAIMS}/{claim.name}")

    async def prepare(self, *claims: dra.Claim) -> None:
        """Prepare in one call; fail loudly."""
        answer = await self.stub.NodePrepareResources(dra.NodePrepareResourcesRequest(claims=claims))
        errors = [one.error for one in answer.claims.values() if one.error]
        if errors or len(answer.claims) != len(claims):
            raise RuntimeError(f"prepare failed: {errors}")

    async def unprepare(self, *claims: dra.Claim) -> None:
        """Unprepare in one call; fail loudly."""
        answer = await self.stub.NodeUnprepareResources(dra.NodeUnprepareResourcesRequest(claims=claims))
        errors = [one.error for one in answer.claims.values() if one.error]
        if errors:
            raise RuntimeError(f"unprepare failed: {errors}")

    # --- the agent as the kernel sees it -----------------------------------------------------------------------------

    def resident_mib(self) -> float:
        """Return the agent's resident memory."""
        pages = int(Path(f"/proc/{self.agent.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 2**20

    def cpu_seconds(self) -> float:
        """Return the CPU time that the agent has used."""
        fields = Path(f"/proc/{self.agent.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def api_calls(self) -> int:
        """Return how many calls the API server has answered."""
        return self.audit.read_bytes().count(b"\n") if self.audit.exists() else 0


async def _spawn(command: list[str], log: Path) -> asyncio.subprocess.Process:
    with log.open("wb") as file:
        return await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE, stderr=file)


async def _stop(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(10):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()
