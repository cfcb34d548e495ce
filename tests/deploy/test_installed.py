"""The agent with the rights that deploy/ gives it, and no others (P4, P5)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from driver.errors import ApiForbiddenError
from driver.inventory.faults import Faults, GpuFaults, save_faults
from driver.kube.client import KubeClient
from driver.localcluster.apiserver import ApiServer
from driver.localcluster.apiserver.objects import lookup
from tests.agent_process import DRA, NODE, Node, Process, agent
from tests.deploy.installed import USER, agents_kubeconfig, install
from tests.deploy.manifests import build, one
from tests.deploy.rbac import Call, missing, permitted
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

OTHER = "node2"
STALE = "07-gpu.nvidia.com-node1-stale"


@pytest.fixture
async def node(short_tmp: Path) -> AsyncIterator[Node]:
    """A node of a cluster with the base installed; the test's own client is an administrator."""
    api = ApiServer(short_tmp / "api", authorization=True)
    await api.start()
    install(api)
    for name in (NODE, OTHER):
        api.store.create("nodes", {"metadata": {"name": name}})
    client = KubeClient.from_kubeconfig(api.kubeconfig)
    made = Node(short_tmp, api, client)
    (made.kubelet_root / "plugins_registry").mkdir(parents=True)
    made.faults.parent.mkdir()
    yield made
    await client.aclose()
    await api.stop()


def slice_of(name: str, node: str, driver: str = "gpu.nvidia.com") -> dict[str, Any]:
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": driver, "nodeName": node, "pool": pool, "devices": [{"name": "gpu-0"}]}
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": name}, "spec": spec}


def on_node(device: str) -> dict[str, Any]:
    field = {"key": "metadata.name", "operator": "In", "values": [NODE]}
    result = {"request": "gpu", "driver": "gpu.nvidia.com", "pool": NODE, "device": device}
    return {
        "devices": {"results": [result]},
        "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [field]}]},
    }


async def all_that_it_does(node: Node, process: Process) -> None:
    """Publish, remove a stale slice, label, prepare, tell a claim's status, refuse twice, taint twice, unprepare."""
    await node.register()
    await until(lambda: process.logged("devices are published"))
    await until(lambda: not node.api.store.find("resourceslices", STALE))
    await until(
        lambda: "nvidia.com/gpu.product" in (lookup(node.api.store.get("nodes", NODE), "metadata.labels") or ())
    )
    request = {"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com"}}
    claim = await node.allocated("c", {"devices": {"requests": [request]}}, on_node("gpu-1"))
    assert (await node.prepare(claim))[claim.uid].error == ""
    await until(lambda: node.api.store.get("resourceclaims", "c", "default")["status"].get("devices"))
    bad = await node.claim("bad", "gpu-9")
    for _ in range(2):
        assert (await node.prepare(bad))[bad.uid].error
    for lost, tainted in ((True, True), (False, False), (True, True)):  # the second loss is a repeated event
        save_faults(node.faults, Faults(gpus={"gpu-1": GpuFaults(lost=lost)}))
        await until(lambda want=tainted: _tainted(node) is want)
    assert await node.unprepare(claim, bad) == {claim.uid: "", bad.uid: ""}


def _tainted(node: Node) -> bool:
    slices = node.api.store.list("resourceslices")
    return any("taints" in device for item in slices for device in item["spec"]["devices"])


def calls(node: Node) -> set[Call]:
    """What the agent asked of the server, discovery aside; a status write needs a second right since 1.36."""
    asked = [call for call in node.api.audit.by(USER) if call.resource]
    found = {Call(call.verb, call.group, call.resource, call.subresource) for call in asked}
    if any((call.resource, call.subresource) == ("resourceclaims", "status") for call in asked):
        found.add(Call("associated-node:patch", "resource.k8s.io", "resourceclaims", "driver", "gpu.nvidia.com"))
    return found


