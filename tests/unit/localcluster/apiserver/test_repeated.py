"""Keys that come twice: the words of Kubernetes' own integration tests of field validation (`TestFieldValidation`)."""

from __future__ import annotations

import json

import pytest

from driver.localcluster.apiserver.codec import parse
from tests.unit.localcluster.apiserver.conftest import CLAIMS, CONFIGMAPS, SLICES, a_slice

DEPLOYMENTS = "/apis/apps/v1/namespaces/default/deployments"
BODY = """{"apiVersion": "apps/v1", "kind": "Deployment",
 "metadata": {"name": "first", "name": "d", "labels": {"app": "n"}, "unknownMeta": "v"},
 "spec": {"unknown1": "v", "unknownDupe": "v", "unknownDupe": "v", "paused": true, "paused": false,
  "selector": {"matchLabels": {"app": "n"}},
  "template": {"metadata": {"labels": {"app": "n"}}, "spec": {"containers": [
   {"name": "n", "image": "n", "unknownNested": "v", "imagePullPolicy": "Always", "imagePullPolicy": "Never"}]}}}}"""
TOLD = [
    'duplicate field "metadata.name"',
    'unknown field "metadata.unknownMeta"',
    'unknown field "spec.unknown1"',
    'unknown field "spec.unknownDupe"',
    'duplicate field "spec.paused"',
    'unknown field "spec.template.spec.containers[0].unknownNested"',
    'duplicate field "spec.template.spec.containers[0].imagePullPolicy"',
]
YAML = """apiVersion: apps/v1
kind: Deployment
metadata:
  name: first
  name: d
spec:
  paused: true
  paused: false
  selector: {matchLabels: {app: n}}
  template:
    metadata: {labels: {app: n}}
    spec:
      containers:
      - name: n
        image: n
        imagePullPolicy: Always
        imagePullPolicy: Never
"""
LINES = [
    f'line {line}: key "{key}" already set in map'
    for line, key in ((5, "name"), (8, "paused"), (17, "imagePullPolicy"))
]
PATCH = """{"spec": {"unknownDupe": "v", "unknownDupe": "w", "paused": true, "paused": false,
 "template": {"spec": {"containers": [
  {"name": "n", "image": "n", "imagePullPolicy": "Always", "imagePullPolicy": "Never"}]}}}}"""
TOLD_OF_PATCH = [
    'duplicate field "spec.unknownDupe"',
    'duplicate field "spec.paused"',
    'duplicate field "spec.template.spec.containers[0].imagePullPolicy"',
    'unknown field "spec.unknownDupe"',
]  # fmt: skip
OPERATIONS = """[{"op": "add", "path": "/spec/replicas", "value": 1, "foo": "bar"},
 {"op": "add", "path": "/spec/replicas", "path": "/spec/unknown3", "value": 1}]"""
TOLD_OF_OPERATIONS = [
    'json patch unknown field "[0].foo"',
    'json patch duplicate field "[1].path"',
    'unknown field "spec.unknown3"',
]
MODES = [("?fieldValidation=Ignore", False), ("?fieldValidation=Warn", True), ("", True)]


def warnings(answer):
    return [text.removeprefix('299 - "')[:-1].replace('\\"', '"') for text in answer.headers.getall("Warning", ())]


async def send(client, method, path, body, kind):
    return await client.ask(method, path, body.encode(), **{"Content-Type": f"application/{kind}"})


@pytest.mark.parametrize(("kind", "body", "told"), [("json", BODY, TOLD), ("yaml", YAML, LINES)])
async def test_a_strict_create_is_refused(client, kind, body, told):
    found = await send(client, "POST", f"{DEPLOYMENTS}?fieldValidation=Strict", body, kind)
    errors = ", ".join(told) if kind == "json" else "\n  ".join(["yaml: unmarshal errors:", *told])
    expected = f'Deployment in version "v1" cannot be handled as a Deployment: strict decoding error: {errors}'
    assert (found.status, found.body["message"]) == (400, expected)


