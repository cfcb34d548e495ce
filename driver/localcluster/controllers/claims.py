"""Claims of pods: made from templates, given back when their pods are done, deleted with the pods they were made for.

Source: https://kubernetes.io/docs/concepts/scheduling-eviction/dynamic-resource-allocation/ and the names and
annotations that users see on a real cluster's claims.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from driver.localcluster import events
from driver.localcluster.apiserver.errors import StatusError
from driver.localcluster.apiserver.objects import Object, clone, metadata, name_of, namespace_of
from driver.localcluster.controllers.controller import (
    Controller,
    Key,
    Owned,
    controller_of,
    is_finished,
    key_of,
    reference,
)
from driver.localcluster.scheduler.binding import FINALIZER

if TYPE_CHECKING:
    from driver.localcluster.apiserver.store import Store

POD_CLAIM: Final = "resource.kubernetes.io/pod-claim-name"
_NAME: Final = "resourceclaim-controller"


class ClaimController(Controller):
    """The resource claim controller of one cluster."""

    def __init__(self, store: Store) -> None:
        watched = {
            "pods": self._pod_changed,
            "resourceclaims": self._claim_changed,
            "resourceclaimtemplates": self._template_changed,
        }
        super().__init__(store, self._sync_key, watched)
        self._claims = Owned(store, "resourceclaims")
        self._wanting: dict[tuple[str, str], dict[Key, None]] = {}

    def _pod_changed(self, type_: str, pod: Object) -> None:
        if pod["spec"].get("resourceClaims") or (pod.get("status") or {}).get("extendedResourceClaimStatus"):
            self.add(key_of("pods", pod))
            for name in _claim_names(pod):
                self.add(("resourceclaims", namespace_of(pod), name))

    def _claim_changed(self, type_: str, claim: Object) -> None:
        self._claims.put(type_, claim)
        if type_ != "DELETED":
            self.add(key_of("resourceclaims", claim))

    def _template_changed(self, type_: str, template: Object) -> None:
        if type_ == "ADDED":
            for key in self._wanting.pop((namespace_of(template), name_of(template)), {}):
                self.add(key)

    def _sync_key(self, key: Key) -> None:
        obj = self._store.find(key[0], key[2], key[1])
        if obj is not None:
            (self._sync_pod if key[0] == "pods" else self._sync_claim)(obj)

    # --- pods --------------------------------------------------------------------------------------------------------

    def _sync_pod(self, pod: Object) -> None:
        if metadata(pod).get("deletionTimestamp") or is_finished(pod):
            return
        known = {item["name"] for item in (pod.get("status") or {}).get("resourceClaimStatuses") or ()}
        entries = pod["spec"].get("resourceClaims") or ()
        missing = [entry for entry in entries if entry.get("resourceClaimTemplateName") and entry["name"] not in known]
        if not missing:
            return
        made = [
            {"name": entry["name"], "resourceClaimName": name} for entry in missing if (name := self._make(pod, entry))
        ]
        if made:
            statuses = [*((pod.get("status") or {}).get("resourceClaimStatuses") or ()), *made]
            patch = {"status": {"resourceClaimStatuses": statuses}}
            self._store.patch("pods", name_of(pod), patch, namespace_of(pod), subresource="status")

    def _make(self, pod: Object, entry: Object) -> str | None:
        """Return the name of the pod's claim, making it of its template unless an earlier try did."""
        for claim in self._claims.of(pod):
            if (metadata(claim).get("annotations") or {}).get(POD_CLAIM) == entry["name"]:
                return name_of(claim)
        name = entry["resourceClaimTemplateName"]
        template = self._store.find("resourceclaimtemplates", name, namespace_of(pod))
        if template is None:
            self._wanting.setdefault((namespace_of(pod), name), {})[key_of("pods", pod)] = None
            self._tell(pod, f'PodResourceClaim {entry["name"]}: resourceclaimtemplate "{name}" not found')
            return None
        try:
            claim = self._store.create("resourceclaims", _from_template(pod, entry["name"], template))
        except StatusError as exc:
            self._tell(pod, f"PodResourceClaim {entry['name']}: {exc}")
            raise
        self._claims.put("ADDED", claim)
        return name_of(claim)

    def _tell(self, pod: Object, message: str) -> None:
        events.record(self._store, _NAME, pod, "FailedResourceClaimCreation", message, warning=True)

    # --- claims ------------------------------------------------------------------------------------------------------

    def _sync_claim(self, claim: Object) -> None:
        status = claim.get("status") or {}
        reserved = status.get("reservedFor") or []
        kept = [consumer for consumer in reserved if self._still_uses(claim, consumer)]
        if (len(kept) < len(reserved)) or (status.get("allocation") and not kept and _may_free(claim, reserved)):
            claim = self._store.update_status("resourceclaims", _with_consumers(claim, kept))
        if not (claim.get("status") or {}).get("allocation") and FINALIZER in (metadata(claim).get("finalizers") or ()):
            claim = self._unprotect(claim)
        if self._is_left_over(claim):
            self._store.delete("resourceclaims", name_of(claim), namespace_of(claim), uid=metadata(claim)["uid"])

    def _still_uses(self, claim: Object, consumer: Object) -> bool:
        if consumer.get("resource") != "pods" or consumer.get("apiGroup"):
            return True  # somebody else's consumer, somebody else's to remove
        pod = self._store.find("pods", consumer["name"], namespace_of(claim))
        if pod is None or metadata(pod)["uid"] != consumer["uid"] or is_finished(pod):
            return False
        return not (metadata(pod).get("deletionTimestamp") and not pod["spec"].get("nodeName"))

    def _unprotect(self, claim: Object) -> Object:
        new = clone(claim)
        metadata(new)["finalizers"] = [item for item in metadata(new)["finalizers"] if item != FINALIZER]
        return self._store.update("resourceclaims", new)

    def _is_left_over(self, claim: Object) -> bool:
        """Say whether a claim was made for a pod that is done with it."""
        owner = controller_of(claim)
        if owner is None or owner["kind"] != "Pod" or metadata(claim).get("deletionTimestamp"):
            return False
        pod = self._store.find("pods", owner["name"], namespace_of(claim))
        return pod is not None and metadata(pod)["uid"] == owner["uid"] and is_finished(pod)