async def test_P4_what_the_agent_asks_is_what_the_role_permits(node: Node) -> None:
    rules = one(build("base"), "ClusterRole")["rules"]
    node.api.store.create("resourceslices", slice_of(STALE, NODE))
    # With the device plugin on, DeviceClasses are read, too: this one keeps the GPUs with DRA.
    node.api.store.patch("deviceclasses", "gpu.nvidia.com", {"spec": {"extendedResourceName": "nvidia.com/gpu"}})
    async with agent(node, kubeconfig=str(agents_kubeconfig(node.api, NODE)), device_plugin="on") as process:
        await all_that_it_does(node, process)
        await until(lambda: calls(node) >= permitted(rules))
        assert await process.end() == 0
    assert missing(rules, calls(node)) == set()
    refused = [call for call in node.api.audit.by(USER) if call.code in (401, 403, 422)]
    assert refused == []


@pytest.fixture
async def as_agent(node: Node) -> AsyncIterator[KubeClient]:
    """A client with the token of the agent on the node, as somebody who broke into the node has it."""
    async with KubeClient.from_kubeconfig(agents_kubeconfig(node.api, NODE)) as client:
        yield client


async def test_P5_the_agents_token_writes_no_slice_of_another_node(node: Node, as_agent: KubeClient) -> None:
    for name in (NODE, OTHER):
        node.api.store.create("resourceslices", slice_of(f"of-{name}", name))
    message = "the agent on node node1 may write only the ResourceSlices of that node"
    for version in ("v1", "v1beta2", "v1beta1"):
        path = f"/apis/resource.k8s.io/{version}/resourceslices"
        foreign = await as_agent_reads(as_agent, path, f"of-{OTHER}")
        with pytest.raises(ApiForbiddenError, match=message):
            await as_agent.update(f"{path}/of-{OTHER}", foreign)
        with pytest.raises(ApiForbiddenError, match=message):
            await as_agent.delete(f"{path}/of-{OTHER}")
        new = {**foreign, "metadata": {"name": "new"}}
        with pytest.raises(ApiForbiddenError, match=message):
            await as_agent.create(path, new)
    await as_agent.delete(f"{DRA}/resourceslices/of-{NODE}")
    assert [item["metadata"]["name"] for item in node.api.store.list("resourceslices")] == [f"of-{OTHER}"]


async def as_agent_reads(client: KubeClient, path: str, name: str) -> dict[str, Any]:
    items = (await client.list(path))["items"]
    found: dict[str, Any] = next(item for item in items if item["metadata"]["name"] == name)
    return found


async def test_P5_nor_a_label_of_others(node: Node, as_agent: KubeClient) -> None:
    merge = "application/merge-patch+json"
    labels = {"team": "x", "nvidia.com/gpu.product": "x"}  # the answer names the wrong one alone
    with pytest.raises(ApiForbiddenError, match=r"only the labels of feature discovery, not team(?!,)"):
        await as_agent.patch(f"/api/v1/nodes/{NODE}", {"metadata": {"labels": labels}}, content_type=merge)
    label = {"metadata": {"labels": {"nvidia.com/gpu.count": "8"}}}
    with pytest.raises(ApiForbiddenError, match="the agent on node node1 may label only that node"):
        await as_agent.patch(f"/api/v1/nodes/{OTHER}", label, content_type=merge)
    await as_agent.patch(f"/api/v1/nodes/{NODE}", label, content_type=merge)


async def test_P5_nor_the_status_of_a_claim_elsewhere(node: Node, as_agent: KubeClient) -> None:
    request = {"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com"}}
    allocation = on_node("gpu-0")
    allocation["nodeSelector"]["nodeSelectorTerms"][0]["matchFields"][0]["values"] = [OTHER]
    await node.allocated("c", {"devices": {"requests": [request]}}, allocation)
    path = f"{DRA}/namespaces/default/resourceclaims/c/status"
    with pytest.raises(ApiForbiddenError, match="may write only to claims that are allocated there"):
        await as_agent.patch(path, {"status": {"devices": []}}, content_type="application/merge-patch+json")
