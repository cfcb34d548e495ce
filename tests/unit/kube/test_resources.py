from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import pytest

from driver.errors import ApiConflictError, ApiError, ApiInvalidError, ApiNotFoundError, InvalidValueError
from driver.kube.client import KubeClient
from driver.kube.resources import PARTITIONABLE_SINCE, ResourceApi
from driver.localcluster.apiserver import ApiServer, Fault, Features
from tests.unit.kube.conftest import serve_versions

if TYPE_CHECKING:
    from pathlib import Path

    from tests.unit.kube.conftest import Serve

SPEC = {
    "driver": "gpu.nvidia.com",
    "nodeName": "n",
    "pool": {"name": "n", "generation": 1, "resourceSliceCount": 1},
    "devices": [
        {"name": "gpu-0", "attributes": {"type": {"string": "gpu"}}, "capacity": {"memory": {"value": "80Gi"}}}
    ],
}
SLICE = {"metadata": {"generateName": "00-"}, "spec": SPEC}
OWN = "spec.driver=gpu.nvidia.com,spec.nodeName=n"


@pytest.mark.parametrize(
    ("served", "best"),
    [
        (("v1", "v1beta2", "v1beta1"), "v1"),
        (("v1beta1", "v1beta2"), "v1beta2"),
        (("v1beta1",), "v1beta1"),
        (("v1",), "v1"),
    ],
)
async def test_the_best_served_version_is_spoken(
    server: ApiServer, client: KubeClient, served: tuple[str, ...], best: str
) -> None:
    await serve_versions(server, *served)
    api = ResourceApi(client)
    assert await api.version() == best
    await api.list_slices()
    assert {call.version for call in server.audit.calls if call.resource == "resourceslices"} == {best}


@pytest.mark.parametrize("version", ["v1", "v1beta2", "v1beta1"])
async def test_slices_look_like_v1_in_every_version(server: ApiServer, client: KubeClient, version: str) -> None:
    await serve_versions(server, version)
    api = ResourceApi(client)
    items, since = await api.list_slices(OWN)
    assert items == []
    stored = await api.create_slice(SLICE)
    assert stored["spec"] == SPEC
    assert stored["apiVersion"] == "resource.k8s.io/v1"
    name = stored["metadata"]["name"]
    changed = await api.update_slice({**stored, "spec": {**SPEC, "devices": [{"name": "gpu-1"}]}})
    await api.delete_slice(name, uid=stored["metadata"]["uid"], resource_version=changed["metadata"]["resourceVersion"])
    seen = []
    async with aclosing(api.watch_slices(OWN, since)) as events:
        async for event in events:
            seen.append((event.type, event.object["spec"]["devices"][0]["name"]))
            if event.type == "DELETED":
                break
    assert seen == [("ADDED", "gpu-0"), ("MODIFIED", "gpu-1"), ("DELETED", "gpu-1")]
    resources = {call.version for call in server.audit.calls if call.resource == "resourceslices"}
    assert resources == {version}


async def test_the_version_is_found_once(server: ApiServer, client: KubeClient) -> None:
    api = ResourceApi(client)
    for _ in range(3):
        await api.list_slices()
    assert server.audit.counts["get", "/apis/resource.k8s.io"] == 1


async def test_another_release_behind_the_same_address_is_noticed(server: ApiServer, client: KubeClient) -> None:
    await serve_versions(server, "v1beta1")
    api = ResourceApi(client)
    stored = await api.create_slice(SLICE)
    await serve_versions(server, "v1")
    items, _ = await api.list_slices(OWN)
    assert [item["spec"] for item in items] == [SPEC]
    await serve_versions(server, "v1beta2", "v1beta1")
    assert (await api.update_slice(stored))["spec"] == SPEC
    assert await api.version() == "v1beta2"


async def test_a_watch_on_a_version_that_is_gone_makes_the_next_list_look_again(
    server: ApiServer, client: KubeClient
) -> None:
    await serve_versions(server, "v1beta1")
    api = ResourceApi(client)
    await api.list_slices()
    await serve_versions(server, "v1")
    with pytest.raises(ApiNotFoundError):
        await anext(api.watch_slices(OWN, "1"))
    assert await api.version() == "v1"


async def test_a_server_without_dra_is_told_so(serve: Serve) -> None:
    from aiohttp import web

    async def handler(request: web.BaseRequest) -> web.Response:
        return web.Response(status=404, text="404 page not found")

    with pytest.raises(ApiNotFoundError, match="does not serve resource"):
        await ResourceApi(await serve(handler)).list_slices()


