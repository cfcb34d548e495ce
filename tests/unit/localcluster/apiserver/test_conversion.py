from __future__ import annotations

import pytest

from driver.localcluster.apiserver.conversion import from_served, to_served

V1, V1BETA1 = "resource.k8s.io/v1", "resource.k8s.io/v1beta1"


def there_and_back(plural, obj, served=V1BETA1, stored=V1):
    shown = to_served(served, plural, {"apiVersion": stored, **obj})
    return shown, from_served(served, plural, stored, shown)


@pytest.mark.parametrize(
    ("spec", "old"),
    [
        (
            {"devices": [{"name": "d", "attributes": {}, "taints": []}]},
            [{"name": "d", "basic": {"attributes": {}, "taints": []}}],
        ),
        ({"devices": [{"name": "d"}]}, [{"name": "d", "basic": {}}]),
        ({"devices": []}, []),
    ],
)  # fmt: skip
def test_slices(spec, old):
    shown, back = there_and_back("resourceslices", {"spec": spec})
    assert (shown["apiVersion"], shown["spec"]["devices"]) == (V1BETA1, old)
    assert back == {"apiVersion": V1, "spec": spec}


CLAIM = {
    "devices": {
        "requests": [
            {"name": "a", "exactly": {"deviceClassName": "c", "count": 2}},
            {"name": "b", "firstAvailable": [{"name": "x", "deviceClassName": "c"}]},
        ]
    }
}
FLAT = [
    {"name": "a", "deviceClassName": "c", "count": 2},
    {"name": "b", "firstAvailable": [{"name": "x", "deviceClassName": "c"}]},
]


def test_claims_keep_their_status():
    shown, back = there_and_back("resourceclaims", {"spec": CLAIM, "status": {"reservedFor": []}})
    assert shown["spec"]["devices"]["requests"] == FLAT
    assert back == {"apiVersion": V1, "spec": CLAIM, "status": {"reservedFor": []}}


def test_templates():
    shown, back = there_and_back("resourceclaimtemplates", {"spec": {"metadata": {}, "spec": CLAIM}})
    assert shown["spec"]["spec"]["devices"]["requests"] == FLAT
    assert back["spec"] == {"metadata": {}, "spec": CLAIM}


@pytest.mark.parametrize("plural", ["resourceslices", "resourceclaims", "resourceclaimtemplates", "deviceclasses"])
@pytest.mark.parametrize("obj", [{}, {"spec": {}}, {"metadata": {"name": "x"}}])
def test_objects_without_content(plural, obj):
    assert there_and_back(plural, obj)[1] == {"apiVersion": V1, **obj}


def test_v1beta2_is_shaped_like_v1():
    shown, _ = there_and_back("resourceclaims", {"spec": CLAIM}, "resource.k8s.io/v1beta2")
    assert shown["spec"] == CLAIM


def test_events_have_two_names():
    event = {"involvedObject": {"name": "p"}, "message": "m", "reason": "r", "count": 2}
    shown, back = there_and_back("events", event, "events.k8s.io/v1", "v1")
    assert (shown["regarding"], shown["note"], shown["deprecatedCount"]) == ({"name": "p"}, "m", 2)
    assert back == {"apiVersion": "v1", **event}


async def test_one_object_in_three_versions(client):
    base = "/apis/resource.k8s.io/{}/namespaces/default/resourceclaims"
    flat = {"metadata": {"name": "c"}, "spec": {"devices": {"requests": [{"name": "r", "deviceClassName": "x"}]}}}
    await client.ask("POST", base.format("v1beta1"), flat)
    v1 = (await client.ask("GET", base.format("v1") + "/c")).body
    assert v1["spec"]["devices"]["requests"][0]["exactly"]["deviceClassName"] == "x"
    old = (await client.ask("GET", base.format("v1beta1") + "/c")).body
    assert old["spec"]["devices"]["requests"][0]["deviceClassName"] == "x"
    label = await client.patch(base.format("v1beta1") + "/c", {"metadata": {"labels": {"a": "b"}}})
    assert (label.status, label.body["apiVersion"]) == (200, V1BETA1)
    assert client.server.store.get("resourceclaims", "c", "default")["spec"] == v1["spec"]
    listed = (await client.ask("GET", base.format("v1beta2"))).body
    assert (listed["apiVersion"], listed["items"][0]["apiVersion"]) == ("resource.k8s.io/v1beta2",) * 2


async def test_an_event_of_the_new_api_is_seen_in_the_old(client):
    event = {
        "metadata": {"name": "e"},
        "regarding": {"kind": "Pod", "name": "p"},
        "note": "hello",
        "reason": "R",
        "action": "A",
        "reportingController": "c",
        "reportingInstance": "i",
        "eventTime": "2026-01-01T00:00:00.000000Z",
    }
    await client.ask("POST", "/apis/events.k8s.io/v1/namespaces/default/events", event)
    old = (await client.ask("GET", "/api/v1/namespaces/default/events?fieldSelector=involvedObject.name%3Dp")).body
    assert [(e["message"], e["involvedObject"]["kind"]) for e in old["items"]] == [("hello", "Pod")]
    new = "/apis/events.k8s.io/v1/namespaces/default/events?fieldSelector=regarding.name%3Dp"
    assert (await client.ask("GET", new)).body["items"][0]["note"] == "hello"
