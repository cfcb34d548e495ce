"""Which ResourceClaims a pod and its containers use. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from driver.localcluster.apiserver.objects import Object


def claim_names(pod: Object) -> dict[str, str | None]:
    """Return the claims' names by their names in the pod; None where none has been generated (yet).

    A claim for extended resources has no name in the pod: it comes under its own name.
    """
    status = pod.get("status", {})
    generated = {item["name"]: item for item in status.get("resourceClaimStatuses") or ()}
    names: dict[str, str | None] = {}
    for claim in pod["spec"].get("resourceClaims") or ():
        if "resourceClaimName" in claim:
            names[claim["name"]] = claim["resourceClaimName"]
        else:
            names[claim["name"]] = generated.get(claim["name"], {}).get("resourceClaimName")
    extended = status.get("extendedResourceClaimStatus")
    if extended:
        names[f"/{extended['resourceClaimName']}"] = extended["resourceClaimName"]
    return names


def unneeded(pod: Object, name: str) -> bool:
    """Say whether it was decided that this claim of the pod is not to be generated."""
    statuses = pod.get("status", {}).get("resourceClaimStatuses") or ()
    return any(item["name"] == name and not item.get("resourceClaimName") for item in statuses)


def container_requests(pod: Object, container: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the (claim name, request name) pairs that a container uses; an empty request is all of the claim."""
    names = claim_names(pod)
    pairs = [
        (names[item["name"]] or "", item.get("request", ""))
        for item in container.get("resources", {}).get("claims") or ()
        if names.get(item["name"])
    ]
    extended = pod.get("status", {}).get("extendedResourceClaimStatus") or {}
    pairs += [
        (extended["resourceClaimName"], mapping["requestName"])
        for mapping in extended.get("requestMappings") or ()
        if mapping["containerName"] == container["name"]
    ]
    return list(dict.fromkeys(pairs))


def by_claim(pod: Object) -> set[tuple[str, str]]:
    """Return the (container, extended resource) pairs that a claim gives, so that no device plugin is asked."""
    extended = pod.get("status", {}).get("extendedResourceClaimStatus") or {}
    return {(item["containerName"], item["resourceName"]) for item in extended.get("requestMappings") or ()}


def containers_of(pod: Object) -> list[dict[str, Any]]:
    """Return all containers, init containers first."""
    return [*(pod["spec"].get("initContainers") or ()), *pod["spec"]["containers"]]