def _claim_names(pod: Object) -> list[str]:
    status = pod.get("status") or {}
    entries = [*(pod["spec"].get("resourceClaims") or ()), *(status.get("resourceClaimStatuses") or ())]
    special = status.get("extendedResourceClaimStatus") or {}
    return [entry["resourceClaimName"] for entry in [*entries, special] if entry.get("resourceClaimName")]


def _from_template(pod: Object, name: str, template: Object) -> Object:
    given, spec = template["spec"].get("metadata") or {}, template["spec"]["spec"]
    return {
        "metadata": {
            "generateName": f"{name_of(pod)}-{name}-",
            "namespace": namespace_of(pod),
            "labels": dict(given.get("labels") or {}),
            "annotations": {**(given.get("annotations") or {}), POD_CLAIM: name},
            "ownerReferences": [reference(pod)],
        },
        "spec": clone(spec),
    }


def _may_free(claim: Object, reserved: list[Object]) -> bool:
    """Say whether an allocated claim without consumers is to be freed: it had some, or it is to be deleted."""
    return bool(reserved) or bool(metadata(claim).get("deletionTimestamp"))


def _with_consumers(claim: Object, consumers: list[Object]) -> Object:
    """Return the claim with these consumers; without any it loses its allocation and what drivers said about it."""
    status = dict(claim.get("status") or {})
    status.pop("reservedFor", None)
    if consumers:
        status["reservedFor"] = consumers
    else:
        status.pop("allocation", None)
        status.pop("devices", None)
    return {**claim, "status": status}
