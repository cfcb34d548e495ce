from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest

from driver.model.health import Effect, Taint
from driver.slices.build import build
from driver.slices.diff import Deletion, Owner, Plan, diff
from tests.unit.slices.helpers import FELL_OFF, NODE, OPTIONS, new_store, snapshot

OWNER = Owner(driver="gpu.nvidia.com", node_name=NODE, node_uid="node-uid")
L4S = build(snapshot("l4:130"), OPTIONS)  # three slices


class Cluster:
    """Real store semantics (resource versions, UIDs, server defaults) behind create, apply and observe."""

    def __init__(self) -> None:
        self.store = new_store()
        self.store.create("nodes", {"metadata": {"name": NODE}})
        uid = self.store.get("nodes", NODE)["metadata"]["uid"]
        self.owner = Owner(driver="gpu.nvidia.com", node_name=NODE, node_uid=uid)

    @property
    def slices(self) -> list[dict[str, Any]]:
        return deepcopy(self.store.list("resourceslices"))

    def plan(self, *wanted: dict[str, Any]) -> Plan:
        return diff(wanted, self.slices, self.owner)

    def apply(self, plan: Plan) -> None:
        for deletion in plan.deletions:
            self.store.delete(
                "resourceslices", deletion.name, uid=deletion.uid, resource_version=deletion.resource_version
            )
        for item in plan.updates:
            self.store.update("resourceslices", item)
        for item in plan.creations:
            self.store.create("resourceslices", item)

    def reach(self, *wanted: dict[str, Any]) -> Plan:
        plan = self.plan(*wanted)
        self.apply(plan)
        assert not self.plan(*wanted)
        return plan

    def change(self, index: int, **spec: Any) -> None:
        item = self.slices[index]
        self.store.update("resourceslices", {**item, "spec": {**item["spec"], **spec}})

    def generations(self) -> list[int]:
        return [item["spec"]["pool"]["generation"] for item in self.slices]


def shape(plan: Plan) -> tuple[int, int, int]:
    return len(plan.deletions), len(plan.updates), len(plan.creations)


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


def test_a_new_pool_is_created_owned_by_the_node_in_order_of_names(cluster: Cluster) -> None:
    assert shape(cluster.reach(*L4S)) == (0, 0, 3)
    assert cluster.generations() == [1, 1, 1]
    for index, item in enumerate(cluster.slices):
        metadata = item["metadata"]
        assert metadata["generateName"] == f"{index:02d}-gpu.nvidia.com-{NODE}-"
        assert metadata["name"].startswith(metadata["generateName"])
        assert metadata["ownerReferences"] == [
            {"apiVersion": "v1", "kind": "Node", "name": NODE, "uid": cluster.owner.node_uid, "controller": True}
        ]
        assert item["spec"]["devices"] == L4S[index]["devices"]


def test_slices_beyond_nine_stay_in_order() -> None:
    generated = [OWNER.generate_name(index) for index in range(20)]
    assert generated == sorted(generated)


def test_an_unchanged_pool_causes_no_write(cluster: Cluster) -> None:
    cluster.reach(*L4S)
    assert not cluster.plan(*build(snapshot("l4:130"), OPTIONS))


def test_server_defaults_and_spelling_cause_no_write(cluster: Cluster) -> None:
    sick = build(snapshot("l4:2", taints={0: (FELL_OFF,)}), OPTIONS)
    cluster.reach(*sick)
    (stored,) = cluster.slices
    assert "timeAdded" in stored["spec"]["devices"][0]["taints"][0]
    respelled = deepcopy(sick)
    respelled[0]["devices"][0]["capacity"]["memory"]["value"] = str(23034 << 20)
    assert not cluster.plan(*respelled)


def test_one_changed_slice_is_one_write_and_keeps_the_generation(cluster: Cluster) -> None:
    cluster.reach(*L4S)
    sick = build(snapshot("l4:130", taints={70: (FELL_OFF,)}), OPTIONS)
    assert shape(cluster.reach(*sick)) == (0, 1, 0)
    assert cluster.generations() == [1, 1, 1]


def test_two_changed_slices_raise_the_generation_of_all(cluster: Cluster) -> None:
    cluster.reach(*L4S)
    sick = build(snapshot("l4:130", taints={0: (FELL_OFF,), 70: (FELL_OFF,)}), OPTIONS)
    assert shape(cluster.reach(*sick)) == (0, 3, 0)
    assert cluster.generations() == [2, 2, 2]


def test_a_further_slice_raises_the_generation_of_all(cluster: Cluster) -> None:
    cluster.reach(*build(snapshot("l4:64"), OPTIONS))
    assert shape(cluster.reach(*build(snapshot("l4:65"), OPTIONS))) == (0, 1, 1)
    assert cluster.generations() == [2, 2]


