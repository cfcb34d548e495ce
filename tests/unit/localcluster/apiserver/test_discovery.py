from __future__ import annotations

import pytest

from driver.localcluster.apiserver import ApiServer, Features
from tests.unit.localcluster.apiserver.conftest import Client, a_slice


async def test_the_groups_and_their_versions(client):
    groups = {g["name"]: g for g in (await client.ask("GET", "/apis")).body["groups"]}
    dra = groups["resource.k8s.io"]
    assert [v["version"] for v in dra["versions"]] == ["v1", "v1beta2", "v1beta1"]
    assert dra["preferredVersion"] == {"groupVersion": "resource.k8s.io/v1", "version": "v1"}
    assert "" not in groups
    one = (await client.ask("GET", "/apis/resource.k8s.io")).body
    assert (one["kind"], one["versions"]) == ("APIGroup", dra["versions"])
    assert (await client.ask("GET", "/api")).body["versions"] == ["v1"]
    assert (await client.ask("GET", "/apis/nowhere.io")).status == 404


async def test_the_resources_of_a_version(client):
    found = (await client.ask("GET", "/apis/resource.k8s.io/v1")).body
    resources = {r["name"]: r for r in found["resources"]}
    assert set(resources) >= {"resourceslices", "resourceclaims", "resourceclaims/status", "deviceclasses"}
    assert resources["resourceclaims"]["namespaced"] is True
    assert resources["resourceslices"]["namespaced"] is False
    core = {r["name"]: r for r in (await client.ask("GET", "/api/v1")).body["resources"]}
    assert core["pods"]["shortNames"] == ["po"]
    assert core["pods/log"]["verbs"] == ["get"]
    assert core["serviceaccounts/token"]["kind"] == "TokenRequest"


async def test_aggregated_discovery(client):
    accept = {"Accept": "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json"}
    found = await client.ask("GET", "/apis", **accept)
    assert found.headers["Content-Type"] == "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
    groups = {item["metadata"]["name"]: item for item in found.body["items"]}
    versions = {v["version"]: v for v in groups["resource.k8s.io"]["versions"]}
    claims = next(r for r in versions["v1beta1"]["resources"] if r["resource"] == "resourceclaims")
    assert claims["responseKind"] == {"group": "resource.k8s.io", "version": "v1beta1", "kind": "ResourceClaim"}
    assert [s["subresource"] for s in claims["subresources"]] == ["status"]
    core = (await client.ask("GET", "/api", **accept)).body["items"]
    assert [item["metadata"] for item in core] == [{}]


@pytest.mark.parametrize("version", ["v1", "v1beta2", "v1beta1"])
async def test_a_server_may_serve_one_version_only(tmp_path, version):
    import yaml

    server = ApiServer(tmp_path, Features(dra_versions=(version,)))
    await server.start()
    client = Client(server, yaml.safe_load(server.kubeconfig.read_text())["users"][0]["user"]["token"])
    found = (await client.ask("GET", "/apis/resource.k8s.io")).body
    assert [v["version"] for v in found["versions"]] == [version]
    path = f"/apis/resource.k8s.io/{version}/resourceslices"
    given = a_slice()
    if version == "v1beta1":
        given["spec"]["devices"] = [{"name": "gpu-0", "basic": {"attributes": {"a": {"int": 1}}}}]
    made = (await client.ask("POST", path, given)).body
    assert (made["apiVersion"], made["spec"]["devices"]) == (f"resource.k8s.io/{version}", given["spec"]["devices"])
    other = "v1beta1" if version == "v1" else "v1"
    assert (await client.ask("GET", f"/apis/resource.k8s.io/{other}/resourceslices")).status == 404
    await client.session.close()
    await server.stop()


async def test_the_version_is_the_configured_one(client):
    found = (await client.ask("GET", "/version")).body
    assert (found["major"], found["minor"], found["gitVersion"]) == ("1", "36", "v1.36.0")


async def test_openapi_says_that_fields_are_validated(client):
    index = (await client.ask("GET", "/openapi/v3")).body["paths"]
    document = (await client.ask("GET", index["apis/resource.k8s.io/v1"]["serverRelativeURL"])).body
    patch = document["paths"]["/apis/resource.k8s.io/v1/namespaces/{namespace}/resourceclaims/{name}"]["patch"]
    assert "fieldValidation" in {parameter["name"] for parameter in patch["parameters"]}
    assert patch["x-kubernetes-group-version-kind"]["kind"] == "ResourceClaim"


async def test_every_reference_in_openapi_is_there(client):
    for path in (await client.ask("GET", "/openapi/v3")).body["paths"]:
        document = (await client.ask("GET", f"/openapi/v3/{path}")).body
        names = {name.replace("/", "~1") for name in document["components"]["schemas"]}
        assert {ref.rpartition("/")[2] for ref in _references(document)} <= names


def _references(value):
    if isinstance(value, dict):
        for key, item in value.items():
            if key == "$ref":
                yield item
            else:
                yield from _references(item)
    elif isinstance(value, list):
        for item in value:
            yield from _references(item)
