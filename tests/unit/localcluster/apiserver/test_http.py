"""The HTTP side, over real TLS."""

from __future__ import annotations

import asyncio
import io
import json

import pytest

from tests.unit.localcluster.apiserver.conftest import CLAIMS, CONFIGMAPS, PODS, SLICES, a_slice, claim, pod, template


async def test_an_object_by_its_path(client):
    made = await client.ask("POST", CLAIMS, claim())
    assert made.status == 201
    found = await client.ask("GET", f"{CLAIMS}/c")
    assert (found.status, found.body) == (200, made.body)
    assert list(found.body)[:2] == ["kind", "apiVersion"]


async def test_a_get_writes_the_same_bytes_until_the_object_changes(client):
    await client.ask("POST", CLAIMS, claim())
    entry = client.server.store.entry("resourceclaims", "c", "default")
    first = await client.ask("GET", f"{CLAIMS}/c")
    kept = entry.encoded["resource.k8s.io/v1"]
    assert kept == first.text.encode()
    await client.ask("GET", f"{CLAIMS}/c")
    assert client.server.store.entry("resourceclaims", "c", "default").encoded["resource.k8s.io/v1"] is kept
    await client.patch(f"{CLAIMS}/c", {"metadata": {"labels": {"a": "b"}}})
    assert (await client.ask("GET", f"{CLAIMS}/c")).body["metadata"]["labels"] == {"a": "b"}


async def test_a_missing_object_is_a_status(client):
    found = await client.ask("GET", f"{CLAIMS}/nope")
    assert found.status == found.body["code"] == 404
    assert found.body["reason"] == "NotFound"
    assert found.body["message"] == 'resourceclaims.resource.k8s.io "nope" not found'
    assert found.body["details"] == {"name": "nope", "group": "resource.k8s.io", "kind": "resourceclaims"}


@pytest.mark.parametrize(
    "path",
    [
        "/api/v1/nothings",
        "/apis/resource.k8s.io/v9/resourceslices",
        "/apis/nowhere.io/v1/things",
        "/api/v1/namespaces/default/nodes",
        "/api/v1/pods/p",
        "/api/v1/nodes/n/nothing",
        "/api/v1/nodes/n/status/more",
        "/apis/resource.k8s.io/v1/",
        "/nothing",
        "/openapi/v3/apis/nowhere.io/v1",
        "/openapi/v3/x",
    ],
)
async def test_what_is_not_served_is_404(client, path):
    found = await client.ask("GET", path)
    assert (found.status, found.body["reason"]) == (404, "NotFound")


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("PUT", PODS),
        ("PATCH", PODS),
        ("POST", "/api/v1/pods"),
        ("DELETE", "/api/v1/pods"),
        ("POST", f"{PODS}/p"),
        ("POST", "/version"),
        ("OPTIONS", PODS),
        ("GET", f"{PODS}/p/binding"),
        ("DELETE", f"{PODS}/p/log"),
        ("GET", "/apis/authorization.k8s.io/v1/subjectaccessreviews"),
    ],
)
async def test_what_a_path_does_not_allow_is_405(client, method, path):
    assert (await client.ask(method, path, {})).status == 405


async def test_a_collection_of_all_namespaces_is_not_deleted(client):
    await client.ask("POST", CLAIMS, claim())
    await client.ask("DELETE", "/apis/resource.k8s.io/v1/resourceclaims")
    assert (await client.ask("GET", f"{CLAIMS}/c")).status == 200


async def test_a_list_has_the_revision_to_watch_from(client):
    for name in ("b", "a"):
        await client.ask("POST", SLICES, a_slice(name))
    found = (await client.ask("GET", SLICES)).body
    assert (found["kind"], found["apiVersion"]) == ("ResourceSliceList", "resource.k8s.io/v1")
    assert [item["metadata"]["name"] for item in found["items"]] == ["a", "b"]
    assert found["metadata"]["resourceVersion"] == str(client.server.store.revision)


async def test_a_list_of_a_revision_that_is_not_known(client):
    found = await client.ask("GET", f"{SLICES}?resourceVersion=999999")
    assert (found.status, found.body["reason"], found.body["details"]["retryAfterSeconds"]) == (504, "Timeout", 1)
    assert found.body["details"]["causes"][0]["reason"] == "ResourceVersionTooLarge"
    assert (await client.ask("GET", f"{SLICES}?resourceVersion=abc")).status == 400
    assert (await client.ask("GET", f"{SLICES}?resourceVersion=0")).status == 200