def test_a_slice_less_is_deleted_first(cluster: Cluster) -> None:
    cluster.reach(*build(snapshot("l4:130"), OPTIONS))
    assert shape(cluster.reach(*build(snapshot("l4:65"), OPTIONS))) == (1, 2, 0)
    assert shape(cluster.reach(*build(snapshot("l4"), OPTIONS))) == (1, 1, 0)
    assert len(cluster.slices) == 1


def test_A13_a_deleted_slice_comes_back(cluster: Cluster) -> None:
    cluster.reach(*L4S)
    cluster.store.delete("resourceslices", cluster.slices[1]["metadata"]["name"])
    assert shape(cluster.reach(*L4S)) == (0, 2, 1)
    assert cluster.generations() == [2, 2, 2]
    for item in cluster.slices:
        cluster.store.delete("resourceslices", item["metadata"]["name"])
    assert shape(cluster.reach(*L4S)) == (0, 0, 3)


@pytest.mark.parametrize(
    "tampering",
    [
        {"devices": []},
        {"devices": [{"name": "gpu-0"}]},
        {"pool": {"name": NODE, "generation": 1, "resourceSliceCount": 9}},
    ],
)
def test_a_foreign_change_is_one_write(cluster: Cluster, tampering: dict[str, Any]) -> None:
    cluster.reach(*L4S)
    cluster.change(1, **tampering)
    assert shape(cluster.reach(*L4S)) == (0, 1, 0)


def test_a_slice_of_another_pool_is_replaced_as_the_name_of_a_pool_is_immutable(cluster: Cluster) -> None:
    cluster.reach(*L4S)
    others = [spec | {"pool": spec["pool"] | {"name": "other"}} for spec in L4S]
    assert shape(cluster.reach(*others)) == (3, 0, 3)


def test_a_foreign_generation_is_levelled(cluster: Cluster) -> None:
    cluster.reach(*L4S)
    cluster.change(1, pool={"name": NODE, "generation": 7, "resourceSliceCount": 3})
    assert shape(cluster.reach(*L4S)) == (0, 3, 0)
    assert cluster.generations() == [8, 8, 8]


def test_foreign_slices_of_the_same_driver_and_node_are_removed(cluster: Cluster) -> None:
    cluster.reach(*L4S)
    for name in ("x", "00-gpu.nvidia.com-node-b-x1", f"99-gpu.nvidia.com-{NODE}-zzzzz"):
        cluster.store.create("resourceslices", {"metadata": {"name": name}, "spec": L4S[0]})
    cluster.store.create("resourceslices", {"metadata": {"generateName": OWNER.generate_name(5)}, "spec": L4S[0]})
    plan = cluster.reach(*L4S)
    assert shape(plan) == (4, 0, 0)
    assert all(deletion.uid and deletion.resource_version for deletion in plan.deletions)


def test_of_duplicates_the_right_one_stays(cluster: Cluster) -> None:
    (wanted,) = build(snapshot("l4"), OPTIONS)
    generate = {"generateName": OWNER.generate_name(0)}
    wrong = {**wanted, "devices": [], "pool": {**wanted["pool"], "generation": 5}}
    cluster.store.create("resourceslices", {"metadata": generate, "spec": wrong})
    cluster.reach(wanted)
    right = cluster.slices[0]["metadata"]["name"]
    for _ in range(3):
        cluster.store.create("resourceslices", {"metadata": generate, "spec": wrong})
    plan = cluster.reach(wanted)
    assert shape(plan) == (3, 0, 0)
    assert cluster.slices[0]["metadata"]["name"] == right


def test_two_instances_choose_the_same_of_equal_duplicates(cluster: Cluster) -> None:
    (wanted,) = build(snapshot("l4"), OPTIONS)
    for _ in range(4):
        metadata = {"generateName": OWNER.generate_name(0), "ownerReferences": [cluster.owner.reference]}
        cluster.store.create("resourceslices", {"metadata": metadata, "spec": wanted})
    plans = [diff([wanted], order, cluster.owner) for order in (cluster.slices, cluster.slices[::-1])]
    assert plans[0] == plans[1]
    assert shape(plans[0]) == (3, 0, 0)


@pytest.mark.parametrize("other", [{"driver": "other.example.com"}, {"nodeName": "node-b"}])
def test_slices_of_others_are_never_touched(cluster: Cluster, other: dict[str, str]) -> None:
    spec = {**L4S[0], **other}
    cluster.store.create("resourceslices", {"metadata": {"generateName": OWNER.generate_name(0)}, "spec": spec})
    network = {"driver": "gpu.nvidia.com", "allNodes": True, "pool": {**L4S[0]["pool"], "name": "net"}}
    cluster.store.create("resourceslices", {"metadata": {"name": "net"}, "spec": network})
    before = cluster.slices
    assert shape(cluster.reach(*L4S)) == (0, 0, 3)
    assert [item for item in cluster.slices if item in before] == before


