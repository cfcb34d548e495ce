"""Server-side apply."""

from __future__ import annotations

import pytest

from tests.unit.localcluster.apiserver.conftest import CONFIGMAPS, PODS, template

DEPLOYMENTS = "/apis/apps/v1/namespaces/default/deployments"


async def apply(client, path, config, manager="me", **query):
    options = "".join(f"&{key}={value}" for key, value in query.items())
    return await client.patch(f"{path}?fieldManager={manager}{options}", config, "apply-patch+yaml")


def config(**data):
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x"}, "data": data}


async def test_apply_creates_then_changes(client):
    made = await apply(client, f"{CONFIGMAPS}/x", config(a="1"))
    assert (made.status, made.body["data"]) == (201, {"a": "1"})
    entry = made.body["metadata"]["managedFields"][0]
    assert (entry["manager"], entry["operation"], entry["apiVersion"]) == ("me", "Apply", "v1")
    assert entry["fieldsV1"] == {"f:data": {"f:a": {}}}
    changed = await apply(client, f"{CONFIGMAPS}/x", config(a="2", b="3"))
    assert (changed.status, changed.body["data"]) == (200, {"a": "2", "b": "3"})


async def test_what_is_no_longer_applied_goes(client):
    await apply(client, f"{CONFIGMAPS}/x", config(a="1", b="2"))
    await client.patch(f"{CONFIGMAPS}/x", {"data": {"c": "by hand"}})
    found = await apply(client, f"{CONFIGMAPS}/x", config(a="1"))
    assert found.body["data"] == {"a": "1", "c": "by hand"}


async def test_the_same_apply_writes_nothing(client):
    first = await apply(client, f"{CONFIGMAPS}/x", config(a="1"))
    again = await apply(client, f"{CONFIGMAPS}/x", config(a="1"))
    assert again.body == first.body


async def test_two_managers_share_an_object(client):
    await apply(client, f"{CONFIGMAPS}/x", config(a="1", both="x"))
    await apply(client, f"{CONFIGMAPS}/x", config(b="2", both="x"), manager="other")
    found = await apply(client, f"{CONFIGMAPS}/x", config(a="1"))
    assert found.body["data"] == {"a": "1", "b": "2", "both": "x"}


async def test_a_field_of_another_is_a_conflict_unless_forced(client):
    await apply(client, f"{CONFIGMAPS}/x", config(a="1"))
    refused = await apply(client, f"{CONFIGMAPS}/x", config(a="2"), manager="other")
    assert (refused.status, refused.body["reason"]) == (409, "Conflict")
    assert refused.body["message"] == 'Apply failed with 1 conflict: conflict with "me": .data.a'
    assert refused.body["details"]["causes"][0]["reason"] == "FieldManagerConflict"
    forced = await apply(client, f"{CONFIGMAPS}/x", config(a="2"), manager="other", force="true")
    assert forced.body["data"] == {"a": "2"}
    assert [entry["manager"] for entry in forced.body["metadata"]["managedFields"]] == ["other"]


async def test_lists_merge_by_their_keys_and_elements_go(client):
    def deployment(*names):
        spec = {"selector": {"matchLabels": {"a": "b"}}, "template": template(*names, a="b")}
        return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"}, "spec": spec}

    def names(answer):
        return [c["name"] for c in answer.body["spec"]["template"]["spec"]["containers"]]

    assert names(await apply(client, f"{DEPLOYMENTS}/d", deployment("a", "b"))) == ["a", "b"]
    assert names(await apply(client, f"{DEPLOYMENTS}/d", deployment("c"), manager="sidecars")) == ["a", "b", "c"]
    assert names(await apply(client, f"{DEPLOYMENTS}/d", deployment("b"))) == ["b", "c"]


async def test_a_status_is_applied_on_its_own(client):
    await client.ask("POST", PODS, {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "x"}]}})
    status = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "status": {"phase": "Running"}}
    found = await apply(client, f"{PODS}/p/status", status)
    assert (found.body["status"]["phase"], found.body["status"]["qosClass"]) == ("Running", "BestEffort")
    assert found.body["metadata"]["managedFields"][0]["subresource"] == "status"
    assert (await apply(client, f"{PODS}/nope/status", status | {"metadata": {"name": "nope"}})).status == 404


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (config() | {"kind": "Pod"}, 400),
        (config() | {"metadata": {"name": "y"}}, 400),
        (config() | {"metadata": {"name": "x", "managedFields": [{"manager": "m"}]}}, 400),
        (config(a=5), 400),
        ([], 400),
    ],
)
async def test_configurations_that_can_not_be_applied(client, body, code):
    assert (await apply(client, f"{CONFIGMAPS}/x", body)).status == code


async def test_an_unknown_field_is_told(client):
    found = await apply(client, f"{CONFIGMAPS}/x", config() | {"colour": "red"})
    assert "unknown field" in found.headers["Warning"]
    assert (await apply(client, f"{CONFIGMAPS}/x", config() | {"colour": 1}, fieldValidation="Strict")).status == 400


async def test_an_apply_to_an_object_that_was_another_is_refused(client):
    named = {**config(a="1"), "metadata": {"name": "x", "uid": "some-uid"}}
    absent = await apply(client, f"{CONFIGMAPS}/x", named)
    assert (absent.status, absent.body["reason"]) == (409, "Conflict")
    assert "no existing object was found" in absent.body["message"]
    made = await apply(client, f"{CONFIGMAPS}/x", config(a="1"))
    assert (await apply(client, f"{CONFIGMAPS}/x", named)).status == 409
    named["metadata"]["uid"] = made.body["metadata"]["uid"]
    again = await apply(client, f"{CONFIGMAPS}/x", named)
    assert again.body == made.body
