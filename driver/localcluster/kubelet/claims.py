"""Prepare a pod's claims before it starts, and unprepare them when the last pod that uses them is gone.

One call per driver and pod, with all of the pod's claims. A claim that this process of the kubelet has prepared is
skipped; one that another pod still uses is not unprepared.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from driver.errors import TemporaryError
from driver.localcluster.apiserver.objects import metadata, name_of, namespace_of
from driver.localcluster.kubelet.claim_cache import ClaimCache, ClaimInfo, Device
from driver.localcluster.kubelet.pod_claims import claim_names, container_requests, unneeded

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from driver.localcluster.apiserver.objects import Object
    from driver.localcluster.kubelet.dra_plugins import DraPlugins


class ClaimError(TemporaryError):
    """A pod's claims are not ready, or not released; the kubelet comes back."""


class ClaimManager:
    """The kubelet's DRA manager. `find_claim(namespace, name)` reads a ResourceClaim from the API server."""

    def __init__(self, cache: ClaimCache, plugins: DraPlugins, find_claim: Callable[[str, str], Object | None]) -> None:
        self.cache = cache
        self._plugins = plugins
        self._find_claim = find_claim

    async def prepare(self, pod: Object) -> None:
        """Prepare what the pod uses and nothing has prepared yet.

        :raises ClaimError: a claim is not ready, a driver is missing, a call or a claim failed.
        """
        claims = [self._claim(pod, name, claim) for name, claim in claim_names(pod).items() if not unneeded(pod, name)]
        for claim in claims:
            claim.pods.add(metadata(pod)["uid"])
            self.cache.add(claim)
        if claims:
            self.cache.save()
        todo = [claim for claim in claims if not claim.prepared]
        for driver, of_driver in _by_driver(todo).items():
            await self._prepare(driver, of_driver)
        for claim in todo:
            claim.prepared = True
        if todo:
            self.cache.save()

    async def unprepare(self, pod_uid: str) -> None:
        """Release what the pod used; nothing used is nothing done.

        :raises ClaimError: a driver is missing, a call or a claim failed; nothing is forgotten.
        """
        claims = self.cache.of_pod(pod_uid)
        last = [claim for claim in claims if claim.pods == {pod_uid}]
        for driver, of_driver in _by_driver(last).items():
            await self._unprepare(driver, of_driver)
        for claim in claims:
            claim.pods.discard(pod_uid)
            if not claim.pods:
                self.cache.remove(claim)
        if claims:
            self.cache.save()

    def cdi_devices(self, pod: Object, container: dict[str, Any]) -> list[str]:
        """Return the CDI names that a container gets, for the requests it names."""
        return [name for _, device in self.devices(pod, container) for name in device.cdi]

    def devices(self, pod: Object, container: dict[str, Any]) -> list[tuple[str, Device]]:
        """Return (driver, device) for all that a container uses."""
        found = []
        for claim_name, request in container_requests(pod, container):
            claim = self.cache.get(namespace_of(pod), claim_name)
            if claim is not None:
                pairs = [(driver, device) for driver, devices in claim.devices.items() for device in devices]
                found += [(driver, device) for driver, device in pairs if device.serves(request)]
        return found

    def _claim(self, pod: Object, pod_claim: str, name: str | None) -> ClaimInfo:
        namespace, uid = namespace_of(pod), metadata(pod)["uid"]
        if name is None:
            raise ClaimError(f"ResourceClaim {pod_claim} of pod {name_of(pod)}: not created yet")
        claim = self._find_claim(namespace, name)
        if claim is None:
            raise ClaimError(f"failed to fetch ResourceClaim {name} referenced by pod {name_of(pod)}: not found")
        status = claim.get("status", {})
        if uid not in {consumer.get("uid") for consumer in status.get("reservedFor") or ()}:
            raise ClaimError(f"pod {name_of(pod)} ({uid}) is not allowed to use ResourceClaim {name}")
        known = self.cache.get(namespace, name)
        if known is None:
            return _info(claim)
        if known.uid != metadata(claim)["uid"]:
            raise ClaimError(f"old ResourceClaim with same name {name} and different UID {known.uid} still exists")
        return known

    async def _prepare(self, driver: str, claims: list[ClaimInfo]) -> None:
        answers = await self._plugins.get(driver).prepare([claim.ref for claim in claims])
        for claim, answer in _answered("NodePrepareResources", claims, answers):
            claim.devices[driver] = [_device(device) for device in answer.devices]

    async def _unprepare(self, driver: str, claims: list[ClaimInfo]) -> None:
        answers = await self._plugins.get(driver).unprepare([claim.ref for claim in claims])
        _answered("NodeUnprepareResources", claims, answers)


def _answered(call: str, claims: Sequence[ClaimInfo], answers: Mapping[str, Any]) -> list[tuple[ClaimInfo, Any]]:
    """Pair the claims with their answers.

    :raises ClaimError: a claim failed, was not asked about or got no answer.
    """
    by_uid = {claim.uid: claim for claim in claims}
    pairs = []
    for uid, answer in answers.items():
        claim = by_uid.pop(uid, None)
        if claim is None:
            raise ClaimError(f"{call} returned result for unknown claim UID {uid}")
        if answer.error:
            raise ClaimError(f"{call} failed for ResourceClaim {claim.name}: {answer.error}")
        pairs.append((claim, answer))
    if by_uid:
        raise ClaimError(f"{call} skipped {len(by_uid)} ResourceClaims")
    return pairs


def _info(claim: Object) -> ClaimInfo:
    allocation = claim.get("status", {}).get("allocation")
    if not allocation:
        raise ClaimError(f"ResourceClaim {name_of(claim)} is not allocated")
    results = allocation.get("devices", {}).get("results") or ()
    drivers = tuple(dict.fromkeys(result["driver"] for result in results))
    return ClaimInfo(uid=metadata(claim)["uid"], namespace=namespace_of(claim), name=name_of(claim), drivers=drivers)


def _device(answer: Any) -> Device:
    has_share = "share_id" in answer.DESCRIPTOR.fields_by_name and answer.HasField("share_id")
    return Device(
        requests=tuple(answer.request_names),
        pool=answer.pool_name,
        name=answer.device_name,
        cdi=tuple(answer.cdi_device_ids),
        share=answer.share_id if has_share else None,
    )


def _by_driver(claims: Iterable[ClaimInfo]) -> dict[str, list[ClaimInfo]]:
    batches: dict[str, list[ClaimInfo]] = {}
    for claim in claims:
        for driver in claim.drivers:
            batches.setdefault(driver, []).append(claim)
    return batches
