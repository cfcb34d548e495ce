"""ReplicaSets: as many pods of one template as wanted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from driver.localcluster import events
from driver.localcluster.apiserver.errors import StatusError
from driver.localcluster.apiserver.objects import Object, clone, metadata, name_of, namespace_of
from driver.localcluster.controllers.controller import (
    Key,
    Manager,
    is_active,
    is_ready,
    reference,
    set_status,
)

if TYPE_CHECKING:
    from driver.localcluster.apiserver.store import Store

_NAME = "replicaset-controller"


class ReplicaSetController(Manager):
    """The ReplicaSet controller of one cluster. It manages the pods it made; it adopts none."""

    def __init__(self, store: Store) -> None:
        super().__init__(store, self._sync_key, owners="replicasets", kind="ReplicaSet", owned="pods")

    def _sync_key(self, key: Key) -> None:
        replica_set = self._store.find("replicasets", key[2], key[1])
        if replica_set is None:
            return
        if not metadata(replica_set).get("deletionTimestamp"):
            self._scale(replica_set)
        pods = [pod for pod in self._owned.of(replica_set) if is_active(pod)]
        ready = sum(map(is_ready, pods))
        status = {
            "replicas": len(pods),
            "fullyLabeledReplicas": len(pods),
            "readyReplicas": ready,
            "availableReplicas": ready,
            "observedGeneration": metadata(replica_set).get("generation", 1),
        }
        set_status(self._store, "replicasets", replica_set, status)

    def _scale(self, replica_set: Object) -> None:
        pods = [pod for pod in self._owned.of(replica_set) if is_active(pod)]
        wanted = replica_set["spec"].get("replicas", 1)
        for _ in range(wanted - len(pods)):
            self._make(replica_set)
        for pod in sorted(pods, key=_worth)[: max(0, len(pods) - wanted)]:
            self._store.delete("pods", name_of(pod), namespace_of(pod), uid=metadata(pod)["uid"])
            message = f"Deleted pod: {name_of(pod)}"
            events.record(self._store, _NAME, replica_set, "SuccessfulDelete", message)

    def _make(self, replica_set: Object) -> None:
        try:
            pod = self._store.create("pods", pod_of(replica_set), namespace_of(replica_set))
        except StatusError as exc:
            events.record(self._store, _NAME, replica_set, "FailedCreate", f"Error creating: {exc}", warning=True)
            raise
        self._owned.put("ADDED", pod)
        events.record(self._store, _NAME, replica_set, "SuccessfulCreate", f"Created pod: {name_of(pod)}")


def pod_of(owner: Object) -> Object:
    """Return a pod of an owner's template."""
    template = owner["spec"]["template"]
    given = template.get("metadata") or {}
    return {
        "metadata": {
            "generateName": f"{name_of(owner)}-",
            "labels": dict(given.get("labels") or {}),
            "annotations": dict(given.get("annotations") or {}),
            "ownerReferences": [reference(owner)],
        },
        "spec": clone(template["spec"]),
    }


def _worth(pod: Object) -> tuple[bool, bool, int]:
    """Order pods by what is lost with them: unscheduled and unready ones go first, then the newest."""
    newest_first = -int("".join(filter(str.isdigit, metadata(pod)["creationTimestamp"])))
    return bool(pod["spec"].get("nodeName")), is_ready(pod), newest_first
