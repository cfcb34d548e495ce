"""Extended resources that a DeviceClass backs: a pod that asks for them gets a claim made by the scheduler. Pure.

Source: KEP-5004. A node that advertises the resource itself (by a device plugin) keeps doing so; only where it is
absent or 0 are devices of the class allocated.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Final

from driver.localcluster.scheduler import fit, requests

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from driver.localcluster.scheduler.outcome import Unsatisfiable

    Object = Mapping[str, Any]

IMPLICIT: Final = "deviceclass.resource.kubernetes.io/"
"""Every class is also an extended resource of this name."""
ANNOTATION: Final = "resource.kubernetes.io/extended-resource-claim"


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecialClaim:
    """The claim for a pod's extended resources on a node, and which request serves which container."""

    claim: Object
    mappings: tuple[dict[str, str], ...]

    def in_pods_words(self, failure: Unsatisfiable) -> Unsatisfiable:
        """Name containers and resources, which the pod's author knows, rather than requests that were made up."""
        if failure.claim != requests.key_of(self.claim):
            return failure
        called = {
            one["requestName"]: f"{one['resourceName']} of container {one['containerName']}" for one in self.mappings
        }
        findings = (replace(one, ask=replace(one.ask, called=called[one.ask.name])) for one in failure.findings)
        return replace(failure, findings=tuple(findings))


def class_of(resource: str, classes: Mapping[str, Object]) -> str | None:
    """Return the class that backs an extended resource: the newest, by name among equals; None if none does."""
    backing = [item for item in classes.values() if (item.get("spec") or {}).get("extendedResourceName") == resource]
    if backing:
        newest = max(str(item["metadata"].get("creationTimestamp") or "") for item in backing)
        return min(
            str(item["metadata"]["name"])
            for item in backing
            if str(item["metadata"].get("creationTimestamp") or "") == newest
        )
    name = resource.removeprefix(IMPLICIT)
    return name if name != resource and name in classes else None


def special_claim(pod: Object, resources: Iterable[str], classes: Mapping[str, Object]) -> SpecialClaim:
    """Return the claim for those of a pod's extended resources that classes back; not stored yet."""
    meta, spec, chosen = pod["metadata"], pod["spec"], set(resources)
    asked, mappings = [], []
    for index, container in enumerate([*(spec.get("initContainers") or ()), *spec["containers"]]):
        wanted = fit.container_amounts(container)
        for position, resource in enumerate(sorted(chosen & wanted.keys())):
            if not wanted[resource]:
                continue
            name = f"container-{index}-request-{position}"
            exactly = {
                "deviceClassName": class_of(resource, classes),
                "allocationMode": "ExactCount",
                "count": int(Fraction(wanted[resource])),
            }
            asked.append({"name": name, "exactly": exactly})
            mappings.append({"containerName": container["name"], "resourceName": resource, "requestName": name})
    owner = {"apiVersion": "v1", "kind": "Pod", "name": meta["name"], "uid": meta["uid"], "controller": True}
    claim = {
        "metadata": {
            "name": f"{meta['name']}-extended-resources",
            "generateName": f"{meta['name']}-extended-resources-",
            "namespace": meta["namespace"],
            "annotations": {ANNOTATION: "true"},
            "ownerReferences": [{**owner, "blockOwnerDeletion": True}],
        },
        "spec": {"devices": {"requests": asked}},
    }
    return SpecialClaim(claim=claim, mappings=tuple(mappings))