async def test_a_list_can_be_selected(client):
    for name, node in (("a", "n1"), ("b", "n2")):
        await client.ask("POST", SLICES, a_slice(name, node))
    found = await client.ask("GET", f"{SLICES}?fieldSelector=spec.driver%3Dgpu.nvidia.com,spec.nodeName%3Dn2")
    assert [item["metadata"]["name"] for item in found.body["items"]] == ["b"]
    assert (await client.ask("GET", f"{SLICES}?fieldSelector=spec.colour%3Dred")).status == 400


async def test_a_list_comes_in_pages(client):
    for name in ("a", "b", "c"):
        await client.ask("POST", SLICES, a_slice(name))
    first = (await client.ask("GET", f"{SLICES}?limit=2")).body
    assert first["metadata"]["remainingItemCount"] == 1
    token = first["metadata"]["continue"]
    rest = (await client.ask("GET", f"{SLICES}?limit=2&continue={token}")).body
    assert [item["metadata"]["name"] for item in (first["items"] + rest["items"])] == ["a", "b", "c"]
    assert "continue" not in rest["metadata"]


@pytest.mark.parametrize("query", ["limit=x", "limit=1&continue=nonsense", "dryRun=maybe", "fieldValidation=Maybe"])
async def test_parameters_that_mean_nothing_are_400(client, query):
    method, body = ("POST", claim()) if "dry" in query or "field" in query else ("GET", None)
    assert (await client.ask(method, f"{CLAIMS}?{query}", body)).status == 400


@pytest.mark.parametrize(
    ("body", "kind", "code", "text"),
    [
        (b"{", "application/json", 400, "json parse error"),
        (b"", "application/json", 400, "json parse error"),
        (b"[]", "application/json", 400, "is not a ConfigMap object"),
        (b"null", "application/json", 400, "is not a ConfigMap object"),
        (b"[" * 100_000, "application/json", 400, "nested too deeply"),
        (b"a: [", "application/yaml", 400, "error converting YAML to JSON"),
        (b"x", "text/plain", 415, "unknown format"),
        (b"x", "application/vnd.kubernetes.protobuf", 400, "expected prefix"),
        (b"k8s\0\xff\xff", "application/vnd.kubernetes.protobuf", 400, "can't be read"),
        (b'{"kind":"Pod"}', "application/json", 400, "Pod in version"),
        (b'{"apiVersion":"v2"}', "application/json", 400, "does not match the expected API version"),
        (
            b'{"metadata":"x"}',
            "application/json",
            400,
            "cannot unmarshal string into Go struct field ConfigMap.metadata",
        ),
        (b'{"data":{"a":1}}', "application/json", 400, "cannot unmarshal number into Go struct field ConfigMap.data"),
        (b"{}", "application/json", 422, "name or generateName is required"),
        (b'{"metadata":{"name":"x","namespace":"other"}}', "application/json", 400, "does not match the namespace"),
    ],
)
async def test_bodies_that_can_not_be_taken(client, body, kind, code, text):
    found = await client.ask("POST", CONFIGMAPS, body, **{"Content-Type": kind})
    assert (found.status, found.body["code"]) == (code, code)
    assert text in found.body["message"]


async def test_a_body_that_is_too_large_is_413(client):
    body = json.dumps({"metadata": {"name": "x"}, "data": {"a": "x" * (3 << 20)}}).encode()
    headers = client.headers(**{"Content-Type": "application/json"})
    async with client.session.post(client.server.url + CONFIGMAPS, data=io.BytesIO(body), headers=headers) as response:
        found = await response.json()
    assert (response.status, found["reason"]) == (413, "RequestEntityTooLarge")


async def test_yaml_is_taken_and_its_dates_are_text(client):
    body = b"metadata: {name: x}\ndata: {day: 2026-01-01}\n"
    found = await client.ask("POST", CONFIGMAPS, body, **{"Content-Type": "application/yaml"})
    assert found.body["data"] == {"day": "2026-01-01"}


async def test_unknown_fields_are_warned_about_refused_or_ignored(client):
    given = claim() | {"colour": "red"}
    warned = await client.ask("POST", f"{CLAIMS}?dryRun=All", given)
    assert warned.status == 201
    assert warned.headers["Warning"] == '299 - "unknown field \\"colour\\""'
    assert "colour" not in warned.body
    strict = await client.ask("POST", f"{CLAIMS}?fieldValidation=Strict", given)
    assert strict.status == 400
    assert 'strict decoding error: unknown field "colour"' in strict.body["message"]
    ignored = await client.ask("POST", f"{CLAIMS}?fieldValidation=Ignore", given)
    assert (ignored.status, "Warning" in ignored.headers) == (201, False)


