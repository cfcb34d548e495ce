"""What a real scheduler allocated of partitions and of shares, prepared for real: by an agent, through its socket.

The recording has devices named by profile and start (`gpu-0-mig-1g10gb-3`); ours have the profile's id in between, as
NVIDIA's have. Claims that the scheduler left pending are none of the kubelet's business.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from driver.inventory.fake import FakeInventory
from driver.kube.client import KubeClient
from driver.localcluster.apiserver import ApiServer
from driver.model.mig import Placement
from tests.agent_process import NODE, Node, agent
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from driver.model.mig import MigState

RECORDING = Path(__file__).parent.parent / "data" / "recordings" / "allocation.json"
PROFILES = {"1g10gb": "19", "2g20gb": "14", "3g40gb": "9", "4g40gb": "5"}
SIZES = {"1g10gb": 1, "2g20gb": 2, "3g40gb": 4, "4g40gb": 4}


def recorded(word: str) -> list[Any]:
    """Return the entries about partitions (`mig`) or shares (`share`) of which anything was allocated."""
    entries = [one for one in json.loads(RECORDING.read_text()) if word in one["id"].split("-")]
    allocated = [one for one in entries if any("allocation" in result for result in one["results"])]
    return [pytest.param(one, id=one["id"]) for one in allocated]


@pytest.fixture
async def node(short_tmp: Path) -> AsyncIterator[Node]:
    api = ApiServer(short_tmp / "api")
    await api.start()
    async with KubeClient.from_kubeconfig(api.kubeconfig) as client:
        await client.create("/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}})
        node = Node(short_tmp, api, client)
        (node.kubelet_root / "plugins_registry").mkdir(parents=True)
        yield node
    await api.stop()


def ours(result: dict[str, Any]) -> dict[str, Any]:
    """Name a recorded device and its pool as on our node."""
    gpu, _, partition = result["device"].partition("-mig-")
    profile, _, start = partition.partition("-")
    device = f"{gpu}-mig-{profile}-{PROFILES[profile]}-{start}" if partition else gpu
    return {**result, "pool": NODE, "device": device}


def places(results: list[dict[str, Any]]) -> list[Placement]:
    partitions = [one["device"].split("-mig-")[1] for one in results if "-mig-" in one["device"]]
    return sorted(Placement(int(text.split("-")[1]), SIZES[text.split("-")[0]]) for text in partitions)


async def mig_of(node: Node) -> MigState:
    """What another process sees of the node's first GPU."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    inventory = FakeInventory.from_spec(
        "h100", node_name=NODE, mig_file=node.faults.with_name("fake-mig.json"), boot_id=boot
    )
    state = (await inventory.read()).gpus[0].mig
    assert state is not None
    return state


def environment(node: Node) -> list[str]:
    specs = [json.loads(path.read_text()) for path in sorted(node.cdi.glob("*claim_*"))]
    return [text for spec in specs for device in spec["devices"] for text in device["containerEdits"].get("env", [])]


async def prepare_all(node: Node, entry: dict[str, Any]) -> tuple[list[Any], list[dict[str, Any]]]:
    """Prepare every recorded claim that was allocated; return the claims, and their results as recorded."""
    claims, results = [], []
    for number, (spec, result) in enumerate(zip(entry["claims"], entry["results"], strict=True)):
        if "allocation" not in result:
            continue
        allocated = [ours(one) for one in result["allocation"]["devices"]["results"]]
        claim = await node.allocated(f"claim-{number}", spec, {"devices": {"results": allocated}})
        answer = (await node.prepare(claim))[claim.uid]
        assert answer.error == ""
        assert [(one.device_name, one.share_id) for one in answer.devices] == [
            (one["device"], one.get("shareID", "")) for one in allocated
        ]
        claims.append(claim)
        results += result["allocation"]["devices"]["results"]
    return claims, results


@pytest.mark.parametrize("entry", recorded("mig"))
async def test_recorded_partitions(node: Node, entry: dict[str, Any]) -> None:
    async with agent(node, gpus="h100", dynamic_mig="all"):
        await until(node.service.exists)
        claims, results = await prepare_all(node, entry)
        assert claims
        assert sorted(one.placement for one in (await mig_of(node)).instances) == places(results)
        shown = " ".join(environment(node))
        assert all(one.uuid in shown for one in (await mig_of(node)).instances)
        assert await node.unprepare(*claims) == {claim.uid: "" for claim in claims}
        left = await mig_of(node)
        assert (left.enabled, left.instances, left.bare) == (False, (), ())
        assert list(node.cdi.glob("*claim_*")) == []


@pytest.mark.parametrize("entry", recorded("share"))
async def test_recorded_shares(node: Node, entry: dict[str, Any]) -> None:
    async with agent(node, gpus="h100", shares="memory"):
        await until(node.service.exists)
        claims, results = await prepare_all(node, entry)
        wanted = [f"GPU_DRA_MEMORY_LIMIT_0={int(one['consumedCapacity']['memory'][:-2]) * 1024}M" for one in results]
        limits = [text for text in environment(node) if text.startswith("GPU_DRA_MEMORY_LIMIT_")]
        assert sorted(limits) == sorted(wanted)
        assert await node.unprepare(*claims) == {claim.uid: "" for claim in claims}
        assert list(node.cdi.glob("*claim_*")) == []
