"""The unmodified agent, killed at every change it makes to its files while a kubelet's call is under way.

Each restart converges: the retried call succeeds, an unprepare leaves nothing, the GPU can be given to another claim.
"""

from __future__ import annotations

import contextlib
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import grpc.aio
import pytest

from driver.kube.client import KubeClient
from driver.localcluster.apiserver import ApiServer, Features
from tests.agent_process import Node, Process, agent, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from driver._pb import dra_v1_pb2 as v1

SITE = Path(__file__).parent / "site"


@pytest.fixture
async def node(short_tmp: Path) -> AsyncIterator[Node]:
    api = ApiServer(short_tmp / "api", Features())
    await api.start()
    api.store.create("nodes", {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node1"}})
    async with KubeClient.from_kubeconfig(api.kubeconfig) as client:
        node = Node(short_tmp, api, client)
        for directory in ("plugins", "plugins_registry"):
            (node.kubelet_root / directory).mkdir(parents=True)
        yield node
    await api.stop()


def records(node: Node) -> Path:
    return node.service.parent / "claims"


def leftovers(node: Node) -> list[str]:
    found = [*records(node).rglob("*.json"), *records(node).rglob("*.tmp"), *node.cdi.glob("*"), *node.cdi.glob(".*")]
    return sorted(path.name for path in found)


async def serving(node: Node, process: Process) -> None:
    """Wait for this agent's socket: the file may be one that a killed agent left."""
    await until(lambda: process.logged(f"serving {node.service}"))


async def dies(node: Node, monkeypatch: pytest.MonkeyPatch, step: int, call: str, claim: v1.Claim) -> bool:
    """Make the call to an agent that dies before its `step`-th change; say whether it did."""
    armed = node.root / "armed"
    monkeypatch.setenv("PYTHONPATH", str(SITE))
    monkeypatch.setenv("CRASH_BEFORE", str(step))
    monkeypatch.setenv("CRASH_BELOW", f"{records(node)}:{node.cdi}")
    monkeypatch.setenv("CRASH_ARMED", str(armed))
    async with agent(node) as process:
        await serving(node, process)
        if call == "unprepare":
            assert (await node.prepare(claim))[claim.uid].error == ""
        armed.touch()
        with contextlib.suppress(grpc.aio.AioRpcError):
            await getattr(node, call)(claim)
            armed.unlink()
            return False
        assert await process.end(signal.SIGKILL) == -signal.SIGKILL
        armed.unlink()
        monkeypatch.delenv("CRASH_BEFORE")
        return True


async def converges(node: Node, claim: v1.Claim, other: v1.Claim, *, retry: bool) -> None:
    async with agent(node) as process:
        await serving(node, process)
        if retry:
            (entry,) = (await node.prepare(claim)).values()
            assert entry.error == ""
            assert [device.device_name for device in entry.devices] == ["gpu-0", "gpu-1"]
        assert await node.unprepare(claim) == {claim.uid: ""}
        assert leftovers(node) == []
        assert (await node.prepare(other))[other.uid].error == ""
        assert await node.unprepare(other) == {other.uid: ""}


@pytest.mark.parametrize(
    ("call", "retry", "least"), [("prepare", True, 4), ("prepare", False, 4), ("unprepare", False, 2)]
)
async def test_the_agent_killed_at_any_step_converges(
    node: Node, monkeypatch: pytest.MonkeyPatch, call: str, retry: bool, least: int
) -> None:
    claim, other = await node.claim("one", "gpu-0", "gpu-1"), await node.claim("two", "gpu-1")
    step = 1
    while await dies(node, monkeypatch, step, call, claim):
        await converges(node, claim, other, retry=retry)
        step += 1
    assert step > least, "the call was interrupted less often than it changes files"
