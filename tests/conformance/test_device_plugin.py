"""Pods that ask for extended resources, served by the device-plugin API beside claims; and a node that moves to DRA.

One agent for the whole module: moving GPUs takes its time, on purpose.
"""

from __future__ import annotations

import asyncio

import pytest
import yaml

from tests.conformance import manifests as m
from tests.conformance.api import Api, collection
from tests.conformance.case import uuids
from tests.conformance.cluster import CONFIGURE_DRIVER
from tests.conformance.gpus import Gpus
from tests.conformance.test_extended import COUNT, PRODUCT, labels_of, model_server
from tests.conformance.test_workloads import tainted_gpu_nodes
from tests.conformance.waiting import Waiter

GPU, SHARED, MIG = "nvidia.com/gpu", "nvidia.com/gpu.shared", "nvidia.com/mig-1g.10gb"
GPUS = "h100:5,h100@mig=1g.10gb*2,l4"
WHOLE = 6
CONFIG = {
    "version": "v1",
    "flags": {"migStrategy": "mixed"},
    "sharing": {"timeSlicing": {"resources": [{"name": GPU, "rename": SHARED, "devices": [4], "replicas": 3}]}},
}
OLD = {"default": "device-plugin", "rules": [{"owner": "dra", "product": "*L4*"}]}
NEW = {"default": "dra"}
H100 = f"{m.attribute('productName')}.matches('H100')"


@pytest.fixture(scope="module")
def rules(tmp_path_factory):
    """The file that says who owns which GPU."""
    file = tmp_path_factory.mktemp("ownership") / "rules.yaml"
    file.write_text(yaml.safe_dump(OLD))
    return file


@pytest.fixture(scope="module")
def driver_settings(cluster, published, rules):
    cluster.require(CONFIGURE_DRIVER)
    config = rules.with_name("config.yaml")
    config.write_text(yaml.safe_dump(CONFIG))
    yield {"gpus": GPUS, "device_plugin_config": str(config), "ownership_file": str(rules)}
    asyncio.run(as_before(cluster, len(published.all)))


async def as_before(cluster, count):
    """Give the GPUs back to DRA; return when all are published."""
    await cluster.configure_driver({})
    async with Api.from_kubeconfig(cluster.kubeconfig, cluster.context) as client:
        await all_published(Waiter(client, "", cluster.patience), count)


async def all_published(wait, count):
    """Return when so many GPUs are DRA's."""
    await wait.until("ResourceSlice", lambda items: len(Gpus(items).all) == count or None, f"{count} GPUs are DRA's")


@pytest.fixture
async def node(case, rules):
    """The node, as soon as it offers everything."""
    if yaml.safe_load(rules.read_text()) != OLD:
        rules.write_text(yaml.safe_dump(OLD))
    (name,) = {gpu.pool for gpu in case.gpus.all}
    for resource, count in ((GPU, 4), (SHARED, 3), (MIG, 2)):
        await offered(case, name, resource, count)
    return name


async def offered(case, node, resource, count):
    """Return when a node has so many of a resource to give."""

    def holds(item):
        return int(item["status"].get("allocatable", {}).get(resource, "0")) == count

    await case.wait.one("Node", node, holds, f"offers {count} of {resource}")


def asking(name, resource, count=1, **spec):
    """Return a pod that asks for an extended resource."""
    return m.pod(name, [], m.container("main", resources={"limits": {resource: str(count)}}), **spec)


async def claims(case):
    return (await case.api.list(collection("ResourceClaim", case.namespace)))["items"]


async def test_a_deployment_of_four_gpus_is_placed_by_labels_and_served_without_a_claim(case, node):
    """The manifest that test_extended has a claim serve, unchanged."""
    labels = await labels_of(case, node)
    assert labels[PRODUCT] == "NVIDIA-H100-80GB-HBM3"
    assert labels[COUNT] == "6"
    async with tainted_gpu_nodes(case):
        await case.create(m.deployment("vllm", model_server(GPU, labels[PRODUCT])))
        await case.wait.one(
            "Deployment", "vllm", lambda item: item["status"].get("availableReplicas") == 1, "has a pod"
        )
        (pod,) = await case.pods("app=vllm")
        seen = await case.seen(pod["metadata"]["name"], count=4)
    assert len(seen) == 4
    assert not seen & uuids(case.gpus.all)
    assert await claims(case) == []


async def test_time_sliced_replicas_give_one_gpu_to_several_pods(case, node):
    names = [f"slice-{number}" for number in range(3)]
    await case.create(*(asking(name, SHARED) for name in names), asking("whole", GPU), asking("more", SHARED))
    await case.running(*names, "whole")
    seen = [await case.seen(name) for name in names]
    assert len(set.union(*seen)) == 1
    assert not set.union(*seen) & await case.seen("whole")
    assert SHARED in await case.unschedulable("more")


async def test_mig_resources_give_each_pod_a_device_of_its_own(case, node):
    await case.create(asking("one", MIG), asking("two", MIG), asking("three", MIG))
    await case.wait.until("Pod", lambda pods: _running(pods, 2), "two pods run")
    running = [pod["metadata"]["name"] for pod in await _pods(case) if pod["status"]["phase"] == "Running"]
    output = [await case.output(name) for name in running]
    devices = [line.strip() for text in output for line in text.splitlines() if "MIG 1g.10gb" in line]
    assert len(set(devices)) == len(devices) == 2


async def test_claims_and_extended_resources_share_a_node(case, node):
    (l4,) = case.gpus.all
    await case.create(m.template("one"), m.pod("claiming", [m.from_template("one")]), asking("old", GPU, 4))
    await case.running("claiming", "old")
    assert await case.seen("claiming") == {l4.uuid}
    assert l4.uuid not in await case.seen("old", count=4)


async def test_a_node_moves_to_dra_under_load_and_no_gpu_is_given_twice(case, node, rules):
    """Of five whole GPUs, two are held by old pods and two asked for while the node moves; claims get what is free."""
    old, late, new = ([f"{kind}-{number}" for number in range(2)] for kind in ("old", "late", "new"))
    await case.create(*(asking(name, GPU) for name in old))
    await case.running(*old)
    template = m.template("h100", m.devices(m.request("gpu", 1, H100)))
    await case.create(template, *(m.pod(name, [m.from_template("h100")]) for name in new))
    rules.write_text(yaml.safe_dump(NEW))
    await case.create(*(asking(name, GPU) for name in late))  # served by either API
    await case.running(*late)
    await case.wait.until("Pod", lambda pods: _running(pods, 5), "one of the claims is served")
    await offered(case, node, GPU, 0)
    assert await _apart(case) == 5  # nobody was evicted
    for name in old:
        await case.delete("Pod", name)
    await case.running(*late, *new)
    assert await _apart(case) == 4
    for name in late:
        await case.delete("Pod", name)
    await all_published(case.wait, WHOLE)


async def _apart(case):
    """Return how many pods run; each has one GPU, and no two have the same."""
    running = [pod["metadata"]["name"] for pod in await _pods(case) if pod["status"].get("phase") == "Running"]
    seen = [await case.seen(name) for name in running]
    assert [len(one) for one in seen] == [1] * len(seen)
    assert len(set.union(*seen)) == len(seen)
    return len(seen)


async def _pods(case):
    return (await case.api.list(collection("Pod", case.namespace)))["items"]


def _running(pods, count):
    return sum(pod["status"].get("phase") == "Running" for pod in pods) == count