async def test_dry_run_answers_and_stores_nothing(client):
    assert (await client.ask("POST", f"{CLAIMS}?dryRun=All", claim())).status == 201
    assert (await client.ask("GET", f"{CLAIMS}/c")).status == 404


async def test_put_replaces_and_conflicts(client):
    made = (await client.ask("POST", CONFIGMAPS, {"metadata": {"name": "x"}})).body
    assert (await client.ask("PUT", f"{CONFIGMAPS}/x", made | {"data": {"a": "1"}})).status == 200
    late = await client.ask("PUT", f"{CONFIGMAPS}/x", made | {"data": {"a": "2"}})
    assert (late.status, late.body["reason"]) == (409, "Conflict")
    other = await client.ask("PUT", f"{CONFIGMAPS}/y", made)
    assert (other.status, "does not match the name on the URL" in other.body["message"]) == (400, True)


async def test_status_is_its_own_path(client):
    await client.ask("POST", PODS, pod())
    patched = await client.patch(f"{PODS}/p/status", {"status": {"phase": "Running"}, "spec": {"hostname": "x"}})
    assert (patched.body["status"]["phase"], patched.body["spec"].get("hostname")) == ("Running", None)
    put = await client.ask("PUT", f"{PODS}/p/status", patched.body | {"status": {"phase": "Failed"}})
    assert put.body["status"]["phase"] == "Failed"


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("merge-patch+json", {"data": {"b": "2"}}),
        ("strategic-merge-patch+json", {"data": {"b": "2"}}),
        ("json-patch+json", [{"op": "add", "path": "/data/b", "value": "2"}]),
        ("apply-patch+yaml", {"apiVersion": "v1", "kind": "ConfigMap", "data": {"b": "2"}}),
    ],
)
async def test_every_kind_of_patch(client, kind, body):
    await client.ask("POST", CONFIGMAPS, {"metadata": {"name": "x"}, "data": {"a": "1"}})
    found = await client.patch(f"{CONFIGMAPS}/x?fieldManager=me", body, kind)
    assert (found.status, found.body["data"]) == (200, {"a": "1", "b": "2"})


@pytest.mark.parametrize(
    ("kind", "body", "code"),
    [
        ("json", {}, 415),
        ("merge-patch+json", [], 400),
        ("strategic-merge-patch+json", [], 400),
        ("json-patch+json", {}, 400),
        ("apply-patch+yaml", {}, 400),  # no field manager
        ("merge-patch+json", {"data": 5}, 400),
        ("merge-patch+json", {"metadata": {"name": "z"}}, 400),
        ("merge-patch+json", {"metadata": {"resourceVersion": "1"}}, 409),
    ],
)
async def test_patches_that_can_not_be_taken(client, kind, body, code):
    await client.ask("POST", CONFIGMAPS, {"metadata": {"name": "x"}})
    assert (await client.patch(f"{CONFIGMAPS}/x", body, kind)).status == code


async def test_delete_takes_options_in_body_or_query(client):
    await client.ask("POST", CONFIGMAPS, {"metadata": {"name": "x"}})
    refused = await client.ask("DELETE", f"{CONFIGMAPS}/x", {"preconditions": {"uid": "other"}})
    assert refused.status == 409
    done = await client.ask("DELETE", f"{CONFIGMAPS}/x?propagationPolicy=Background")
    assert (done.status, done.body["status"], done.body["details"]["name"]) == (200, "Success", "x")


@pytest.mark.parametrize(
    "options", [{"gracePeriodSeconds": "x"}, {"propagationPolicy": "Sideways"}, {"preconditions": 5}, []]
)
async def test_delete_options_that_mean_nothing_are_refused(client, options):
    await client.ask("POST", PODS, pod())
    assert (await client.ask("DELETE", f"{PODS}/p", options)).status in (400, 422)
    assert (await client.ask("DELETE", f"{PODS}/p?gracePeriodSeconds=x")).status == 400


async def test_a_collection_can_be_deleted_by_selector(client):
    for name, node in (("a", "n1"), ("b", "n2")):
        await client.ask("POST", SLICES, a_slice(name, node))
    await client.ask("DELETE", f"{SLICES}?fieldSelector=spec.nodeName%3Dn1")
    assert [s["metadata"]["name"] for s in client.server.store.list("resourceslices")] == ["b"]


