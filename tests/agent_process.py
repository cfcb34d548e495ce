"""The agent as a process of its own on a node of a test's: its directories, its API server, a kubelet's calls."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import aiohttp
import grpc.aio

from driver._pb import dra_v1_pb2 as v1
from driver._pb import dra_v1_pb2_grpc as v1_grpc
from driver._pb import pluginregistration_pb2 as reg
from driver._pb import pluginregistration_pb2_grpc as reg_grpc
from driver.kube.client import KubeClient
from driver.localcluster.apiserver import ApiServer
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from pathlib import Path


PROGRAM = (
    "import sys\n"
    "from driver.agent.process import run\n"
    "from driver.settings import load_settings\n"
    "sys.exit(run(load_settings(dict(one.split('=', 1) for one in sys.argv[1:]), {})))\n"
)
NODE = "node1"
DRA = "/apis/resource.k8s.io/v1"


@dataclass
class Node:
    """One node's directories, its API server, and the agents that run on it."""

    root: Path
    api: ApiServer
    client: KubeClient
    extra: dict[str, str] = field(default_factory=dict)

    @property
    def kubelet_root(self) -> Path:
        return self.root / "k"

    @property
    def cdi(self) -> Path:
        return self.root / "cdi"

    @property
    def faults(self) -> Path:
        return self.root / "f" / "faults.yaml"

    @property
    def service(self) -> Path:
        return self.kubelet_root / "plugins/gpu.nvidia.com/dra.sock"

    @property
    def registration(self) -> Path:
        return self.kubelet_root / "plugins_registry/gpu.nvidia.com-reg.sock"

    def flags(self, **changes: str) -> list[str]:
        flags = {
            "node_name": NODE,
            "kubelet_root": str(self.kubelet_root),
            "cdi_dir": str(self.cdi),
            "gpus": "h100:4",
            "faults_file": str(self.faults),
            "kubeconfig": str(self.api.kubeconfig),
            "http_address": "127.0.0.1:0",
            "container_runtime_configs": "",
            **changes,
        }
        return [f"{name}={value}" for name, value in flags.items() if value or name == "container_runtime_configs"]

    async def register(self) -> reg.PluginInfo:
        """Do what a kubelet does when it finds the registration socket."""
        await until(self.registration.exists)
        async with grpc.aio.insecure_channel(f"unix:{self.registration}") as channel:
            stub = reg_grpc.RegistrationStub(channel)
            info = await stub.GetInfo(reg.InfoRequest(), timeout=20)
            await stub.NotifyRegistrationStatus(reg.RegistrationStatus(plugin_registered=True), timeout=20)
        return info

    async def claim(self, name: str, *devices: str, config: Sequence[dict[str, Any]] = ()) -> v1.Claim:
        """Create a claim that is allocated to devices of this node; `config` are parameters of it."""
        requests = [{"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com"}}]
        opaque = [{"opaque": {"driver": "gpu.nvidia.com", "parameters": one}} for one in config]
        spec = {"devices": {"requests": requests, **({"config": opaque} if opaque else {})}}
        results = [{"request": "gpu", "driver": "gpu.nvidia.com", "pool": NODE, "device": one} for one in devices]
        allocated: dict[str, Any] = {"results": results}
        if opaque:
            allocated["config"] = [{"source": "FromClaim", **one} for one in opaque]
        return await self.allocated(name, spec, {"devices": allocated})

    async def allocated(self, name: str, spec: dict[str, Any], allocation: dict[str, Any]) -> v1.Claim:
        """Create a claim as the scheduler leaves it."""
        path = f"{DRA}/namespaces/default/resourceclaims"
        body = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": name}, "spec": spec}
        stored = await self.client.create(path, body)
        stored["status"] = {"allocation": allocation}
        await self.client.update(f"{path}/{name}/status", stored)
        return v1.Claim(namespace="default", name=name, uid=stored["metadata"]["uid"])

    async def prepare(self, *claims: v1.Claim, service: Path | None = None, timeout: float = 45) -> dict[str, Any]:
        async with grpc.aio.insecure_channel(f"unix:{service or self.service}") as channel:
            request = v1.NodePrepareResourcesRequest(claims=claims)
            answer = await v1_grpc.DRAPluginStub(channel).NodePrepareResources(request, timeout=timeout)
        return dict(answer.claims)

    async def unprepare(self, *claims: v1.Claim, service: Path | None = None) -> dict[str, str]:
        async with grpc.aio.insecure_channel(f"unix:{service or self.service}") as channel:
            request = v1.NodeUnprepareResourcesRequest(claims=claims)
            answer = await v1_grpc.DRAPluginStub(channel).NodeUnprepareResources(request, timeout=45)
        return {uid: entry.error for uid, entry in answer.claims.items()}

    async def slices(self) -> list[dict[str, Any]]:
        return [item["spec"] for item in (await self.client.list(f"{DRA}/resourceslices"))["items"]]

    async def devices(self) -> list[str]:
        return [device["name"] for spec in await self.slices() for device in spec.get("devices") or ()]

    async def events(self) -> list[str]:
        items = (await self.client.list("/api/v1/namespaces/default/events"))["items"]
        return [item["reason"] for item in items]


@dataclass
class Process:
    """A running agent."""

    child: asyncio.subprocess.Process
    log: list[str] = field(default_factory=list)

    def logged(self, text: str) -> str:
        return next((line for line in self.log if text in line), "")

    async def listening(self) -> int:
        line = await until(lambda: self.logged("serving health and metrics on"))
        return int(line.strip().rpartition(":")[2])

    async def get(self, path: str) -> tuple[int, str]:
        port = await self.listening()
        async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}{path}") as answer:
            return answer.status, await answer.text()

    async def missing(self) -> dict[str, str]:
        found: dict[str, str] = json.loads((await self.get("/readyz"))[1])["missing"]
        return found

    async def end(self, number: int = signal.SIGTERM) -> int:
        with contextlib.suppress(ProcessLookupError):  # asyncio's thread has reaped it, and is about to say so
            if self.child.returncode is None:
                os.kill(self.child.pid, number)  # `send_signal` would reap it behind asyncio's back
        return await self.ended()

    async def ended(self) -> int:
        """Wait until it has ended by itself."""
        async with asyncio.timeout(20):
            return await self.child.wait()


@contextlib.asynccontextmanager
async def node_below(root: Path) -> AsyncIterator[Node]:
    """Make a node with its directories and an API server that knows it."""
    api = ApiServer(root / "api")
    await api.start()
    try:
        async with KubeClient.from_kubeconfig(api.kubeconfig) as client:
            await client.create("/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}})
            node = Node(root, api, client)
            (node.kubelet_root / "plugins_registry").mkdir(parents=True)
            node.faults.parent.mkdir()
            yield node
    finally:
        await api.stop()


@contextlib.asynccontextmanager
async def agent(node: Node, **changes: str) -> AsyncIterator[Process]:
    """Run an agent until the block ends."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GPU_DRA_")}
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", PROGRAM, *node.flags(**changes)),
        stdin=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        env=environment,
    )
    process = Process(child)
    assert child.stderr is not None
    stderr = child.stderr

    async def keep() -> None:
        async for line in stderr:
            process.log.append(line.decode())

    reader = asyncio.create_task(keep())
    try:
        yield process
    except BaseException:
        sys.stderr.write("".join(process.log))
        raise
    finally:
        if child.returncode is None:
            child.kill()
        await child.wait()
        await reader


async def nothing_missing(process: Process) -> bool:
    return not await process.missing()