@pytest.mark.parametrize("versions", [[], [{"version": "v1alpha3"}], [{"version": "v9"}, 3], None])
async def test_unknown_versions_only_are_told(serve: Serve, versions: object) -> None:
    from aiohttp import web

    async def handler(request: web.BaseRequest) -> web.Response:
        return web.json_response({"versions": versions})

    with pytest.raises(ApiNotFoundError, match="the driver speaks"):
        await ResourceApi(await serve(handler)).version()


# --- claims ----------------------------------------------------------------------------------------------------------


def add_claim(server: ApiServer, name: str = "c") -> dict[str, Any]:
    request = {"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com"}}
    return server.store.create(
        "resourceclaims", {"metadata": {"name": name}, "spec": {"devices": {"requests": [request]}}}, "default"
    )


async def test_a_claim_is_one_call(server: ApiServer, client: KubeClient) -> None:
    uid = add_claim(server)["metadata"]["uid"]
    api = ResourceApi(client)
    await api.version()
    server.audit.clear()
    assert (await api.claim("default", "c"))["metadata"]["uid"] == uid
    assert len(server.audit.calls) == 1


async def test_a_missing_claim_is_not_taken_for_a_missing_version(server: ApiServer, client: KubeClient) -> None:
    api = ResourceApi(client)
    await api.version()
    server.audit.clear()
    with pytest.raises(ApiNotFoundError) as caught:
        await api.claim("default", "gone")
    assert caught.value.reason == "NotFound"
    assert len(server.audit.calls) == 1


@pytest.mark.parametrize(
    ("namespace", "name"),
    [("default", "../pods"), ("a/b", "c"), ("", "c"), ("default", ""), ("default", "c?x=1"), ("default", "C")],
)
async def test_a_name_with_path_characters_is_never_sent(
    server: ApiServer, client: KubeClient, namespace: str, name: str
) -> None:
    with pytest.raises(InvalidValueError):
        await ResourceApi(client).claim(namespace, name)
    assert not server.audit.calls


@pytest.mark.parametrize("status", [401, 403, 409, 410, 422, 429, 500])
async def test_failures_of_a_claim_pass_through(server: ApiServer, client: KubeClient, status: int) -> None:
    add_claim(server)
    server.faults.add(Fault.on("get", "resourceclaims", status=status))
    with pytest.raises(ApiError) as caught:
        await ResourceApi(client).claim("default", "c")
    assert caught.value.status == status


async def test_claims_are_read_side_by_side(server: ApiServer, client: KubeClient) -> None:
    for number in range(4):
        add_claim(server, f"c{number}")
    api = ResourceApi(client)
    await api.version()
    gate = asyncio.Event()
    fault = server.faults.add(Fault.on("get", "resourceclaims", until=gate))
    calls = [asyncio.create_task(api.claim("default", f"c{number}")) for number in range(4)]
    async with asyncio.timeout(10):
        while fault.hits < 4:
            await asyncio.sleep(0.001)
    gate.set()
    assert len(await asyncio.gather(*calls)) == 4


# --- the server's release --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("release", "partitions"), [("1.34", False), ("1.35", True), ("1.36", True), ("1.37", True)])
async def test_the_release_says_whether_counters_can_be_used(tmp_path: Path, release: str, partitions: bool) -> None:
    server = ApiServer(tmp_path, Features(kubernetes=release))
    await server.start()
    async with KubeClient.from_kubeconfig(server.kubeconfig) as client:
        version = await ResourceApi(client).server_version()
    await server.stop()
    assert version.git_version == f"v{release}.0"
    assert (version[:2] >= PARTITIONABLE_SINCE) is partitions


@pytest.mark.parametrize("text", ["v1.36.2-eks-abc", "1.36", "v1.36.2+k3s1"])
async def test_vendors_releases_are_understood(serve: Serve, text: str) -> None:
    from aiohttp import web

    async def handler(request: web.BaseRequest) -> web.Response:
        return web.json_response({"gitVersion": text})

    version = await ResourceApi(await serve(handler)).server_version()
    assert version[:2] == (1, 36)


async def test_an_unreadable_release_is_an_error(serve: Serve) -> None:
    from aiohttp import web

    async def handler(request: web.BaseRequest) -> web.Response:
        return web.json_response({"gitVersion": "main"})

    with pytest.raises(ApiInvalidError, match="main"):
        await ResourceApi(await serve(handler)).server_version()


async def test_a_conflict_of_a_slice_passes_through(client: KubeClient) -> None:
    api = ResourceApi(client)
    stored = await api.create_slice(SLICE)
    await api.update_slice({**stored, "spec": {**SPEC, "devices": []}})
    with pytest.raises(ApiConflictError):
        await api.update_slice({**stored, "spec": {**SPEC, "devices": [{"name": "gpu-7"}]}})
