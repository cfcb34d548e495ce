"""A kubelet with a store, without scheduler and HTTP: the tests play the scheduler."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from driver.localcluster.apiserver.bootstrap import bootstrap
from driver.localcluster.apiserver.features import Features
from driver.localcluster.apiserver.objects import clone
from driver.localcluster.apiserver.store import Store
from driver.localcluster.kubelet.kubelet import Kubelet
from driver.localcluster.kubelet.paths import NodePaths
from driver.localcluster.kubelet.times import Times
from tests.waiting import until

from .plugins import DRIVER, DevicePlugin, DraPlugin, Recorder

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

NODE = "node1"


class Bench:
    """A node under test."""

    def __init__(self, root: Path, store: Store, times: Times) -> None:
        self.store = store
        self.paths = NodePaths(root)
        self.kubelet = Kubelet(NODE, store, self.paths, times=times)
        self.plugins: list[DraPlugin | DevicePlugin] = []

    def dra(self, recorder: Recorder | None = None, **more: Any) -> DraPlugin:
        """Make a DRA plugin that ends with the test."""
        plugin = DraPlugin(self.paths, recorder, **more)
        self.plugins.append(plugin)
        return plugin

    async def registered(self, recorder: Recorder | None = None, **more: Any) -> DraPlugin:
        """Make a DRA plugin, start it and wait until it is registered."""
        plugin = self.dra(recorder, **more)
        await plugin.start()
        await until(lambda: plugin.status, "the plugin is registered")
        return plugin

    def device_plugin(self, **more: Any) -> DevicePlugin:
        """Make a device plugin that ends with the test."""
        plugin = DevicePlugin(self.paths, **more)
        self.plugins.append(plugin)
        return plugin

    def cdi(self, *names: str, kind: str = "rec.example/gpu", **edits: Any) -> None:
        """Write a CDI file whose devices set GPU=<name>."""
        devices = [{"name": name, "containerEdits": {"env": [f"GPU={name}"], **edits}} for name in names]
        path = self.paths.cdi_dirs[1] / f"{kind.replace('/', '-')}.json"
        path.write_text(json.dumps({"cdiVersion": "0.6.0", "kind": kind, "devices": devices}), encoding="utf-8")

    def claim(self, name: str, *devices: str, driver: str = DRIVER, namespace: str = "default") -> dict[str, Any]:
        """Create a claim that is allocated."""
        spec = {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "gpu"}}]}}
        claim = self.store.create("resourceclaims", {"metadata": {"name": name}, "spec": spec}, namespace)
        new = clone(claim)
        results = [
            {"request": "r", "driver": driver, "pool": NODE, "device": device} for device in devices or ("gpu-0",)
        ]
        new["status"] = {"allocation": {"devices": {"results": results}}}
        return self.store.update_status("resourceclaims", new)

    def pod(
        self, name: str, *claims: str, script: str = "sleep 100", namespace: str = "default", **spec: Any
    ) -> dict[str, Any]:
        """Create a pod on this node that uses claims, and reserve them for it."""
        uses = [{"name": claim} for claim in claims]
        container = {"name": "c", "image": "busybox", "command": ["sh", "-c", script], "resources": {"claims": uses}}
        body = {
            "containers": [container],
            "resourceClaims": [{"name": claim, "resourceClaimName": claim} for claim in claims],
            **spec,
        }
        pod = {"metadata": {"name": name, "namespace": namespace}, "spec": body}
        created = self.store.create("pods", pod, namespace)
        for claim in claims:
            self.reserve(claim, created, namespace)
        return self.store.bind(name, namespace, NODE)

    def reserve(self, claim: str, pod: dict[str, Any], namespace: str = "default") -> None:
        new = clone(self.store.get("resourceclaims", claim, namespace))
        consumer = {"resource": "pods", "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]}
        new["status"]["reservedFor"] = [*new["status"].get("reservedFor", ()), consumer]
        self.store.update_status("resourceclaims", new)

    def get(self, name: str) -> dict[str, Any]:
        return self.store.find("pods", name, "default") or {}

    def phase(self, name: str) -> str:
        return str(self.get(name).get("status", {}).get("phase", "gone"))

    def status(self, name: str, container: str = "c") -> dict[str, Any]:
        statuses = self.get(name).get("status", {})
        found = [*statuses.get("containerStatuses", ()), *statuses.get("initContainerStatuses", ())]
        return next((item for item in found if item["name"] == container), {})

    def log(self, name: str, container: str = "c", *, previous: bool = False) -> str:
        path = self.kubelet.log_path(self.get(name)["metadata"]["uid"], container, previous=previous)
        return path.read_text(encoding="utf-8") if path else ""

    def events(self, reason: str) -> list[str]:
        return [event["message"] for event in self.store.list("events") if event["reason"] == reason]

    def delete(self, name: str, *, grace: int | None = None) -> None:
        self.store.delete("pods", name, "default", grace_seconds=grace)


@pytest.fixture
def times() -> Times:
    return Times().scaled(0.01)


@pytest.fixture
def features() -> Features:
    return Features()


@pytest.fixture
def store(features: Features) -> Store:
    store = Store(features)
    bootstrap(store)
    return store


@pytest.fixture
async def bench(short_tmp: Path, store: Store, times: Times) -> AsyncIterator[Bench]:
    bench = Bench(short_tmp, store, times)
    await bench.kubelet.start()
    yield bench
    await bench.kubelet.stop()
    for plugin in bench.plugins:
        await plugin.kill()
