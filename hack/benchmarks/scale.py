"""What a large cluster costs the API server: requests per node and per claim, with more and more nodes.

Each node has an agent's publisher, claim engine and client with a user of its own, and eight fake GPUs; all of them run
in this process. The API server with the scheduler is another one. An agent watches only what is its own, so that its
requests, and what it hears, must not grow with the number of the others.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import statistics
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from driver.cdi.fake import FakeEdits
from driver.cdi.store import CdiStore
from driver.claims.allocation import ClaimRef
from driver.claims.cdi_files import ClaimCdi
from driver.claims.effect_runner import EffectRunner
from driver.claims.engine import ClaimEngine
from driver.claims.gpu_locks import GpuLocks
from driver.claims.state import ClaimState
from driver.claims.store import RecordStore
from driver.errors import DriverError
from driver.inventory.fake_gpus import build_gpus
from driver.inventory.fake_spec import load_node
from driver.inventory.profiles import load_products
from driver.kube.client import KubeClient
from driver.kube.resources import ResourceApi
from driver.model.snapshot import DriverVersions, Snapshot
from driver.slices.build import BuildOptions
from driver.slices.publish import SlicePublisher
from hack.benchmarks.partitions import Counts
from hack.benchmarks.report import Report, Row, grid
from hack.benchmarks.scale_cluster import name_of, user_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence

    from driver.inventory.fake_spec import NodeSpec
    from driver.kube.client import WatchEvent

SIZES = (100, 300, 1000)
CLAIMS_PER_NODE = 5
GPUS = "h100:8"
_STARTING = 24  # agents at once, as in a rollout
_CLAIMS = "/apis/resource.k8s.io/v1/resourceclaims"
_VERSIONS = DriverVersions(driver="580.105.08", cuda="13.0")
_PATIENCE = 120.0  # seconds that a claim may wait for its turn: all pods of the cluster start at once


class Client(KubeClient):
    """Counts what its watches bring."""

    heard = 0

    async def watch(self, path: str, **query: Any) -> AsyncIterator[WatchEvent]:  # type: ignore[override]
        """Watch as ever."""
        async with contextlib.aclosing(super().watch(path, **query)) as events:
            async for event in events:
                self.heard += event.type != "BOOKMARK"
                yield event


class Agent:
    """The parts of one node's agent that talk to the API server."""

    def __init__(self, cluster: Path, number: int, spec: NodeSpec) -> None:
        name, root = name_of(number), cluster / name_of(number)
        self.client = Client.from_kubeconfig(cluster / f"{user_of(number)}.kubeconfig", timeout=60)
        api = ResourceApi(self.client)
        self.snapshot = Snapshot(versions=_VERSIONS, gpus=build_gpus(spec, name))
        counts = Counts()
        self.publisher = SlicePublisher(self.client, api, BuildOptions(node_name=name), events=counts, metrics=counts)
        self.cdi = CdiStore(root / "cdi")
        self.engine = ClaimEngine(
            state=ClaimState(
                store=RecordStore(root / "claims", lambda _: None),
                cdi=ClaimCdi(self.cdi, FakeEdits(root / "bin"), lambda: self.snapshot),
                snapshot=lambda: self.snapshot,
                node=name,
                pool=name,
                boot_id="bench",
            ),
            claims=api,
            used_claims=_nobody_knows,
            runner=EffectRunner(),
            locks=GpuLocks(root / "gpus"),
        )

    async def publish(self) -> asyncio.Task[None]:
        """Start; return the publisher's task once the slices are there."""
        await self.engine.recover()
        task = asyncio.create_task(self.publisher.run())
        self.publisher.publish(self.snapshot)
        while not self.publisher.state.complete:  # noqa: ASYNC110  # the state is there to be read, by probes
            await asyncio.sleep(0.01)
        return task

    async def prepare(self, ref: ClaimRef) -> None:
        """Prepare a claim; fail loudly."""
        answer = (await self.engine.prepare([ref], deadline=asyncio.get_running_loop().time() + _PATIENCE))[ref.uid]
        if isinstance(answer, DriverError):
            raise answer

    async def unprepare(self, refs: Sequence[ClaimRef]) -> None:
        """Unprepare claims; fail loudly."""
        answers = await self.engine.unprepare(refs, deadline=asyncio.get_running_loop().time() + _PATIENCE)
        if failed := [error for error in answers.values() if error is not None]:
            raise failed[0]


