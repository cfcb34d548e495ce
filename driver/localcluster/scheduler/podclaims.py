"""Finds the claims of a pod, and says what it waits for while one is missing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from driver.errors import TemporaryError
from driver.localcluster.apiserver.objects import Object, metadata, name_of, namespace_of, owner_uids
from driver.localcluster.scheduler.binding import RESERVED_MAX, is_reserved

if TYPE_CHECKING:
    from driver.localcluster.apiserver.store import Store


class ClaimNotReadyError(TemporaryError):
    """A claim of the pod is missing or can't be used now; `quiet` while it is only about to be made."""

    def __init__(self, message: str, *, quiet: bool = False) -> None:
        super().__init__(message)
        self.quiet = quiet


def claims_of(store: Store, pod: Object) -> list[Object]:
    """Return the claims of a pod in its order.

    :raises ClaimNotReadyError: saying which one is missing, and why.
    """
    made = {item["name"]: item.get("resourceClaimName") for item in _statuses(pod)}
    found = []
    for entry in pod["spec"].get("resourceClaims") or ():
        name = entry.get("resourceClaimName") or made.get(entry["name"])
        if name is not None:
            found.append(_usable(store, pod, name, from_template=not entry.get("resourceClaimName")))
        elif entry["name"] not in made:
            raise _not_made(store, pod, entry)
    return found


def _statuses(pod: Object) -> list[Object]:
    return (pod.get("status") or {}).get("resourceClaimStatuses") or []


def _not_made(store: Store, pod: Object, entry: Object) -> ClaimNotReadyError:
    template = entry.get("resourceClaimTemplateName") or ""
    if store.find("resourceclaimtemplates", template, namespace_of(pod)) is None:
        return ClaimNotReadyError(f'resourceclaimtemplate "{template}" not found')
    return ClaimNotReadyError(f"the claim {entry['name']} is not made yet of template {template}", quiet=True)


def _usable(store: Store, pod: Object, name: str, *, from_template: bool) -> Object:
    claim = store.find("resourceclaims", name, namespace_of(pod))
    if claim is None:
        raise ClaimNotReadyError(f'resourceclaim "{name}" not found')
    if metadata(claim).get("deletionTimestamp"):
        raise ClaimNotReadyError(f'resourceclaim "{name}" is being deleted')
    if from_template and metadata(pod)["uid"] not in owner_uids(claim):
        where = namespace_of(pod)
        raise ClaimNotReadyError(
            f"ResourceClaim {where}/{name} was not created for pod {where}/{name_of(pod)} (pod is not owner)"
        )
    reserved = (claim.get("status") or {}).get("reservedFor") or ()
    if len(reserved) >= RESERVED_MAX and not is_reserved(claim, pod):
        raise ClaimNotReadyError(f'resourceclaim "{name}" is used by {RESERVED_MAX} pods already')
    return claim
