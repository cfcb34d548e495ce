from __future__ import annotations

from datetime import UTC, datetime

import pytest

from driver.localcluster.apiserver import StatusError, Store
from driver.localcluster.apiserver.objects import clone
from tests.unit.localcluster.apiserver.conftest import a_slice, claim, pod


def test_create_fills_in_what_the_server_owns(store):
    made = store.create("resourceclaims", claim(), "default")
    assert made["apiVersion"] == "resource.k8s.io/v1"
    assert made["kind"] == "ResourceClaim"
    assert made["metadata"]["namespace"] == "default"
    assert len(made["metadata"]["uid"]) == 36
    assert made["metadata"]["resourceVersion"] == str(store.revision)
    assert made["spec"]["devices"]["requests"][0]["exactly"] == {
        "deviceClassName": "gpu.nvidia.com",
        "allocationMode": "ExactCount",
        "count": 1,
    }


def test_create_leaves_its_argument_alone(store):
    given = claim()
    before = clone(given)
    store.create("resourceclaims", given, "default")
    assert given == before


def test_a_second_create_of_one_name_is_refused(store):
    store.create("resourceclaims", claim(), "default")
    with pytest.raises(StatusError, match=r'resourceclaims.resource.k8s.io "c" already exists') as caught:
        store.create("resourceclaims", claim(), "default")
    assert (caught.value.code, caught.value.reason) == (409, "AlreadyExists")


def test_generated_names_differ_and_stay_within_63_characters(store):
    given = claim()
    given["metadata"] = {"generateName": "x" * 70}
    names = {store.create("resourceclaims", given, "default")["metadata"]["name"] for _ in range(3)}
    assert len(names) == 3
    assert {len(name) for name in names} == {63}


def test_a_name_is_needed(store):
    with pytest.raises(StatusError, match="name or generateName is required") as caught:
        store.create("resourceclaims", {"metadata": {}, "spec": {}}, "default")
    assert caught.value.code == 422


def test_what_is_missing_is_404(store):
    for call in (lambda: store.get("pods", "x", "default"), lambda: store.delete("pods", "x", "default")):
        with pytest.raises(StatusError, match='pods "x" not found') as caught:
            call()
        assert caught.value.code == 404


def test_a_namespace_that_is_missing_is_404(store):
    with pytest.raises(StatusError, match='namespaces "nowhere" not found'):
        store.create("configmaps", {"metadata": {"name": "x"}}, "nowhere")


def test_an_update_of_an_old_version_conflicts(store):
    old = store.create("configmaps", {"metadata": {"name": "x"}, "data": {"a": "1"}}, "default")
    store.update("configmaps", {**old, "data": {"a": "2"}})
    with pytest.raises(StatusError, match="the object has been modified") as caught:
        store.update("configmaps", {**old, "data": {"a": "3"}})
    assert (caught.value.code, caught.value.reason) == (409, "Conflict")


def test_an_update_for_another_uid_conflicts(store):
    store.create("configmaps", {"metadata": {"name": "x"}}, "default")
    with pytest.raises(StatusError, match="Precondition failed: UID"):
        store.update("configmaps", {"metadata": {"name": "x", "namespace": "default", "uid": "other"}})


def test_an_update_that_changes_nothing_writes_nothing(store):
    made = store.create("resourceslices", a_slice())
    writes = store.writes
    assert store.update("resourceslices", clone(made)) == made
    assert store.writes == writes


def test_generation_follows_the_spec_alone(store):
    made = clone(store.create("resourceslices", a_slice()))
    made["metadata"]["labels"] = {"a": "b"}
    labelled = clone(store.update("resourceslices", made))
    assert labelled["metadata"]["generation"] == 1
    labelled["spec"]["devices"].append({"name": "gpu-1"})
    assert store.update("resourceslices", labelled)["metadata"]["generation"] == 2


def test_status_and_spec_are_written_apart(store):
    made = clone(store.create("pods", pod(), "default"))
    assert made["status"]["phase"] == "Pending"
    made["status"]["phase"] = "Running"
    made["spec"]["nodeName"] = "n1"
    assert store.update_status("pods", made)["spec"].get("nodeName") is None
    assert store.get("pods", "p", "default")["status"]["phase"] == "Running"
    again = clone(store.get("pods", "p", "default"))
    again["status"]["phase"] = "Failed"
    again["metadata"]["labels"] = {"a": "b"}
    assert store.update("pods", again)["status"]["phase"] == "Running"


def test_a_status_write_of_a_claim_keeps_its_labels(store):
    made = clone(store.create("resourceclaims", claim(), "default"))
    made["metadata"]["labels"] = {"a": "b"}
    made["status"] = {}
    assert "labels" not in store.update_status("resourceclaims", made)["metadata"]


def test_create_drops_a_status(store):
    given = claim() | {"status": {"reservedFor": [{"resource": "pods", "name": "p", "uid": "u"}]}}
    assert "status" not in store.create("resourceclaims", given, "default")