def test_a_node_that_was_made_anew_becomes_the_owner(cluster: Cluster) -> None:
    cluster.reach(*L4S[:1])
    cluster.owner = Owner(driver="gpu.nvidia.com", node_name=NODE, node_uid="another")
    plan = cluster.plan(*L4S[:1])
    assert shape(plan) == (0, 1, 0)
    assert [one["uid"] for one in plan.updates[0]["metadata"]["ownerReferences"]] == ["another"]


def test_an_update_keeps_the_labels_of_others_and_what_identifies_the_slice(cluster: Cluster) -> None:
    cluster.reach(*L4S[:1])
    item = cluster.slices[0]
    item["metadata"]["labels"] = {"team": "a"}
    item["metadata"]["managedFields"] = [{"manager": "x"}]
    (update,) = diff(build(snapshot("l4"), OPTIONS), [item], cluster.owner).updates
    assert update["metadata"]["labels"] == {"team": "a"}
    assert "managedFields" not in update["metadata"]
    for key in ("name", "uid", "resourceVersion", "ownerReferences"):
        assert update["metadata"][key] == item["metadata"][key]


def test_a_taint_keeps_the_time_since_which_it_is_there(cluster: Cluster) -> None:
    """Or tolerations for some seconds would begin anew with each change of a neighbour."""
    cluster.reach(*build(snapshot("l4:2", taints={0: (FELL_OFF,)}), OPTIONS))
    (item,) = cluster.slices
    item["spec"]["devices"][0]["taints"][0]["timeAdded"] = "2026-01-01T00:00:00Z"
    cluster.store.update("resourceslices", item)
    assert shape(cluster.reach(*build(snapshot("l4:2", taints={0: (FELL_OFF,), 1: (FELL_OFF,)}), OPTIONS))) == (0, 1, 0)
    first, second = (device["taints"][0]["timeAdded"] for device in cluster.slices[0]["spec"]["devices"])
    assert first == "2026-01-01T00:00:00Z" < second
    worse = Taint(FELL_OFF.key, FELL_OFF.value, Effect.NO_EXECUTE)
    cluster.reach(*build(snapshot("l4:2", taints={0: (worse,), 1: (FELL_OFF,)}), OPTIONS))
    first, same = (device["taints"][0]["timeAdded"] for device in cluster.slices[0]["spec"]["devices"])
    assert first > "2026-01-01T00:00:00Z"
    assert same == second


def test_a_taint_keeps_its_time_in_another_slice(cluster: Cluster) -> None:
    cluster.reach(*build(snapshot("l4:65", taints={64: (FELL_OFF,)}), OPTIONS))
    item = cluster.slices[1]
    item["spec"]["devices"][0]["taints"][0]["timeAdded"] = "2026-01-01T00:00:00Z"
    cluster.store.update("resourceslices", item)
    found = snapshot("l4:65", taints={64: (FELL_OFF,)})
    cluster.reach(*build(replace(found, gpus=found.gpus[1:]), OPTIONS))
    assert cluster.slices[0]["spec"]["devices"][-1]["taints"][0]["timeAdded"] == "2026-01-01T00:00:00Z"


def test_what_is_observed_is_not_changed(cluster: Cluster) -> None:
    cluster.reach(*L4S)
    slices = cluster.slices
    before = deepcopy(slices)
    diff(build(snapshot("l4"), OPTIONS), slices, cluster.owner)
    assert slices == before


def test_a_deletion_names_exactly_what_was_seen() -> None:
    item = {"metadata": {"name": "x", "uid": "u", "resourceVersion": "7"}, "spec": L4S[0]}
    assert diff([], [item], OWNER).deletions == (Deletion(name="x", uid="u", resource_version="7"),)


@pytest.mark.parametrize("spec", [None, {}, {"driver": "gpu.nvidia.com"}])
def test_an_odd_slice_is_not_ours(spec: Any) -> None:
    assert not diff([], [{"metadata": {"name": "x"}, "spec": spec}], OWNER)


def test_a_long_node_name_still_gives_a_valid_name(cluster: Cluster) -> None:
    node = ".".join(["n" * 60] * 4)
    owner = Owner(driver="gpu.nvidia.com", node_name=node)
    for creation in diff([{**L4S[0], "nodeName": node}] * 2, [], owner).creations:
        stored = cluster.store.create("resourceslices", creation)
        assert owner.index_of(stored) is not None
