from __future__ import annotations

import pytest

from driver.localcluster.controllers.deployments import DeploymentController
from driver.localcluster.controllers.jobs import JobController
from driver.localcluster.controllers.replicasets import ReplicaSetController
from tests.unit.localcluster.support import NAMESPACE, Running, make_store, wait_for


def deployment(replicas=2, image="busybox:1", **spec):
    labels = {"app": "web"}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "main", "image": image}]}}
    body = {"replicas": replicas, "selector": {"matchLabels": labels}, "template": template, **spec}
    return {"metadata": {"name": "web", "namespace": NAMESPACE}, "spec": body}


def job(**spec):
    template = {"spec": {"restartPolicy": "Never", "containers": [{"name": "main", "image": "busybox"}]}}
    return {"metadata": {"name": "j", "namespace": NAMESPACE}, "spec": {"template": template, **spec}}


def set_phase(store, pod, phase):
    conditions = [{"type": "Ready", "status": "True" if phase == "Running" else "False"}]
    patch = {"status": {"phase": phase, "conditions": conditions}}
    store.patch("pods", pod["metadata"]["name"], patch, NAMESPACE, subresource="status")


def running_on(store):
    """Play the kubelet: every pod that appears is ready at once."""

    class Kubelet:
        async def run(self):
            async for type_, pod in store.watch("pods"):
                if type_ == "ADDED":
                    set_phase(store, pod, "Running")

    return Kubelet()


def images(pods):
    return [pod["spec"]["containers"][0]["image"] for pod in pods]


def has_condition(objects, type_):
    conditions = (objects[0].get("status") or {}).get("conditions") or ()
    return [c for c in conditions if c["type"] == type_ and c["status"] == "True"]


async def test_a_deployment_gets_its_pods_and_says_so():
    store = make_store()
    async with Running(DeploymentController(store), ReplicaSetController(store), running_on(store)):
        store.create("deployments", deployment())
        await wait_for(store, "deployments", lambda found: found[0].get("status", {}).get("availableReplicas") == 2)
    (replica_set,) = store.list("replicasets")
    status = store.get("deployments", "web", NAMESPACE)["status"]
    assert (status["replicas"], status["updatedReplicas"], status["observedGeneration"]) == (2, 2, 1)
    assert {c["type"]: c["status"] for c in status["conditions"]} == {"Available": "True", "Progressing": "True"}
    assert replica_set["metadata"]["annotations"]["deployment.kubernetes.io/revision"] == "1"
    for pod in store.list("pods"):
        assert pod["metadata"]["labels"]["app"] == "web"
        assert pod["metadata"]["labels"]["pod-template-hash"] in replica_set["metadata"]["name"]


async def test_a_deployment_scales_up_and_down():
    store = make_store()
    async with Running(DeploymentController(store), ReplicaSetController(store), running_on(store)):
        store.create("deployments", deployment(1))
        for replicas in (4, 2, 0):
            store.patch("deployments", "web", {"spec": {"replicas": replicas}}, NAMESPACE)
            await wait_for(store, "pods", lambda pods, want=replicas: len(pods) == want)


async def test_a_deleted_pod_is_replaced():
    store = make_store()
    async with Running(DeploymentController(store), ReplicaSetController(store), running_on(store)):
        store.create("deployments", deployment(1))
        (first,) = await wait_for(store, "pods", list)
        store.delete("pods", first["metadata"]["name"], NAMESPACE)
        await wait_for(
            store, "pods", lambda pods: len(pods) == 1 and pods[0]["metadata"]["uid"] != first["metadata"]["uid"]
        )


@pytest.mark.parametrize("strategy", [{"type": "RollingUpdate"}, {"type": "Recreate"}])
async def test_a_new_template_is_rolled_out(strategy):
    store = make_store()
    async with Running(DeploymentController(store), ReplicaSetController(store), running_on(store)):
        store.create("deployments", deployment(3, strategy=strategy))
        await wait_for(store, "deployments", lambda found: found[0].get("status", {}).get("availableReplicas") == 3)
        store.update("deployments", deployment(3, "busybox:2", strategy=strategy))
        await wait_for(store, "pods", lambda pods: images(pods) == ["busybox:2"] * 3)
        await wait_for(store, "deployments", lambda found: found[0]["status"].get("updatedReplicas") == 3)
    replicas = {
        item["metadata"]["annotations"]["deployment.kubernetes.io/revision"]: item["spec"]["replicas"]
        for item in store.list("replicasets")
    }
    assert replicas == {"1": 0, "2": 3}


async def test_recreate_never_runs_both_templates():
    store = make_store()
    seen = []

    class Watcher:
        async def run(self):
            async for _ in store.watch("pods"):
                seen.append(set(images(store.list("pods"))))  # noqa: PERF401 - at that moment, not later

    strategy = {"type": "Recreate"}
    async with Running(DeploymentController(store), ReplicaSetController(store), running_on(store), Watcher()):
        store.create("deployments", deployment(2, strategy=strategy))
        await wait_for(store, "deployments", lambda found: found[0].get("status", {}).get("availableReplicas") == 2)
        store.update("deployments", deployment(2, "busybox:2", strategy=strategy))
        await wait_for(store, "pods", lambda pods: images(pods) == ["busybox:2"] * 2)
    assert {"busybox:1", "busybox:2"} not in seen