def test_a_node_registers_with_its_status(store):
    node = {"metadata": {"name": "n1"}, "status": {"capacity": {"cpu": "4"}}}
    assert store.create("nodes", node)["status"] == {"capacity": {"cpu": "4"}}


def test_delete_checks_its_preconditions(store):
    made = store.create("resourceslices", a_slice())
    for given in ({"uid": "other"}, {"resource_version": "0"}):
        with pytest.raises(StatusError) as caught:
            store.delete("resourceslices", "s", **given)
        assert caught.value.code == 409
    meta = made["metadata"]
    store.delete("resourceslices", "s", uid=meta["uid"], resource_version=meta["resourceVersion"])
    assert store.list("resourceslices") == []


def test_finalizers_hold_an_object(store):
    given = claim()
    given["metadata"]["finalizers"] = ["example.com/hold"]
    store.create("resourceclaims", given, "default")
    store.delete("resourceclaims", "c", "default")
    held = clone(store.get("resourceclaims", "c", "default"))
    assert held["metadata"]["deletionTimestamp"]
    held["metadata"]["finalizers"] = []
    store.update("resourceclaims", held)
    assert store.find("resourceclaims", "c", "default") is None


def test_a_pod_without_a_node_goes_at_once(store):
    store.create("pods", pod(), "default")
    store.delete("pods", "p", "default")
    assert store.find("pods", "p", "default") is None


def test_a_bound_pod_waits_for_its_kubelet(store):
    store.create("pods", pod(), "default")
    store.bind("p", "default", "n1")
    marked = store.delete("pods", "p", "default")
    assert marked["metadata"]["deletionGracePeriodSeconds"] == 30
    shorter = store.delete("pods", "p", "default", grace_seconds=5)
    assert shorter["metadata"]["deletionGracePeriodSeconds"] == 5
    store.delete("pods", "p", "default", grace_seconds=0)
    assert store.find("pods", "p", "default") is None


def test_a_pod_is_bound_once(store):
    store.create("pods", pod(), "default")
    bound = store.bind("p", "default", "n1")
    assert bound["spec"]["nodeName"] == "n1"
    assert bound["status"]["conditions"][0]["type"] == "PodScheduled"
    with pytest.raises(StatusError, match="already assigned to node"):
        store.bind("p", "default", "n2")


def test_text_of_a_secret_is_stored_as_data(store):
    body = {"metadata": {"name": "s"}, "data": {"a": "YQ==", "b": "Yg=="}, "stringData": {"b": "new"}}
    made = store.create("secrets", body, "default")
    assert (made["data"], made["type"]) == ({"a": "YQ==", "b": "bmV3"}, "Opaque")
    assert "stringData" not in made
    changed = store.patch("secrets", "s", {"stringData": {"c": "c"}}, "default")
    assert changed["data"] == {"a": "YQ==", "b": "bmV3", "c": "Yw=="}


@pytest.mark.parametrize(
    ("limits", "requests", "wanted"),
    [
        ({"nvidia.com/gpu": 1}, {}, "BestEffort"),
        ({"nvidia.com/gpu": 1, "cpu": "1", "memory": "1Gi"}, {}, "Guaranteed"),
        ({"cpu": "1", "memory": "1Gi"}, {"cpu": "500m"}, "Burstable"),
        ({"cpu": "1"}, {}, "Burstable"),
    ],
)
def test_devices_do_not_count_for_the_quality_of_service(store, limits, requests, wanted):
    container = {"name": "c", "image": "x", "resources": {"limits": limits, "requests": requests}}
    made = store.create("pods", {"metadata": {"name": "p"}, "spec": {"containers": [container]}}, "default")
    assert made["status"]["qosClass"] == wanted


def test_dry_run_stores_nothing(store):
    revision = store.revision
    store.create("configmaps", {"metadata": {"name": "x"}}, "default", dry_run=True)
    assert store.find("configmaps", "x", "default") is None
    made = store.create("configmaps", {"metadata": {"name": "y"}}, "default")
    store.update("configmaps", {**made, "data": {"a": "b"}}, dry_run=True)
    store.delete("configmaps", "y", "default", dry_run=True)
    assert store.get("configmaps", "y", "default") == made
    assert store.revision == revision + 1


def test_lists_are_ordered_by_namespace_and_name(store):
    store.create("namespaces", {"metadata": {"name": "a"}})
    for namespace, name in (("default", "b"), ("default", "a"), ("a", "z")):
        store.create("configmaps", {"metadata": {"name": name}}, namespace)
    keys = [(obj["metadata"]["namespace"], obj["metadata"]["name"]) for obj in store.list("configmaps")]
    assert keys == [("a", "z"), ("default", "a"), ("default", "b")]
    assert len(store.list("configmaps", "default")) == 2