async def _nobody_knows() -> frozenset[str] | None:
    """Tell which claims pods use, as an agent does whose kubelet is away."""
    return None


@dataclass(frozen=True, kw_only=True)
class Result:
    """What one size of cluster cost. Requests by verb and resource; of the worst node where it says so."""

    nodes: int
    claims: int
    per_node: dict[str, float]
    per_claim: dict[str, float]
    worst_node: int
    heard: float
    published: float
    prepared: float


class Calls:
    """Reads the audit log on from where it was; only what agents asked counts."""

    def __init__(self, file: Path) -> None:
        self._file = file.open()

    def take(self) -> dict[str, Counter[str]]:
        """Return the calls of each agent since the last time, by verb and resource."""
        found: dict[str, Counter[str]] = {}
        for line in self._file:
            call = json.loads(line)
            if call["user"].startswith("agent-"):
                what = f"{call['verb']} {call['resource'] or call['path']}"
                found.setdefault(call["user"], Counter())[what] += 1
        return found

    def close(self) -> None:
        """Close the log."""
        self._file.close()


async def scale(report: Report, sizes: Sequence[int] = SIZES, claims_per_node: int = CLAIMS_PER_NODE) -> None:
    """Measure all sizes and report how the requests grow."""
    results = [await measure(nodes, claims_per_node) for nodes in sizes]
    for one in results:
        report.extend(_rows(one, results[0]))
    report.notes.append(_table(results))


async def measure(nodes: int, claims_per_node: int) -> Result:
    """Run one cluster: publish from all nodes, prepare all claims, unprepare them."""
    with tempfile.TemporaryDirectory(prefix="gb", dir="/tmp") as directory:
        root = Path(directory)
        async with _control_plane(root, nodes) as process:
            calls = Calls(root / "audit.jsonl")
            spec = load_node(GPUS, load_products())
            agents = [Agent(root, number, spec) for number in range(nodes)]
            try:
                return await _run(process, root, agents, calls, claims_per_node)
            finally:
                calls.close()


async def _run(
    process: asyncio.subprocess.Process, root: Path, agents: list[Agent], calls: Calls, claims_per_node: int
) -> Result:
    began = time.perf_counter()
    tasks = await _started(agents)
    published = time.perf_counter() - began
    at_start = calls.take()
    number = claims_per_node * len(agents)
    async with KubeClient.from_kubeconfig(root / "kubeconfig") as admin:
        began = time.perf_counter()
        await _prepared(process, admin, agents, number, claims_per_node)
        prepared = time.perf_counter() - began
    later = calls.take()
    heard = statistics.median(agent.client.heard for agent in agents)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await asyncio.gather(*(agent.engine.aclose() for agent in agents), *(agent.client.aclose() for agent in agents))
    return Result(
        nodes=len(agents),
        claims=number,
        per_node=_medians(at_start, len(agents)),
        per_claim={what: count / number for what, count in sum(later.values(), Counter()).items()},
        worst_node=max(one.total() for one in at_start.values()),
        heard=heard,
        published=published,
        prepared=prepared,
    )


async def _started(agents: list[Agent]) -> list[asyncio.Task[None]]:
    turn = asyncio.Semaphore(_STARTING)

    async def start(agent: Agent) -> asyncio.Task[None]:
        async with turn:
            return await agent.publish()

    return await asyncio.gather(*(start(agent) for agent in agents))


