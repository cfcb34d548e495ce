"""What a case has in its hands: it creates objects, waits for what they become, and looks into containers."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import re
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from driver.errors import ApiNotFoundError
from tests.conformance import manifests
from tests.conformance.api import collection, path_of
from tests.conformance.gpus import is_complete
from tests.conformance.manifests import CLASS, DRIVER, LAST_LINE
from tests.conformance.waiting import NotSeenError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Sequence

    from tests.conformance.api import Api, Object
    from tests.conformance.cluster import Cluster
    from tests.conformance.gpus import Gpu, Gpus
    from tests.conformance.waiting import Waiter

UUID = re.compile(r"\bGPU-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b")
_OWNERS = ("Deployment", "Job")
_REFUSALS = ("Unschedulable", "SchedulerError")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One case, in the run's namespace, which is empty before and after it."""

    api: Api
    wait: Waiter
    cluster: Cluster
    gpus: Gpus
    image: str

    @property
    def namespace(self) -> str:
        """The run's namespace."""
        return self.wait.namespace

    # --- objects -----------------------------------------------------------------------------------------------------

    async def create(self, *objects: Object) -> Object:
        """Create objects with the run's image, in order; return the last as stored."""
        stored: Object = {}
        for item in objects:
            wanted = with_image(item, self.image)
            stored = await self.api.create(collection(item["kind"], self.namespace), wanted)
        return stored

    def path(self, kind: str, name: str) -> str:
        """Return an object's path."""
        return path_of({"kind": kind, "metadata": {"name": name, "namespace": self.namespace}})

    async def delete(self, kind: str, name: str, *, force: bool = False) -> None:
        """Delete an object; return when it is gone."""
        if force:
            await self.api.force_delete(self.path(kind, name))
        else:
            await self.api.delete(self.path(kind, name))
        await self.wait.gone(kind, name)

    @contextlib.asynccontextmanager
    async def device_class(self, name: str, *selectors: str, **spec: Any) -> AsyncIterator[str]:
        """Have a class of the driver's devices for a while; yield its name, which is the run's own."""
        unique = f"{self.namespace}-{name}"
        await self.create(manifests.device_class(unique, *selectors, **spec))
        try:
            yield unique
        finally:
            await self.api.delete(self.path("DeviceClass", unique))

    async def clean_up(self) -> None:
        """Delete all that is in the namespace; return when no pod and no claim is left."""
        for kind in (*_OWNERS, "Pod", "ResourceClaim", "ResourceClaimTemplate"):
            for item in (await self.api.list(collection(kind, self.namespace)))["items"]:
                with contextlib.suppress(ApiNotFoundError):
                    await self.api.delete(self.path(kind, item["metadata"]["name"]))
        await asyncio.gather(self.wait.gone("Pod"), self.wait.gone("ResourceClaim"))

    # --- pods --------------------------------------------------------------------------------------------------------

    async def running(self, *names: str) -> list[Object]:
        """Return the pods as soon as all run."""
        return list(await asyncio.gather(*(self._in_phase(name, "Running") for name in names)))

    async def succeeded(self, name: str) -> Object:
        """Return a pod as soon as all its containers have ended well."""
        return await self._in_phase(name, "Succeeded")

    async def unschedulable(self, name: str) -> str:
        """Return the scheduler's reason as soon as it has refused a pod."""
        pod = await self.wait.one("Pod", name, _refusal, "is refused by the scheduler")
        return str(_refusal(pod)["message"])

    async def event(self, reason: str, *, about: str) -> str:
        """Return the message of an event about a pod as soon as there is one."""
        uid = await self._uid(about)

        def look(events: Sequence[Object]) -> str | None:
            return next(iter(_messages(events, reason, uid)), None)

        selector = f"involvedObject.name={about}"
        return await self.wait.until("Event", look, f"event {reason} about {about}", field_selector=selector)

    async def events(self, reason: str, *, about: str) -> list[str]:
        """Return the messages of the events that there are about a pod."""
        listed = await self.api.list(collection("Event", self.namespace))
        return _messages(listed["items"], reason, await self._uid(about))

    async def pods(self, label_selector: str) -> list[Object]:
        """Return the pods with some labels that are not about to go."""
        listed = await self.api.list(collection("Pod", self.namespace), label_selector=label_selector)
        return [pod for pod in listed["items"] if "deletionTimestamp" not in pod["metadata"]]

    async def output(self, pod: str, container: str = "main", *, uuids: int = 0) -> str:
        """Return what a container has written until it said that this is all, or has shown so many UUIDs."""
        await self.wait.one("Pod", pod, lambda item: _has_started(item, container), f"has started {container}")
        text = ""
        try:
            async with asyncio.timeout(self.wait.patience), aclosing(self._log(pod, container)) as parts:
                async for part in parts:
                    text += part
                    if LAST_LINE in text or len(UUID.findall(text)) >= uuids > 0:
                        break
        except TimeoutError:
            what = f"container {container} of pod {pod} writes {LAST_LINE!r}" if not uuids else f"{uuids} UUIDs"
            raise NotSeenError(f"waited {self.wait.patience:g} s in vain: {what}; it wrote:\n{text}") from None
        return text.partition(LAST_LINE)[0]

    async def seen(self, pod: str, container: str = "main", *, count: int = 0) -> set[str]:
        """Return the UUIDs of the GPUs that a container sees; see `output` for `count`."""
        return set(UUID.findall(await self.output(pod, container, uuids=count)))

    # --- claims ------------------------------------------------------------------------------------------------------

    async def claim_of(self, pod: str, name: str = "gpu") -> Object:
        """Return the allocated claim that a pod uses under a name."""
        found = await self.wait.one("Pod", pod, lambda item: _claim_name(item, name), f"has a claim {name}")
        return await self.allocated(str(_claim_name(found, name)))

    async def allocated(self, claim: str) -> Object:
        """Return a claim as soon as it is allocated."""
        return await self.wait.one("ResourceClaim", claim, results, "is allocated")

    async def given(self, pod: str, name: str = "gpu", request: str = "") -> list[Gpu]:
        """Return the GPUs that a pod's claim was given, for one of its requests or for all."""
        claim = await self.claim_of(pod, name)
        wanted = [one for one in results(claim) if request in ("", one["request"], one["request"].partition("/")[0])]
        return [self.gpus.at(one["pool"], one["device"]) for one in wanted]

    async def gone(self, *pods: str) -> None:
        """Delete pods; return when their claims are unprepared."""
        claims = [await self.claim_of(pod) for pod in pods]
        for pod in pods:
            await self.delete("Pod", pod)
        for claim in claims:
            await self.unprepared(claim)

    async def unprepared(self, claim: Object) -> None:
        """Return when nothing of a claim is left on the node, where that can be seen."""
        if self.cluster.can("see-node"):
            await self.cluster.node.until_nothing_is_left(claim["metadata"]["uid"], self.wait.patience)

    # --- what the cluster can do --------------------------------------------------------------------------------------

    async def require_fields(self, wanted: Object) -> None:
        """Skip the test where the API server would drop a field of an object's spec: its feature gate is off."""
        path = collection(wanted["kind"], self.namespace)
        kept = await self.api.create(f"{path}?dryRun=All", wanted)
        for name in wanted["spec"]:
            if name not in kept["spec"]:
                pytest.skip(f"the API server drops {name} of {wanted['kind']}: the feature is off in this cluster")

    async def extended_resource(self) -> str:
        """Return the resource by which pods may ask for a GPU without a claim; skip the test where there is none."""
        gpu_class = await self.api.get(self.path("DeviceClass", CLASS))
        if "extendedResourceName" not in gpu_class["spec"]:
            pytest.skip(f"DeviceClass {CLASS} has no extendedResourceName (see deploy/components/extended-resource)")
        return str(gpu_class["spec"]["extendedResourceName"])

    # --- the driver --------------------------------------------------------------------------------------------------

    async def slices(self) -> list[Object]:
        """Return the driver's slices."""
        listed = await self.api.list(collection("ResourceSlice"))
        return [item for item in listed["items"] if item["spec"]["driver"] == DRIVER]

    async def published(self) -> list[Object]:
        """Return the driver's slices as soon as they are complete."""
        await self.wait.until("ResourceSlice", is_complete, "the driver's slices are complete")
        return await self.slices()

    def _log(self, pod: str, container: str) -> AsyncGenerator[str]:
        return self.api.log(self.path("Pod", pod), container)

    async def _uid(self, pod: str) -> str:
        return str((await self.api.get(self.path("Pod", pod)))["metadata"]["uid"])

    async def _in_phase(self, name: str, phase: str) -> Object:
        return await self.wait.one("Pod", name, lambda pod: pod["status"].get("phase") == phase, f"is {phase}")