@pytest.mark.parametrize(("kind", "body", "told"), [("json", BODY, TOLD), ("yaml", YAML, LINES)])
@pytest.mark.parametrize(("query", "warned"), MODES)
async def test_else_the_last_value_counts(client, kind, body, told, query, warned):
    found = await send(client, "POST", DEPLOYMENTS + query, body, kind)
    assert (found.status, warnings(found)) == (201, told if warned else [])
    container = found.body["spec"]["template"]["spec"]["containers"][0]
    assert (found.body["metadata"]["name"], container["imagePullPolicy"]) == ("d", "Never")
    again = await send(client, "PUT", f"{DEPLOYMENTS}/d{query}", body, kind)
    assert (again.status, warnings(again)) == (200, told if warned else [])


@pytest.mark.parametrize(
    ("kind", "patch", "told"),
    [
        ("merge-patch+json", PATCH, TOLD_OF_PATCH),
        ("strategic-merge-patch+json", PATCH, TOLD_OF_PATCH),
        ("json-patch+json", OPERATIONS, TOLD_OF_OPERATIONS),
    ],
)
async def test_patches(client, kind, patch, told):
    await send(client, "POST", f"{DEPLOYMENTS}?fieldValidation=Ignore", BODY, "json")
    strict = await send(client, "PATCH", f"{DEPLOYMENTS}/d?fieldValidation=Strict", patch, kind)
    assert (strict.status, strict.body["reason"]) == (422, "Invalid")
    assert strict.body["message"].startswith(' "" is invalid: patch: Invalid value: "{')
    assert strict.body["message"].endswith(f": strict decoding error: {', '.join(told)}")
    for query, warned in MODES:
        found = await send(client, "PATCH", f"{DEPLOYMENTS}/d{query}", patch, kind)
        assert (found.status, warnings(found)) == (200, told if warned else [])


async def test_apply(client):
    path = f"{DEPLOYMENTS}/d?fieldManager=m"
    strict = await send(client, "PATCH", f"{path}&fieldValidation=Strict", YAML, "apply-patch+yaml")
    lines = "\n  ".join(LINES)
    expected = f"error strict decoding YAML: error converting YAML to JSON: yaml: unmarshal errors:\n  {lines}"
    assert (strict.status, strict.body["message"]) == (400, expected)
    found = await send(client, "PATCH", path, YAML, "apply-patch+yaml")
    assert (found.status, warnings(found)) == (201, LINES)
    found = await send(client, "PATCH", f"{path}&fieldValidation=Ignore", YAML, "apply-patch+yaml")
    assert (found.status, warnings(found)) == (200, [])


async def test_keys_of_maps_too(client):
    body = '{"metadata": {"name": "m", "labels": {"a": "1", "a": "2"}}, "data": {"x.y": "1", "x.y": "2"}}'
    found = await send(client, "POST", CONFIGMAPS, body, "json")
    assert warnings(found) == ['duplicate field "metadata.labels.a"', 'duplicate field "data.x.y"']
    text = json.dumps(a_slice(devices=[{"name": "g", "attributes": {"model": {"string": "x"}}}]))
    text = text.replace('{"string": "x"}', '{"string": "y", "string": "x", "sting": "z"}')
    found = await send(client, "POST", f"{SLICES}?fieldValidation=Strict", text, "json")
    where = "spec.devices[0].attributes.model"
    assert found.body["message"].endswith(f'duplicate field "{where}.string", unknown field "{where}.sting"')


async def test_opaque_parameters_are_the_drivers_own_matter(client):
    opaque = '{"opaque": {"driver": "d.io", "parameters": {"a": 1, "a": 2}}}'
    body = f'{{"metadata": {{"name": "c"}}, "spec": {{"devices": {{"config": [{opaque}]}}}}}}'
    found = await send(client, "POST", f"{CLAIMS}?fieldValidation=Strict", body, "json")
    assert found.status == 201
    assert found.body["spec"]["devices"]["config"][0]["opaque"]["parameters"] == {"a": 2}


def test_what_is_merged_may_be_overridden():
    body = b"metadata: {name: m}\nbase: &b {k: 1}\ndata:\n  <<: *b\n  k: 2\n"
    assert type(parse(body, "application/yaml")) is dict


@pytest.mark.parametrize("body", [b"- {a: 1, a: 2}", b"[{a: 1}]"])
def test_only_documents_of_objects_are_told_of(body):
    assert isinstance(parse(body, "application/yaml"), list)