async def test_recreate_waits_for_pods_that_are_still_terminating():
    store = make_store()
    strategy = {"type": "Recreate"}
    async with Running(DeploymentController(store), ReplicaSetController(store)):
        store.create("deployments", deployment(1, strategy=strategy))
        (old,) = await wait_for(store, "pods", list)
        store.bind(old["metadata"]["name"], NAMESPACE, "a")
        set_phase(store, old, "Running")
        await wait_for(store, "deployments", lambda found: found[0].get("status", {}).get("availableReplicas") == 1)
        store.update("deployments", deployment(1, "busybox:2", strategy=strategy))
        await wait_for(store, "pods", lambda pods: pods[0]["metadata"].get("deletionTimestamp"))
        await wait_for(store, "replicasets", lambda sets: sets[0]["status"]["replicas"] == 0)
        await wait_for(store, "deployments", lambda found: not found[0]["status"].get("replicas"))
        assert images(store.list("pods")) == ["busybox:1"]
        store.delete("pods", old["metadata"]["name"], NAMESPACE, grace_seconds=0)
        await wait_for(store, "pods", lambda pods: images(pods) == ["busybox:2"])


async def test_a_rollout_to_pods_that_never_get_ready_keeps_enough_old_ones():
    store = make_store()
    labels = {"app": "web"}

    class Kubelet:
        async def run(self):
            async for type_, pod in store.watch("pods"):
                if type_ == "ADDED" and images([pod]) == ["busybox:1"]:
                    set_phase(store, pod, "Running")

    rolling = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}
    async with Running(DeploymentController(store), ReplicaSetController(store), Kubelet()):
        store.create("deployments", deployment(2, strategy=rolling))
        await wait_for(store, "deployments", lambda found: found[0].get("status", {}).get("availableReplicas") == 2)
        store.update("deployments", deployment(2, "busybox:2", strategy=rolling))
        await wait_for(store, "pods", lambda pods: "busybox:2" in images(pods))
        await wait_for(store, "deployments", lambda found: found[0]["status"].get("updatedReplicas") == 1)
    assert sorted(images(store.list("pods"))) == ["busybox:1", "busybox:1", "busybox:2"]
    assert all(pod["metadata"]["labels"].items() >= labels.items() for pod in store.list("pods"))


async def test_a_deployment_takes_its_pods_along():
    store = make_store()
    async with Running(DeploymentController(store), ReplicaSetController(store), running_on(store)):
        store.create("deployments", deployment())
        await wait_for(store, "pods", lambda pods: len(pods) == 2)
        store.delete("deployments", "web", NAMESPACE)
        await wait_for(store, "pods", lambda pods: not pods)
    assert store.list("replicasets") == []


async def test_a_refused_pod_is_told_and_tried_again():
    store = make_store()
    body = deployment(1)
    body["spec"]["template"]["spec"]["serviceAccountName"] = "robot"
    async with Running(DeploymentController(store), ReplicaSetController(store), running_on(store)):
        store.create("deployments", body)
        failed = await wait_for(store, "events", lambda found: [e for e in found if e["reason"] == "FailedCreate"])
        assert 'serviceaccount "robot" not found' in failed[0]["message"]
        store.create("serviceaccounts", {"metadata": {"name": "robot", "namespace": NAMESPACE}})
        await wait_for(store, "pods", list)


async def test_a_job_runs_to_its_completions():
    store = make_store()
    async with Running(JobController(store)):
        store.create("jobs", job(completions=3, parallelism=2))
        for _ in range(3):
            (todo, *_) = await wait_for(
                store, "pods", lambda pods: [p for p in pods if p["status"]["phase"] == "Pending"]
            )
            set_phase(store, todo, "Succeeded")
        await wait_for(store, "jobs", lambda jobs: has_condition(jobs, "Complete"))
    status = store.get("jobs", "j", NAMESPACE)["status"]
    assert status["succeeded"] == 3
    assert "active" not in status
    assert status["completionTime"]
    assert len(store.list("pods")) == 3


async def test_a_job_gives_up_after_its_backoff_limit():
    store = make_store()
    async with Running(JobController(store)):
        store.create("jobs", job(backoffLimit=1))
        for _ in range(2):
            (todo,) = await wait_for(store, "pods", lambda pods: [p for p in pods if p["status"]["phase"] == "Pending"])
            set_phase(store, todo, "Failed")
        (failed,) = await wait_for(store, "jobs", lambda jobs: has_condition(jobs, "Failed"))
    assert failed["reason"] == "BackoffLimitExceeded"
    assert [pod["status"]["phase"] for pod in store.list("pods")] == ["Failed", "Failed"]


async def test_a_suspended_job_has_no_pods_until_it_is_resumed():
    store = make_store()
    async with Running(JobController(store)):
        store.create("jobs", job(suspend=True))
        await wait_for(store, "jobs", lambda jobs: jobs[0].get("status"))
        assert store.list("pods") == []
        store.patch("jobs", "j", {"spec": {"suspend": False}}, NAMESPACE)
        await wait_for(store, "pods", list)