async def test_binding_eviction_and_scale(client):
    store = client.server.store
    await client.ask("POST", PODS, pod())
    target = {"target": {"kind": "Node", "name": "n1"}}
    assert (await client.ask("POST", f"{PODS}/p/binding", target)).status == 201
    assert store.get("pods", "p", "default")["spec"]["nodeName"] == "n1"
    assert (await client.ask("POST", f"{PODS}/p/binding", {})).status == 400
    await client.ask("POST", f"{PODS}/p/eviction", {"deleteOptions": {"gracePeriodSeconds": 0}})
    assert store.find("pods", "p", "default") is None
    deployment = {
        "metadata": {"name": "d"},
        "spec": {"selector": {"matchLabels": {"a": "b"}}, "template": template(a="b")},
    }
    path = "/apis/apps/v1/namespaces/default/deployments"
    await client.ask("POST", path, deployment)
    scaled = await client.patch(f"{path}/d/scale", {"spec": {"replicas": 3}})
    assert (scaled.body["spec"]["replicas"], scaled.body["status"]["selector"]) == (3, "a=b")
    assert (await client.patch(f"{path}/d/scale", {"spec": {"replicas": -1}})).status == 400


async def test_logs_come_from_the_source(client):
    seen = []

    async def source(request):
        seen.append(request)
        yield b"one\n"
        yield b"two\n"

    await client.ask("POST", PODS, pod())
    assert (await client.ask("GET", f"{PODS}/p/log")).status == 501
    client.server.log_source = source
    found = await client.ask("GET", f"{PODS}/p/log?tailLines=5&follow=true&timestamps=true")
    assert (found.status, found.text) == (200, "one\ntwo\n")
    assert (seen[0].container, seen[0].tail_lines, seen[0].follow, seen[0].timestamps) == ("c", 5, True, True)
    assert (await client.ask("GET", f"{PODS}/p/log?tailLines=x")).status == 400
    other = await client.ask("GET", f"{PODS}/p/log?container=nope")
    assert "container nope is not valid for pod p" in other.body["message"]


async def test_a_log_of_many_containers_needs_a_choice(client):
    containers = [{"name": name, "image": "x"} for name in ("a", "b")]
    await client.ask("POST", PODS, pod(containers=containers))
    found = await client.ask("GET", f"{PODS}/p/log")
    assert (found.status, "choose one of: [a b]" in found.body["message"]) == (400, True)


async def test_metadata_alone_can_be_asked_for(client):
    await client.ask("POST", CLAIMS, claim())
    accept = {"Accept": "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"}
    found = await client.ask("GET", f"{CLAIMS}/c", **accept)
    assert (found.body["kind"], "spec" in found.body) == ("PartialObjectMetadata", False)
    many = await client.ask("GET", CLAIMS, Accept="application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1")
    assert (many.body["kind"], len(many.body["items"])) == ("PartialObjectMetadataList", 1)


async def test_the_state_outlives_a_stop(client):
    await client.ask("POST", CLAIMS, claim())
    url = client.server.url
    await client.server.stop()
    await client.server.start()
    assert client.server.url == url
    assert (await client.ask("GET", f"{CLAIMS}/c")).status == 200


async def test_one_clients_nonsense_does_not_reach_another(client):
    """A raw TLS connection that sends garbage gets its answer; the server lives."""
    import ssl

    context = ssl.create_default_context(cafile=str(client.server.ca_file))
    host, port = client.server.url.removeprefix("https://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port), ssl=context)
    writer.write(b"\x00\x01NONSENSE\r\n\r\n")
    await writer.drain()
    assert b"400" in await reader.readline()
    writer.close()
    await writer.wait_closed()
    assert (await client.ask("GET", "/version")).status == 200


async def test_probes_and_ports_of_pods_get_their_defaults(client):
    container = {
        "name": "c",
        "image": "x",
        "ports": [{"containerPort": 80}],
        "livenessProbe": {"httpGet": {"port": 80}},
    }
    made = await client.ask("POST", PODS, {"metadata": {"name": "p"}, "spec": {"containers": [container]}})
    (stored,) = made.body["spec"]["containers"]
    assert stored["ports"] == [{"containerPort": 80, "protocol": "TCP"}]
    assert stored["livenessProbe"] == {
        "httpGet": {"port": 80, "path": "/", "scheme": "HTTP"},
        "timeoutSeconds": 1,
        "periodSeconds": 10,
        "successThreshold": 1,
        "failureThreshold": 3,
    }
