"""Objects and waiting for the tests of the local cluster's scheduler and controllers."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

from driver.localcluster.apiserver.store import Store
from driver.localcluster.scheduler import cel
from driver.localcluster.scheduler.devices import make_pool

if TYPE_CHECKING:
    from collections.abc import Iterable

    from driver.localcluster.apiserver.features import Features
    from driver.localcluster.apiserver.objects import Object
    from driver.localcluster.scheduler.devices import Pool

DRIVER = "gpu.nvidia.com"
NAMESPACE = "work"


def make_store(features: Features | None = None) -> Store:
    store = Store(features, cel=cel.check)
    store.create("namespaces", {"metadata": {"name": NAMESPACE}})
    return store


def node(name: str, allocatable: dict[str, str] | None = None, **spec: Any) -> Object:
    labels = {"kubernetes.io/hostname": name}
    return {
        "metadata": {"name": name, "labels": labels},
        "spec": spec,
        "status": {"allocatable": allocatable or {}, "conditions": [{"type": "Ready", "status": "True"}]},
    }


def device_class(name: str = DRIVER, *expressions: str, **spec: Any) -> Object:
    selectors = [{"cel": {"expression": item}} for item in expressions or (f"device.driver == '{DRIVER}'",)]
    return {"metadata": {"name": name}, "spec": {"selectors": selectors, **spec}}


def pools_of(slices: Iterable[Object]) -> tuple[Pool, ...]:
    """Make pools of ResourceSlices, ordered by driver and name."""
    by_pool: dict[tuple[str, str], list[Object]] = {}
    for item in slices:
        by_pool.setdefault((item["spec"]["driver"], item["spec"]["pool"]["name"]), []).append(item)
    return tuple(make_pool(*key, by_pool[key]) for key in sorted(by_pool))


def device(name: str, memory: str = "80Gi", **extra: Any) -> Object:
    return {
        "name": name,
        "attributes": {"productName": {"string": "NVIDIA H100"}, "driverVersion": {"version": "580.1.0"}},
        "capacity": {"memory": {"value": memory}},
        **extra,
    }


def resource_slice(node_name: str, *devices: Object, name: str = "", **spec: Any) -> Object:
    pool = {"name": node_name, "generation": 1, "resourceSliceCount": 1}
    body = {"driver": DRIVER, "nodeName": node_name, "pool": pool, "devices": list(devices), **spec}
    return {"metadata": {"name": name or f"0-{node_name}"}, "spec": body}


def request(name: str = "r", *selectors: str, cls: str = DRIVER, **exactly: Any) -> Object:
    body: Object = {"deviceClassName": cls, "allocationMode": "ExactCount", "count": 1, **exactly}
    if body["allocationMode"] == "All":
        del body["count"]
    if selectors:
        body["selectors"] = [{"cel": {"expression": item}} for item in selectors]
    return {"name": name, "exactly": body}


def claim(name: str, *requests: Object, uid: str | None = None, **devices: Any) -> Object:
    meta = {"name": name, "namespace": NAMESPACE} | ({"uid": uid} if uid else {})
    return {"metadata": meta, "spec": {"devices": {"requests": list(requests or (request(),)), **devices}}}


def template(name: str, *requests: Object) -> Object:
    return {"metadata": {"name": name, "namespace": NAMESPACE}, "spec": {"spec": claim("", *requests)["spec"]}}


def pod(name: str, *claims: str, template: str | None = None, **spec: Any) -> Object:
    entries: list[Object] = [{"name": item, "resourceClaimName": item} for item in claims]
    if template:
        entries.append({"name": "gpu", "resourceClaimTemplateName": template})
    containers = [{"name": "main", "image": "busybox"}]
    body = {"containers": containers, **({"resourceClaims": entries} if entries else {}), **spec}
    return {"metadata": {"name": name, "namespace": NAMESPACE}, "spec": body}


class Running:
    """Runs parts of a cluster while a test lasts."""

    def __init__(self, *parts: Any) -> None:
        self._parts = parts
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Running:
        self._tasks = [asyncio.create_task(part.run()) for part in self._parts]
        await asyncio.sleep(0)
        return self

    async def __aexit__(self, *exc: object) -> None:
        for task in self._tasks:
            assert not task.done(), task
            task.cancel()
        for task in self._tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task


async def wait_for(store: Store, resource: str, check: Any, namespace: str | None = NAMESPACE) -> Any:
    """Return the first true answer of `check(objects)`, asked again at every change of the resource."""
    objects: list[Object] = []
    try:
        async with asyncio.timeout(30):
            if found := check(store.list(resource, namespace)):
                return found
            async for _ in store.watch(resource, namespace):
                objects = store.list(resource, namespace)
                if found := check(objects):
                    return found
    except TimeoutError:
        raise AssertionError(f"it did not come about; the {resource} are: {objects}") from None
    raise AssertionError("the store closed its watches")


async def bound(store: Store, name: str) -> Object:
    """Wait for a pod to have a node and return it."""
    return await wait_for(store, "pods", lambda pods: _named(pods, name, lambda obj: obj["spec"].get("nodeName")))


async def pending(store: Store, name: str) -> str:
    """Wait for a pod to be refused and return the message."""

    def refused(obj: Object) -> bool:
        return scheduled(obj).get("status") == "False"

    found = await wait_for(store, "pods", lambda pods: _named(pods, name, refused))
    return str(scheduled(found)["message"])


def scheduled(obj: Object) -> Object:
    conditions = (obj.get("status") or {}).get("conditions") or []
    return next((item for item in conditions if item["type"] == "PodScheduled"), {})


def devices_of(store: Store, name: str) -> list[str]:
    """Return the devices that a claim holds."""
    status = store.get("resourceclaims", name, NAMESPACE).get("status") or {}
    return [item["device"] for item in ((status.get("allocation") or {}).get("devices") or {}).get("results") or []]


def _named(objects: list[Object], name: str, check: Any) -> Object | None:
    return next((obj for obj in objects if obj["metadata"]["name"] == name and check(obj)), None)