def uuids(gpus: list[Gpu]) -> set[str]:
    """Return the UUIDs of GPUs."""
    return {gpu.uuid for gpu in gpus}


def versions(objects: Sequence[Object]) -> dict[str, str]:
    """Return the resource versions of objects by name: what has not been written has the same."""
    return {item["metadata"]["name"]: item["metadata"]["resourceVersion"] for item in objects}


def results(claim: Object) -> list[Object]:
    """Return a claim's allocated devices."""
    allocation = (claim.get("status") or {}).get("allocation") or {}
    return list((allocation.get("devices") or {}).get("results") or ())


def with_image(item: Object, image: str) -> Object:
    """Return an object whose containers all have the image."""
    changed = copy.deepcopy(item)
    spec = changed.get("spec", {})
    pod = spec.get("template", {}).get("spec", {}) if item["kind"] in _OWNERS else spec
    for container in [*pod.get("initContainers", ()), *pod.get("containers", ())]:
        container["image"] = image
    return changed


def _refusal(pod: Object) -> Object:
    for condition in pod["status"].get("conditions") or ():
        if condition["type"] == "PodScheduled" and condition.get("reason") in _REFUSALS:
            return condition
    return {}


def _messages(events: Sequence[Object], reason: str, uid: str) -> list[str]:
    """Return the messages of events; the UID tells an object from a former one with its name."""
    found = [event for event in events if event["reason"] == reason and event["involvedObject"].get("uid") == uid]
    return [str(event["message"]) for event in found]


def _claim_name(pod: Object, name: str) -> str | None:
    for use in pod["spec"].get("resourceClaims") or ():
        if use["name"] == name and "resourceClaimName" in use:
            return str(use["resourceClaimName"])
    for status in pod["status"].get("resourceClaimStatuses") or ():
        if status["name"] == name:
            return status.get("resourceClaimName")
    return None


def _has_started(pod: Object, container: str) -> bool:
    status = pod["status"]
    found = [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]
    states = [one.get("state") or {} for one in found if one["name"] == container]
    return any("running" in state or "terminated" in state for state in states)
