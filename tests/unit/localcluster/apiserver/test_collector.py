from __future__ import annotations

import pytest

from driver.localcluster.apiserver import StatusError
from driver.localcluster.apiserver.objects import clone
from tests.unit.localcluster.apiserver.conftest import a_slice, claim, pod, template


def owned(obj, *owners):
    made = clone(obj)
    made["metadata"]["ownerReferences"] = [
        {"apiVersion": o["apiVersion"], "kind": o["kind"], "name": o["metadata"]["name"], "uid": o["metadata"]["uid"]}
        for o in owners
    ]
    return made


@pytest.fixture
def node(store):
    return store.create("nodes", {"metadata": {"name": "n1"}})


def test_dependents_go_with_their_owner(store, node):
    store.create("resourceslices", owned(a_slice(), node))
    store.delete("nodes", "n1")
    assert store.list("resourceslices") == []


def test_grandchildren_go_too(store):
    job = store.create("jobs", {"metadata": {"name": "j"}, "spec": {"template": template()}}, "default")
    made = store.create("pods", owned(pod(), job), "default")
    store.create("resourceclaims", owned(claim(), made), "default")
    store.delete("jobs", "j", "default")
    assert store.list("pods") == store.list("resourceclaims") == []


def test_a_second_owner_keeps_a_dependent(store, node):
    other = store.create("nodes", {"metadata": {"name": "n2"}})
    store.create("resourceslices", owned(a_slice(), node, other))
    store.delete("nodes", "n1")
    kept = store.get("resourceslices", "s")
    assert [owner["name"] for owner in kept["metadata"]["ownerReferences"]] == ["n2"]


def test_orphans_stay(store, node):
    store.create("resourceslices", owned(a_slice(), node))
    store.delete("nodes", "n1", propagation="Orphan")
    assert not store.get("resourceslices", "s")["metadata"].get("ownerReferences")


def test_foreground_waits_for_the_dependents(store, node):
    dependent = owned(claim(), node)
    dependent["metadata"]["finalizers"] = ["example.com/hold"]
    store.create("resourceclaims", dependent, "default")
    waiting = store.delete("nodes", "n1", propagation="Foreground")
    assert waiting["metadata"]["finalizers"] == ["foregroundDeletion"]
    held = clone(store.get("resourceclaims", "c", "default"))
    assert held["metadata"]["deletionTimestamp"]
    held["metadata"]["finalizers"] = []
    store.update("resourceclaims", held)
    assert store.find("nodes", "n1") is None


def test_foreground_without_dependents_is_immediate(store, node):
    store.delete("nodes", "n1", propagation="Foreground")
    assert store.find("nodes", "n1") is None


def test_a_namespace_goes_with_its_content(store):
    store.create("namespaces", {"metadata": {"name": "x"}})
    store.create("configmaps", {"metadata": {"name": "c"}}, "x")
    store.delete("namespaces", "x")
    assert store.find("namespaces", "x") is None
    assert store.list("configmaps", "x") == store.list("serviceaccounts", "x") == []


def test_a_namespace_waits_for_a_running_pod(store):
    store.create("namespaces", {"metadata": {"name": "x"}})
    store.create("pods", pod(), "x")
    store.bind("p", "x", "n1")
    store.delete("namespaces", "x")
    assert store.get("namespaces", "x")["status"]["phase"] == "Terminating"
    with pytest.raises(StatusError, match="because it is being terminated") as caught:
        store.create("configmaps", {"metadata": {"name": "late"}}, "x")
    assert caught.value.code == 403
    store.delete("pods", "p", "x", grace_seconds=0)
    assert store.find("namespaces", "x") is None


def test_a_namespace_has_a_service_account(store):
    store.create("namespaces", {"metadata": {"name": "x"}})
    assert store.get("serviceaccounts", "default", "x")


@pytest.mark.parametrize("name", ["default", "kube-system", "kube-public"])
def test_the_clusters_own_namespaces_stay(store, name):
    if store.find("namespaces", name) is None:
        store.create("namespaces", {"metadata": {"name": name}})
    with pytest.raises(StatusError, match="this namespace may not be deleted") as caught:
        store.delete("namespaces", name)
    assert caught.value.code == 403
