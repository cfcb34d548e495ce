"""Writes a placement down: claims allocated and reserved first, the pod bound last, so that a half done one is safe.

Source of the order and of the finalizer: the DynamicResources plugin's PreBind as the API's users see it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from driver.localcluster.apiserver.objects import Object, clone, metadata, name_of, namespace_of
from driver.localcluster.scheduler.requests import key_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from driver.localcluster.apiserver.store import Store
    from driver.localcluster.scheduler.extended import SpecialClaim
    from driver.localcluster.scheduler.placing import Placement

FINALIZER: Final = "resource.kubernetes.io/delete-protection"
"""Keeps an allocated claim until it is deallocated."""
RESERVED_MAX: Final = 256


def commit(store: Store, pod: Object, claims: Sequence[Object], placement: Placement) -> list[Object]:
    """Allocate, reserve, bind; return the claims as stored.

    :raises StatusError: if something changed meanwhile; trying the pod again sorts it out.
    """
    stored = [_reserve(store, claim, pod, placement.allocations.get(key_of(claim))) for claim in claims]
    if placement.special:
        allocation = placement.allocations[key_of(placement.special.claim)]
        stored.append(_make_special(store, pod, placement.special, allocation))
    store.bind(name_of(pod), namespace_of(pod), placement.node)
    return stored


def is_reserved(claim: Object, pod: Object) -> bool:
    """Say whether the pod is among a claim's consumers."""
    uid = metadata(pod)["uid"]
    return any(consumer.get("uid") == uid for consumer in _status(claim).get("reservedFor") or ())


def _reserve(store: Store, claim: Object, pod: Object, allocation: Mapping[str, Any] | None) -> Object:
    if allocation is None and is_reserved(claim, pod):
        return claim
    new = clone(claim)
    if allocation is not None and FINALIZER not in (metadata(new).get("finalizers") or ()):
        metadata(new)["finalizers"] = [*(metadata(new).get("finalizers") or ()), FINALIZER]
        new = clone(store.update("resourceclaims", new))
    status = new["status"] = _status(new)
    if allocation is not None:
        status["allocation"] = clone(dict(allocation))
    if not is_reserved(new, pod):
        status["reservedFor"] = [*(status.get("reservedFor") or ()), _consumer(pod)]
    return store.update_status("resourceclaims", new)


def _make_special(store: Store, pod: Object, special: SpecialClaim, allocation: Mapping[str, Any]) -> Object:
    wanted = clone(dict(special.claim))
    del wanted["metadata"]["name"]
    claim = _reserve(store, store.create("resourceclaims", wanted, namespace_of(pod)), pod, allocation)
    status = {
        "resourceClaimName": name_of(claim),
        "requestMappings": [dict(mapping) for mapping in _unique(special.mappings)],
    }
    patch = {"status": {"extendedResourceClaimStatus": status}}
    store.patch("pods", name_of(pod), patch, namespace_of(pod), subresource="status")
    return claim


def _unique(mappings: Iterable[dict[str, str]]) -> list[dict[str, str]]:
    return list({tuple(mapping.items()): mapping for mapping in mappings}.values())


def _consumer(pod: Object) -> dict[str, str]:
    return {"resource": "pods", "name": name_of(pod), "uid": metadata(pod)["uid"]}


def _status(claim: Object) -> dict[str, Any]:
    return claim.get("status") or {}
