"""What most inference runs today: extended resources, chosen by node labels, served by claims through a DeviceClass."""

from __future__ import annotations

import pytest

from driver.device_classes import device_classes
from tests.conformance import manifests as m
from tests.conformance.case import uuids
from tests.conformance.cluster import RESTART_DRIVER
from tests.conformance.test_workloads import tainted_gpu_nodes

PRODUCT, MEMORY, COUNT = "nvidia.com/gpu.product", "nvidia.com/gpu.memory", "nvidia.com/gpu.count"


async def labels_of(case, node):
    """The labels of a node, as soon as it has those of feature discovery; skip the test where it gets none."""
    if not case.cluster.can(RESTART_DRIVER):
        present = (await case.api.get(case.path("Node", node)))["metadata"].get("labels") or {}
        if PRODUCT not in present:
            pytest.skip(f"node {node} has no label {PRODUCT}: nobody writes labels in this cluster")
    found = await case.wait.one(
        "Node", node, lambda item: PRODUCT in (item["metadata"].get("labels") or {}), "has labels"
    )
    return found["metadata"]["labels"]


def gpu_label(case, node):
    """The GPUs of a node's most numerous product, as its labels tell them."""
    gpus = [gpu for gpu in case.gpus.all if gpu.pool == node]
    products = [gpu.product for gpu in gpus]
    chosen = min(set(products), key=lambda name: (-products.count(name), name))
    return chosen, products.count(chosen)


def model_server(resource, product):
    """The pod of a model server as charts have it: four GPUs, a product, enough memory, a toleration."""
    large = {"key": MEMORY, "operator": "Gt", "values": ["40000"]}
    terms = {"nodeSelectorTerms": [{"matchExpressions": [large]}]}
    return m.pod_spec(
        [],
        m.container("main", resources={"limits": {resource: "4"}}),
        nodeSelector={PRODUCT: product},
        affinity={"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}},
    )


async def test_nodes_are_labelled_with_their_most_numerous_product(case):
    node = case.gpus.all[0].pool
    labels = await labels_of(case, node)
    product, count = gpu_label(case, node)
    assert labels[PRODUCT] == product.replace(" ", "-")
    assert int(labels[COUNT]) == count
    assert int(labels[MEMORY]) > 1000


@pytest.mark.gpus(4)
async def test_a_deployment_of_four_gpus_is_placed_by_labels_and_served_by_a_claim(case):
    """A model server as charts have it: product, memory, toleration, `nvidia.com/gpu: 4`."""
    resource = await case.extended_resource()
    (node,) = {gpu.pool for gpu in case.gpus.require(4)}
    labels = await labels_of(case, node)
    if int(labels[COUNT]) < 4 or int(labels[MEMORY]) <= 40000:
        pytest.skip(f"needs 4 GPUs of more than 40000 MiB; the labels tell of {labels[COUNT]} of {labels[MEMORY]} MiB")
    async with tainted_gpu_nodes(case):
        await case.create(m.deployment("vllm", model_server(resource, labels[PRODUCT])))
        await case.wait.one(
            "Deployment", "vllm", lambda item: item["status"].get("availableReplicas") == 1, "has a pod"
        )
        (pod,) = await case.pods("app=vllm")
        seen = await case.seen(pod["metadata"]["name"], count=4)
        status = (await case.api.get(case.path("Pod", pod["metadata"]["name"])))["status"]
        claim = await case.allocated(status["extendedResourceClaimStatus"]["resourceClaimName"])
    given = [case.gpus.at(one["pool"], one["device"]) for one in claim["status"]["allocation"]["devices"]["results"]]
    assert len(given) == 4
    assert seen == uuids(given)


async def test_a_pod_that_wants_a_product_that_is_not_there_waits(case):
    resource = await case.extended_resource()
    limits = {"limits": {resource: "1"}}
    spec = {"nodeSelector": {PRODUCT: "NVIDIA-of-no-such-product"}}
    await case.create(m.pod("pod", [], m.container("main", resources=limits), **spec))
    message = await case.unschedulable("pod")
    assert "node affinity/selector" in message


@pytest.mark.driver(gpus="h100@mig=1g.10gb*2,h100")
async def test_a_mig_resource_is_served_by_claims_through_a_class(case):
    """As `gpu-dra device-classes` makes them, but for the name, which is the run's own."""
    resource = "nvidia.com/mig-1g.10gb"
    *_, made = device_classes(["1g.10gb"])
    await case.require_fields(m.device_class("dry-run", extendedResourceName=resource))
    selectors = [one["cel"]["expression"] for one in made["spec"]["selectors"]]
    async with case.device_class("mig", *selectors, extendedResourceName=resource):
        limits = {"limits": {resource: "1"}}
        names = ("one", "two")
        await case.create(*(m.pod(name, [], m.container("main", resources=limits)) for name in names))
        await case.running(*names)
        lines = [line.strip() for name in names for line in (await case.output(name)).splitlines() if "MIG" in line]
        assert len(set(lines)) == len(lines) == 2
        await case.create(m.pod("three", [], m.container("main", resources=limits)))
        assert await case.unschedulable("three")
        await case.clean_up()
