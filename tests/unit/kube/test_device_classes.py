from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

import pytest

from driver.kube.device_classes import DeviceClasses
from driver.kube.resources import ResourceApi
from driver.localcluster.apiserver import ApiServer, Fault
from tests.unit.kube.conftest import serve_versions
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from driver.kube.client import KubeClient

GPU, MIG = "nvidia.com/gpu", "nvidia.com/mig-1g.10gb"


def device_class(name: str, resource: str = "") -> dict[str, Any]:
    spec = {"extendedResourceName": resource} if resource else {}
    return {"metadata": {"name": name}, "spec": spec}


class Followed:
    def __init__(self, classes: DeviceClasses) -> None:
        self.classes = classes
        self.changes: list[set[str]] = []

    def changed(self) -> None:
        self.changes.append(set(self.classes.resources))

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Followed]:
        task = asyncio.create_task(self.classes.run(self.changed))
        try:
            yield self
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


@pytest.fixture
def followed(client: KubeClient) -> Followed:
    return Followed(DeviceClasses(ResourceApi(client)))


async def test_classes_are_read_and_followed(server: ApiServer, followed: Followed) -> None:
    store = server.store
    store.create("deviceclasses", device_class("gpu.nvidia.com", GPU))
    store.create("deviceclasses", device_class("plain"))
    async with followed.running():
        await followed.classes.known.wait()
        assert followed.classes.resources == {GPU}
        store.create("deviceclasses", device_class("mig", MIG))
        await until(lambda: followed.classes.resources == {GPU, MIG})
        store.create("deviceclasses", device_class("again", MIG))
        store.delete("deviceclasses", "mig")
        store.delete("deviceclasses", "gpu.nvidia.com")
        await until(lambda: followed.classes.resources == {MIG})
    assert followed.changes == [{GPU}, {GPU, MIG}, {MIG}]


async def test_no_class_is_known_too(followed: Followed) -> None:
    async with followed.running():
        await followed.classes.known.wait()
    assert followed.classes.resources == frozenset()
    assert followed.changes == []


async def test_a_server_that_drops_the_field_backs_nothing(server: ApiServer, followed: Followed) -> None:
    await server.stop()
    from driver.localcluster.apiserver import Features

    server.store.features = Features(kubernetes="1.34")
    await server.start()
    server.store.create("deviceclasses", device_class("gpu.nvidia.com", GPU))
    async with followed.running():
        await followed.classes.known.wait()
        assert followed.classes.resources == frozenset()


@pytest.mark.parametrize("version", ["v1", "v1beta2", "v1beta1"])
async def test_every_version_of_the_api(server: ApiServer, followed: Followed, version: str) -> None:
    await serve_versions(server, version)
    server.store.create("deviceclasses", device_class("gpu.nvidia.com", GPU))
    async with followed.running():
        await followed.classes.known.wait()
        assert followed.classes.resources == {GPU}


@pytest.mark.parametrize("verb", ["list", "watch"])
async def test_failures_pass(server: ApiServer, followed: Followed, verb: str, caplog) -> None:
    server.faults.add(Fault.on(verb, "deviceclasses", status=503, times=2))
    async with followed.running():
        await until(lambda: not server.faults)
        await followed.classes.known.wait()
        server.store.create("deviceclasses", device_class("gpu.nvidia.com", GPU))
        await until(lambda: followed.classes.resources == {GPU})
    assert caplog.text.count("can't be followed now") == 1


async def test_what_is_known_stays_while_the_server_is_away(server: ApiServer, followed: Followed) -> None:
    server.store.create("deviceclasses", device_class("gpu.nvidia.com", GPU))
    async with followed.running():
        await followed.classes.known.wait()
        await server.stop()
        server.store.delete("deviceclasses", "gpu.nvidia.com")
        assert followed.classes.resources == {GPU}
        await server.start()
        await until(lambda: followed.classes.resources == frozenset())
