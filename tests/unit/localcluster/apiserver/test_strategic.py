from __future__ import annotations

import pytest

from driver.localcluster.apiserver import StatusError
from driver.localcluster.apiserver.strategic import strategic_patch

POD = {
    "metadata": {"labels": {"a": "b"}, "finalizers": ["x"]},
    "spec": {
        "containers": [
            {"name": "a", "image": "1", "env": [{"name": "E", "value": "1"}]},
            {"name": "b", "image": "2"},
        ],
        "tolerations": [{"key": "k"}],
        "volumes": [{"name": "v", "emptyDir": {}}],
    },
}


def patched(spec=None, **rest):
    return strategic_patch("v1", "Pod", POD, {**({"spec": spec} if spec is not None else {}), **rest})


def test_lists_merge_by_their_key():
    found = patched({"containers": [{"name": "b", "image": "3"}, {"name": "c"}]})
    assert [(c["name"], c.get("image")) for c in found["spec"]["containers"]] == [("a", "1"), ("b", "3"), ("c", None)]


def test_inner_lists_merge_too():
    env = patched({"containers": [{"name": "a", "env": [{"name": "F", "value": "2"}]}]})["spec"]["containers"][0]["env"]
    assert [e["name"] for e in env] == ["E", "F"]


def test_an_element_can_be_deleted():
    found = patched({"containers": [{"name": "a", "$patch": "delete"}, {"name": "zzz", "$patch": "delete"}]})
    assert [c["name"] for c in found["spec"]["containers"]] == ["b"]


def test_a_list_can_be_replaced():
    found = patched({"containers": [{"$patch": "replace"}, {"name": "z"}]})
    assert found["spec"]["containers"] == [{"name": "z"}]


def test_a_map_can_be_replaced_or_deleted():
    assert patched(metadata={"$patch": "replace", "labels": {"c": "d"}})["metadata"] == {"labels": {"c": "d"}}
    assert patched(metadata={"$patch": "delete"})["metadata"] == {}


def test_lists_without_a_key_are_replaced():
    assert patched({"tolerations": [{"key": "z"}]})["spec"]["tolerations"] == [{"key": "z"}]


def test_plain_values_merge_as_a_set_and_can_be_taken_out():
    assert patched(metadata={"finalizers": ["y", "x"]})["metadata"]["finalizers"] == ["x", "y"]
    assert patched(metadata={"$deleteFromPrimitiveList/finalizers": ["x"]})["metadata"]["finalizers"] == []


def test_retain_keys_drops_the_others():
    found = patched({"volumes": [{"name": "v", "$retainKeys": ["name", "hostPath"], "hostPath": {"path": "/x"}}]})
    assert found["spec"]["volumes"] == [{"name": "v", "hostPath": {"path": "/x"}}]


def test_the_order_can_be_set():
    order = {"$setElementOrder/containers": [{"name": "b"}, {"name": "a"}]}
    assert [c["name"] for c in patched(order)["spec"]["containers"]] == ["b", "a"]


def test_null_removes():
    assert "labels" not in patched(metadata={"labels": None})["metadata"]


def test_maps_of_messages_merge():
    limits = {"spec": {"containers": [{"name": "a", "resources": {"limits": {"cpu": "1"}}}]}}
    found = strategic_patch(
        "v1", "Pod", limits, {"spec": {"containers": [{"name": "a", "resources": {"limits": {"memory": "1Gi"}}}]}}
    )
    assert found["spec"]["containers"][0]["resources"]["limits"] == {"cpu": "1", "memory": "1Gi"}


@pytest.mark.parametrize(
    "patch", [{"spec": {"containers": [{"image": "x"}]}}, {"spec": {"$patch": "jump"}}, {"spec": {"containers": ["x"]}}]
)
def test_what_can_not_be_understood_is_400(patch):
    with pytest.raises(StatusError) as caught:
        strategic_patch("v1", "Pod", POD, patch)
    assert caught.value.code == 400
