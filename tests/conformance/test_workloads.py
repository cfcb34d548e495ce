"""Workloads as people run them: deployments, jobs, a model server, tainted nodes, extended resources."""

from __future__ import annotations

import contextlib

import pytest

from driver.kube.client import STRATEGIC_MERGE_PATCH
from tests.conformance import manifests as m
from tests.conformance.case import uuids


@pytest.mark.gpus(2)
async def test_the_pods_of_a_deployment_get_a_gpu_each(case):
    await case.create(m.template("one"), m.deployment("web", m.pod_spec([m.from_template("one")]), replicas=2))
    await case.wait.one("Deployment", "web", _available(2), "has 2 available pods")
    pods = await case.pods("app=web")
    seen = [await case.seen(pod["metadata"]["name"]) for pod in pods]
    assert len(pods) == len(set.union(*seen)) == 2


async def test_a_pod_of_a_deployment_that_is_deleted_is_replaced_with_a_claim_of_its_own(case):
    await case.create(m.template("one"), m.deployment("web", m.pod_spec([m.from_template("one")])))
    await case.wait.one("Deployment", "web", _available(1), "has an available pod")
    (old,) = await case.pods("app=web")
    claim = await case.claim_of(old["metadata"]["name"])
    await case.delete("Pod", old["metadata"]["name"])
    await case.wait.gone("ResourceClaim", claim["metadata"]["name"])
    await case.wait.one("Deployment", "web", _available(1), "has an available pod again")
    (new,) = await case.pods("app=web")
    assert await case.seen(new["metadata"]["name"]) == uuids(await case.given(new["metadata"]["name"]))


async def test_a_job_runs_to_its_end_and_frees_its_gpu(case):
    spec = m.pod_spec([m.from_template("one")], m.container("main", "gpu", command=m.script(m.SHOW, wait=False)))
    await case.create(m.template("one"), m.job("train", spec))
    await case.wait.one("Job", "train", lambda job: job["status"].get("succeeded") == 1, "has succeeded")
    (pod,) = await case.pods("job-name=train")
    assert len(await case.seen(pod["metadata"]["name"])) == 1
    await case.wait.gone("ResourceClaim")


@pytest.mark.gpus(4)
async def test_a_model_server_gets_four_gpus_and_shared_memory(case):
    """As vLLM is run with tensor parallelism: claim template, in-memory /dev/shm, startup probe, toleration."""
    main = m.container(
        "main",
        "gpu",
        command=m.script("echo shared >/dev/shm/segment && cat /dev/shm/segment", "touch /tmp/healthy", m.SHOW),
        volumeMounts=[{"name": "shm", "mountPath": "/dev/shm"}],
        startupProbe={"exec": {"command": ["test", "-e", "/tmp/healthy"]}, "periodSeconds": 1, "failureThreshold": 60},
    )
    volumes = [{"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "64Mi"}}]
    spec = m.pod_spec([m.from_template("four")], main, volumes=volumes)
    await case.create(m.template("four", m.devices(m.request("gpus", 4))), m.deployment("vllm", spec))
    await case.wait.one("Deployment", "vllm", _available(1), "has an available pod")
    (pod,) = await case.pods("app=vllm")
    name = pod["metadata"]["name"]
    assert len(await case.seen(name)) == 4
    assert "shared" in await case.output(name)


async def test_a_tainted_node_takes_only_pods_that_tolerate_it(case):
    claims = [m.from_template("one")]
    async with tainted_gpu_nodes(case):
        await case.create(m.template("one"), m.pod("stranger", claims, tolerations=[]), m.pod("guest", claims))
        await case.running("guest")
        message = await case.unschedulable("stranger")
    assert "taint" in message  # newer schedulers do not say which


@pytest.mark.gpus(2)
async def test_an_extended_resource_is_served_by_a_claim(case):
    limits = {"limits": {await case.extended_resource(): "2"}}
    await case.create(m.pod("pod", [], m.container("main", resources=limits)))
    await case.running("pod")
    assert len(await case.seen("pod")) == 2


async def test_every_class_is_an_extended_resource_by_its_own_name(case):
    await case.require_fields(m.device_class("dry-run", extendedResourceName="example.com/gpu"))
    limits = {"limits": {f"deviceclass.resource.kubernetes.io/{m.CLASS}": "1"}}
    await case.create(m.pod("pod", [], m.container("main", resources=limits)))
    await case.running("pod")
    assert len(await case.seen("pod")) == 1


@contextlib.asynccontextmanager
async def tainted_gpu_nodes(case):
    """Taint every node with GPUs, as administrators do, unless all are."""
    nodes = [await case.api.get(case.path("Node", pool)) for pool in sorted({gpu.pool for gpu in case.gpus.all})]
    bare = [node for node in nodes if not any(t["key"] == "nvidia.com/gpu" for t in node["spec"].get("taints") or ())]
    if bare:
        case.cluster.require("disrupt")
    paths = [case.path("Node", node["metadata"]["name"]) for node in bare]
    taint = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}
    try:
        for path in paths:
            await _patch_taints(case, path, [taint])
        yield
    finally:
        for path in paths:
            await _patch_taints(case, path, [{"$patch": "delete", "key": "nvidia.com/gpu", "effect": "NoSchedule"}])


async def _patch_taints(case, path, taints):
    await case.api.patch(path, {"spec": {"taints": taints}}, content_type=STRATEGIC_MERGE_PATCH)


def _available(count):
    def holds(deployment):
        status = deployment["status"]
        current = status.get("observedGeneration", 0) >= deployment["metadata"]["generation"]
        return current and status.get("availableReplicas", 0) == status.get("replicas", 0) == count

    return holds
