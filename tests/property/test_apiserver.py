"""Whatever comes in, the API server answers with a refusal of its own or does what it should."""

from __future__ import annotations

import json

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from driver.localcluster.apiserver.conversion import from_served, to_served
from driver.localcluster.apiserver.errors import StatusError
from driver.localcluster.apiserver.fields import fields_of, type_name
from driver.localcluster.apiserver.patch import json_patch, merge_patch
from driver.localcluster.apiserver.protobuf import read
from driver.localcluster.apiserver.resources import RESOURCES
from driver.localcluster.apiserver.schema import check
from driver.localcluster.apiserver.store import Store
from driver.localcluster.apiserver.strategic import strategic_patch
from tests.examples import examples


def answer(call, *arguments, **more):
    """Return the code of an answer; anything but a result or a refusal fails the test."""
    try:
        call(*arguments, **more)
    except StatusError as error:
        return error.code
    return 200


_LEAVES = st.none() | st.booleans() | st.integers(-5, 200) | st.sampled_from(["", "a", "A_b", "1Gi", "x" * 70, "a/b"])


def _value(field, depth):
    if not field.is_message:
        plain = {
            "string": st.sampled_from(["", "a", "a/b", "e.com/x", "All", "NoSchedule", "x" * 70]),
            "bool": st.booleans(),
            "int": st.integers(-2, 40),
            "quantity": st.sampled_from(["1", "1Gi", "0", "-3", "5m"]),
        }.get(field.type, _LEAVES)
        inner = plain | _LEAVES if depth % 3 == 0 else plain
    else:
        inner = _message(field.type, depth - 1)
    if field.shape == "list":
        return st.lists(inner, max_size=3)
    if field.shape == "map":
        return st.dictionaries(st.sampled_from(["", "a", "b", "e.com/x", "a-b"]), inner, max_size=3)
    return inner


def _message(type_, depth=4):
    """Objects of a type of the API, of the right shape for the most part."""
    if depth <= 0:
        return st.just({})
    fields = fields_of(type_)
    return st.lists(st.sampled_from(sorted(fields)), max_size=4, unique=True).flatmap(
        lambda names: st.fixed_dictionaries({name: _value(fields[name], depth) for name in names})
    )


@st.composite
def _object(draw, plural):
    kind = RESOURCES[plural]
    obj = draw(_message(type_name(kind.api_version, kind.kind), 6))
    return {**obj, "metadata": {"name": "x"}}


@pytest.mark.parametrize(
    "plural",
    [
        "resourceslices",
        "resourceclaims",
        "resourceclaimtemplates",
        "deviceclasses",
        "pods",
        "jobs",
        "deployments",
        "nodes",
        "events",
        "namespaces",
        "clusterroles",
        "serviceaccounts",
    ],
)
@settings(max_examples=examples(40), suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_a_write_is_done_or_refused(plural, data):
    store = Store()
    store.create("namespaces", {"metadata": {"name": "default"}})
    namespace = "default" if RESOURCES[plural].namespaced else None
    revision = store.revision
    code = answer(store.create, plural, data.draw(_object(plural)), namespace)
    if code != 200:
        assert 400 <= code < 500
        assert store.revision == revision
        return
    made = store.get(plural, "x", namespace)
    store.update(plural, made)
    changed = {**data.draw(_object(plural)), "metadata": made["metadata"]}
    for subresource in ("", "status"):
        assert answer(store.update, plural, changed, subresource=subresource) in (200, 400, 409, 422)
    json.dumps(store.get(plural, "x", namespace))


@settings(max_examples=examples(60), suppress_health_check=list(HealthCheck))
@given(data=st.data(), plural=st.sampled_from(["resourceslices", "resourceclaims", "resourceclaimtemplates"]))
def test_what_is_stored_survives_a_conversion(data, plural):
    kind = RESOURCES[plural]
    try:
        obj, _ = check(kind.api_version, kind.kind, data.draw(_object(plural)))
    except StatusError:
        return
    obj["apiVersion"] = kind.api_version
    old = to_served("resource.k8s.io/v1beta1", plural, obj)
    checked, unknown = check("resource.k8s.io/v1beta1", kind.kind, old, "Warn")
    assert unknown == [] or "nodeAllocatable" in str(unknown)
    assert _without_empty(from_served("resource.k8s.io/v1beta1", plural, kind.api_version, checked)) == _without_empty(
        obj
    )


def _without_empty(value):
    if isinstance(value, dict):
        return {key: found for key, item in value.items() if (found := _without_empty(item)) not in ({}, [], None, "")}
    return [_without_empty(item) for item in value] if isinstance(value, list) else value


_JSON = st.recursive(
    _LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3)
)


@given(_JSON, _JSON)
def test_a_merge_patch_twice_is_a_merge_patch_once(target, patch):
    once = merge_patch(target, patch)
    assert merge_patch(once, patch) == once


_OPERATIONS = st.lists(
    st.fixed_dictionaries(
        {
            "op": st.sampled_from(["add", "remove", "replace", "test", "move", "copy", "x"]),
            "path": st.sampled_from(["", "/a", "/a/0", "/b/-", "/c/a/b", "x"]),
        },
        optional={"value": _JSON, "from": st.sampled_from(["/a", "", "/b/1"])},
    ),
    max_size=3,
)


@given(_JSON, _OPERATIONS)
def test_a_json_patch_applies_or_is_refused(target, operations):
    before = json.dumps(target)
    assert answer(json_patch, target, operations) in (200, 400, 422)
    assert json.dumps(target) == before


@settings(max_examples=examples(60), suppress_health_check=list(HealthCheck))
@given(st.data())
def test_a_strategic_patch_applies_or_is_refused(data):
    target, patch = data.draw(_object("pods")), data.draw(_object("pods"))
    assert answer(strategic_patch, "v1", "Pod", target, patch) in (200, 400)


_ENVELOPE = b"k8s\0\x0a\x0f\x0a\x02v1\x12\x09ConfigMap\x12"


@given(st.binary(max_size=80))
@example(b"\r9")  # bytes where a number is expected
def test_protobuf_is_read_or_refused(data):
    for body in (data, b"k8s\0" + data, _ENVELOPE + bytes([len(data)]) + data):
        assert answer(read, body) in (200, 400)
