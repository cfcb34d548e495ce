"""The unmodified agent, killed at every change it makes to its files while a kubelet's call is under way.

Each restart converges: the retried call succeeds, an unprepare leaves nothing, the GPU can be given to another claim.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc.aio
import pytest

from driver.kube.client import KubeClient
from driver.localcluster.apiserver import ApiServer, Features
from tests.agent_process import Node, Process, agent
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from driver._pb import dra_v1_pb2 as v1

SITE = Path(__file__).parent / "site"
API = "resource.nvidia.com/v1beta1"
LONG = {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Long"}}


@dataclass(frozen=True)
class Kind:
    """A claim that is prepared, one that wants the same afterwards, and the settings that it takes."""

    devices: tuple[str, ...]
    other: str
    least: int
    """Changes that a prepare makes at least."""
    config: tuple[dict[str, Any], ...] = ()
    settings: tuple[tuple[str, str], ...] = ()


WHOLE = Kind(devices=("gpu-0", "gpu-1"), other="gpu-1", least=4)
EFFECTS = Kind(
    devices=("gpu-0-mig-1g10gb-19-0", "gpu-1"),
    other="gpu-0",
    least=15,
    config=(
        {"apiVersion": API, "kind": "MigDeviceConfig", "sharing": {"strategy": "MPS"}},
        {"apiVersion": API, "kind": "GpuConfig", "sharing": LONG},
    ),
    settings=(("gpus", "h100:2"), ("dynamic_mig", "0")),
)
"""A partition that is made, with an MPS daemon, and a GPU with a time slice: every effect that there is."""


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


def state(node: Node) -> Path:
    return node.service.parent


def leftovers(node: Node) -> list[str]:
    """What is on the node of claims: files, MPS daemons, whatever the fake GPUs keep."""
    claims = state(node) / "claims"
    temporary = [path for path in claims.rglob("*.tmp") if path.parent.name != "spare"]
    found = [*claims.rglob("*.json"), *temporary, *node.cdi.glob("*"), *node.cdi.glob(".*")]
    return [*sorted(path.name for path in [*found, *state(node).glob("mps/*")]), *sharing(node), *partitions(node)]


def sharing(node: Node) -> list[str]:
    """The fake GPUs' settings that are not as at boot."""
    file = state(node) / "fake-sharing.json"
    values = json.loads(file.read_bytes()) if file.exists() else {}
    kinds = {kind: held for kind, held in values.items() if isinstance(held, dict)}
    return [f"{kind} {name}: {value}" for kind, held in kinds.items() for name, value in held.items() if _set(value)]


def _set(value: object) -> bool:
    return value not in (0, "DEFAULT")


def partitions(node: Node) -> list[str]:
    """The fake GPUs' MIG mode and instances."""
    file = node.faults.with_name("fake-mig.json")
    gpus = json.loads(file.read_bytes())["gpus"] if file.exists() else {}
    return [f"{uuid}: {gpu}" for uuid, gpu in gpus.items() if gpu["enabled"] or gpu["instances"]]


async def serving(node: Node, process: Process) -> None:
    """Wait for this agent's socket: the file may be one that a killed agent left."""
    await until(lambda: process.logged(f"serving {node.service}"))


class Lives:
    """The agent's lives, each ended by a call that is interrupted one change later than the last."""

    def __init__(self, node: Node, kind: Kind, claim: v1.Claim, other: v1.Claim) -> None:
        self.node, self.kind, self.claim, self.other = node, kind, claim, other
        self.armed = node.root / "armed"

    async def run(self, call: str, retries: frozenset[bool]) -> int:
        """Let the agent die before every change that the call makes; return how many there are.

        After a death the call is retried, or not, or both by turns.
        """
        step = 0
        while True:
            async with agent(self.node, **dict(self.kind.settings)) as process:
                await serving(self.node, process)
                if step:
                    await self.converges(retry=bool(step % 2) if len(retries) > 1 else True in retries)
                step += 1
                if not await self.dies(process, call, step):
                    return step - 1

    async def dies(self, process: Process, call: str, step: int) -> bool:
        """Make the call to an agent that dies before its `step`-th change; say whether it did."""
        if call == "unprepare":
            assert (await self.node.prepare(self.claim))[self.claim.uid].error == ""
        self.armed.write_text(str(step))
        try:
            with contextlib.suppress(grpc.aio.AioRpcError):
                await getattr(self.node, call)(self.claim)
                return False
            assert await process.ended() == -signal.SIGKILL
        finally:
            self.armed.unlink()
        return True

    async def converges(self, *, retry: bool) -> None:
        node, claim, other = self.node, self.claim, self.other
        if retry:
            (entry,) = (await node.prepare(claim)).values()
            assert entry.error == ""
            assert tuple(device.device_name for device in entry.devices) == self.kind.devices
        assert await node.unprepare(claim) == {claim.uid: ""}
        assert leftovers(node) == []
        assert (await node.prepare(other))[other.uid].error == ""
        assert await node.unprepare(other) == {other.uid: ""}
        assert leftovers(node) == []


RETRY, NO_RETRY = frozenset({True}), frozenset({False})
CASES = {
    "whole-prepare-retry": (WHOLE, "prepare", RETRY),
    "whole-prepare": (WHOLE, "prepare", NO_RETRY),
    "whole-unprepare": (WHOLE, "unprepare", NO_RETRY),
    "effects-prepare": (EFFECTS, "prepare", RETRY | NO_RETRY),
    "effects-unprepare": (EFFECTS, "unprepare", NO_RETRY),
}
if os.environ.get("NIGHTLY"):
    del CASES["effects-prepare"]
    CASES["effects-prepare-retry"] = (EFFECTS, "prepare", RETRY)
    CASES["effects-prepare-no-retry"] = (EFFECTS, "prepare", NO_RETRY)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("kind", "call", "retries"), CASES.values(), ids=CASES)
async def test_the_agent_killed_at_any_step_converges(
    node: Node, monkeypatch: pytest.MonkeyPatch, kind: Kind, call: str, retries: frozenset[bool]
) -> None:
    claim = await node.claim("one", *kind.devices, config=kind.config)
    lives = Lives(node, kind, claim, await node.claim("two", kind.other))
    below = (state(node) / "claims", node.cdi, state(node) / "mps", state(node) / "fake-sharing", node.faults.parent)
    monkeypatch.setenv("PYTHONPATH", str(SITE))
    monkeypatch.setenv("CRASH_BELOW", ":".join(str(path) for path in below))
    monkeypatch.setenv("CRASH_ARMED", str(lives.armed))
    steps = await lives.run(call, retries)
    assert steps >= kind.least // (2 if call == "unprepare" else 1), "the call was interrupted less than it changes"