async def _prepared(
    process: asyncio.subprocess.Process, admin: KubeClient, agents: list[Agent], number: int, claims_per_node: int
) -> None:
    """Ask for claims and play all kubelets: prepare each once it is allocated and reserved; in the end release all."""
    version = (await admin.list(_CLAIMS))["metadata"]["resourceVersion"]
    by_name = {name_of(number): agent for number, agent in enumerate(agents)}
    seen: dict[str, list[ClaimRef]] = {}
    assert process.stdin is not None
    process.stdin.write(f"{claims_per_node}\n".encode())
    async with (
        asyncio.TaskGroup() as group,
        contextlib.aclosing(admin.watch(_CLAIMS, resource_version=version)) as events,
    ):
        async for event in events:
            for node, ref in _ready(event.object):
                seen.setdefault(node, []).append(ref)
                group.create_task(by_name[node].prepare(ref))
            if sum(map(len, seen.values())) == number:
                break
    for node, refs in seen.items():
        if by_name[node].cdi.claim_uids() != {ref.uid for ref in refs}:
            raise RuntimeError(f"{node} has not the CDI files of its claims")
        await by_name[node].unprepare(refs)
        if by_name[node].cdi.claim_uids() or await by_name[node].engine.records():
            raise RuntimeError(f"something is left on {node}")


def _ready(claim: dict[str, Any]) -> Iterator[tuple[str, ClaimRef]]:
    """Yield the node and the claim when the kubelet there would prepare it: once, as both come in one write."""
    status, about = claim.get("status") or {}, claim["metadata"]
    if status.get("reservedFor"):
        pool = status["allocation"]["devices"]["results"][0]["pool"]
        yield pool, ClaimRef(namespace=about["namespace"], name=about["name"], uid=about["uid"])


@contextlib.asynccontextmanager
async def _control_plane(root: Path, nodes: int) -> AsyncIterator[asyncio.subprocess.Process]:
    command = (sys.executable, "-m", "hack.benchmarks.scale_cluster", "--root", str(root), "--nodes", str(nodes))
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        if not await process.stdout.readline():
            raise RuntimeError("the control plane did not start")
        yield process
    finally:
        process.stdin.close()
        await process.wait()


def _medians(calls: dict[str, Counter[str]], nodes: int) -> dict[str, float]:
    """Return the p50 over all nodes, by verb and resource."""
    names = {what for one in calls.values() for what in one}
    found = {what: statistics.median([one[what] for one in calls.values()] or [0]) for what in sorted(names)}
    if len(calls) != nodes:
        raise RuntimeError(f"{nodes - len(calls)} of {nodes} agents have asked for nothing")
    return found


def _rows(one: Result, least: Result) -> Iterator[Row]:
    where = f"{one.nodes} nodes, {one.claims} claims"
    for what, value, before in (
        ("requests per node", sum(one.per_node.values()), sum(least.per_node.values())),
        ("watch events per node", one.heard, least.heard),
        ("requests per claim", sum(one.per_claim.values()), sum(least.per_claim.values())),
    ):
        if one is least:
            yield Row(what=f"{where}: {what}", value=value, unit="")
        else:
            floor_is = f"the same with {least.nodes} nodes: it must not grow"
            yield Row(what=f"{where}: {what}", value=value, unit="", floor=before, limit=1, floor_is=floor_is)
    yield Row(what=f"{where}: requests of the worst node", value=one.worst_node, unit="")
    yield Row(what=f"{where}: all slices published", value=one.published, unit="s")
    yield Row(what=f"{where}: all claims allocated and prepared", value=one.prepared, unit="s")


def _table(results: Sequence[Result]) -> str:
    """Return the requests by verb."""
    lines = [("API requests", *(f"{one.nodes} nodes" for one in results))]
    for title, per in (("per node", "per_node"), ("per claim", "per_claim")):
        names = sorted({what for one in results for what in getattr(one, per)})
        lines += [(f"{what}, {title}", *(f"{getattr(one, per).get(what, 0):g}" for one in results)) for what in names]
    return grid(lines)