def test_lists_of_one_node_follow_binding_and_deletion(store):
    def names(node, namespace=None):
        return [p["metadata"]["name"] for p in store.list("pods", namespace, field_selector=f"spec.nodeName={node}")]

    for name in ("b", "a"):
        store.create("pods", pod(name), "default")
    assert names("") == ["a", "b"]
    assert names("n1") == []
    store.bind("a", "default", "n1")
    assert (names("n1"), names("n1", "default"), names("n1", "other"), names("")) == (["a"], ["a"], [], ["b"])
    store.delete("pods", "a", "default", grace_seconds=0)
    assert names("n1") == []


def test_a_patch_may_be_a_merge_or_operations(store):
    store.create("configmaps", {"metadata": {"name": "x"}, "data": {"a": "1", "b": "2"}}, "default")
    store.patch("configmaps", "x", {"data": {"a": None}}, "default")
    operations = [{"op": "add", "path": "/data/c", "value": "3"}]
    assert store.patch("configmaps", "x", operations, "default")["data"] == {"b": "2", "c": "3"}


def test_a_patch_cannot_rename(store):
    store.create("configmaps", {"metadata": {"name": "x"}}, "default")
    with pytest.raises(StatusError, match="can't be changed by a patch"):
        store.patch("configmaps", "x", {"metadata": {"name": "y"}}, "default")


def test_times_come_from_the_clock():
    store = Store(clock=lambda: datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC))
    node = store.create("nodes", {"metadata": {"name": "n"}})
    assert node["metadata"]["creationTimestamp"] == "2026-01-02T03:04:05Z"


async def test_watch_begins_with_the_present_state(store):
    store.create("resourceslices", a_slice("a"))
    watch = store.watch("resourceslices")
    assert [(t, o["metadata"]["name"]) for t, o in [await anext(watch)]] == [("ADDED", "a")]
    store.create("resourceslices", a_slice("b"))
    type_, obj = await anext(watch)
    assert (type_, obj["metadata"]["name"]) == ("ADDED", "b")
    store.delete("resourceslices", "a")
    type_, obj = await anext(watch)
    assert (type_, obj["metadata"]["name"]) == ("DELETED", "a")
    assert obj["metadata"]["resourceVersion"] == str(store.revision)
    await watch.aclose()


async def test_watch_since_a_version_hears_only_what_came_after(store):
    first = store.create("resourceslices", a_slice("a"))
    store.create("resourceslices", a_slice("b"))
    watch = store.watch("resourceslices", since=first["metadata"]["resourceVersion"])
    assert (await anext(watch))[1]["metadata"]["name"] == "b"
    await watch.aclose()


async def test_watch_from_a_compacted_version_is_410(store):
    first = store.create("resourceslices", a_slice("a"))
    store.create("resourceslices", a_slice("b"))
    store.compact()
    with pytest.raises(StatusError, match="too old resource version") as caught:
        await anext(store.watch("resourceslices", since=first["metadata"]["resourceVersion"]))
    assert caught.value.code == 410


async def test_history_is_bounded():
    store = Store(history=3)
    for at in range(5):
        store.create("nodes", {"metadata": {"name": f"n{at}"}})
    with pytest.raises(StatusError):
        await anext(store.watch("nodes", since=1))


async def test_a_selector_turns_changes_into_comings_and_goings(store):
    watch = store.watch("pods", "default", field_selector="spec.nodeName=n1", since=store.revision)
    store.create("pods", pod("p"), "default")
    store.bind("p", "default", "n1")
    assert (await anext(watch))[0] == "ADDED"
    store.patch("pods", "p", {"metadata": {"labels": {"a": "b"}}}, "default")
    assert (await anext(watch))[0] == "MODIFIED"
    store.create("pods", pod("q"), "default")
    store.bind("q", "default", "n2")
    store.delete("pods", "p", "default", grace_seconds=0)
    type_, obj = await anext(watch)
    assert (type_, obj["metadata"]["name"]) == ("DELETED", "p")
    await watch.aclose()


async def test_pods_on_no_node_can_be_watched(store):
    watch = store.watch("pods", field_selector="spec.nodeName=", since=store.revision)
    store.create("pods", pod(), "default")
    assert (await anext(watch))[0] == "ADDED"
    store.bind("p", "default", "n1")
    assert (await anext(watch))[0] == "DELETED"
    await watch.aclose()


async def test_a_closed_store_ends_its_watches(store):
    watch = store.watch("pods", since=store.revision)
    store.create("pods", pod(), "default")
    await anext(watch)
    store.close_watches()
    assert [event async for event in watch] == []


@pytest.mark.parametrize("watchers", [1, 50])
async def test_a_watch_of_one_node_is_not_woken_for_others(store, watchers):
    interests = [store.interest("resourceslices", None, f"spec.nodeName=n{at}") for at in range(watchers)]
    subscriptions = [store.subscribe("resourceslices", interest, store.revision) for interest in interests]
    store.create("resourceslices", a_slice(node="n0"))
    assert [len(subscription.pending()) for subscription in subscriptions] == [1] + [0] * (watchers - 1)
    for subscription in subscriptions:
        subscription.close()
