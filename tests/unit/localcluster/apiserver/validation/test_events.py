from __future__ import annotations

import pytest

from driver.localcluster.apiserver import StatusError

NEW = {
    "eventTime": "2026-01-01T00:00:00.000000Z",
    "reportingComponent": "gpu.nvidia.com",
    "reportingInstance": "n1",
    "action": "Prepare",
    "reason": "Prepared",
}


def event(namespace, **more):
    about = {"kind": "Pod", "name": "p", **({"namespace": namespace} if namespace else {})}
    return {"metadata": {"name": "e"}, "involvedObject": about, "reason": "R", **more}


@pytest.mark.parametrize("given", [event("default"), event(""), event("default", **NEW), event("", **NEW)])
def test_events_that_are_valid(store, given):
    assert store.create("events", given, "default")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (event("other"), 'involvedObject.namespace: Invalid value: "other": does not match event.namespace'),
        (event("default", **NEW | {"reportingComponent": ""}), "reportingComponent: Required value"),
        (event("default", **NEW | {"reportingComponent": "a b"}), "reportingComponent: Invalid value"),
        (event("default", **NEW | {"reportingInstance": ""}), "reportingInstance: Required value"),
        (event("default", **NEW | {"action": "x" * 129}), "action: Invalid value"),
        (event("default", **NEW | {"message": "x" * 1025}), "can have at most 1024 characters"),
    ],
)
def test_events_that_are_not_valid(store, given, message):
    with pytest.raises(StatusError) as caught:
        store.create("events", given, "default")
    assert message in caught.value.message


def test_an_event_about_no_namespace_belongs_in_the_default_one(store):
    store.create("namespaces", {"metadata": {"name": "x"}})
    with pytest.raises(StatusError, match=r"does not match event\.namespace"):
        store.create("events", event(""), "x")
