"""The health of what a pod's containers were given, for `status.containerStatuses[].allocatedResourcesStatus`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from driver.localcluster.apiserver.objects import namespace_of
from driver.localcluster.kubelet.pod_claims import claim_names, containers_of

if TYPE_CHECKING:
    from driver.localcluster.apiserver.objects import Object
    from driver.localcluster.kubelet.services import NodeServices


def allocated_resources(services: NodeServices, pod: Object) -> dict[str, list[Any]]:
    """Return the entries by container, if the cluster has the feature; nothing heard is Unknown."""
    if not services.store.features.enabled("ResourceHealthStatus"):
        return {}
    result = {}
    for container in containers_of(pod):
        entries = [
            entry
            for item in container.get("resources", {}).get("claims") or ()
            for entry in _entries(services, pod, item["name"], item.get("request", ""))
        ]
        if entries:
            result[container["name"]] = entries
    return result


def _entries(services: NodeServices, pod: Object, pod_claim: str, request: str) -> list[dict[str, Any]]:
    name = claim_names(pod).get(pod_claim)
    claim = services.claims.cache.get(namespace_of(pod), name) if name else None
    if claim is None:
        return []
    resources = []
    for driver, devices in claim.devices.items():
        for device in [device for device in devices if device.serves(request)]:
            word, message = services.health.of(driver, device.pool, device.name)
            ids = device.cdi or (f"{driver}/{device.pool}/{device.name}",)
            said = {"message": message} if message else {}
            resources += [{"resourceID": item, "health": word, **said} for item in ids]
    label = f"claim:{pod_claim}/{request}" if request else f"claim:{pod_claim}"
    return [{"name": label, "resources": resources}] if resources else []
