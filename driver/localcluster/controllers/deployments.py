"""Deployments: one ReplicaSet per template; a change of the template moves the pods over, step by step."""

from __future__ import annotations

import hashlib
import json
from math import ceil
from typing import TYPE_CHECKING, Any, Final

from driver.localcluster.apiserver.objects import Object, clone, metadata, name_of, namespace_of
from driver.localcluster.controllers.controller import (
    Key,
    Manager,
    Owned,
    controller_of,
    is_finished,
    reference,
    set_status,
)

if TYPE_CHECKING:
    from driver.localcluster.apiserver.store import Store

REVISION: Final = "deployment.kubernetes.io/revision"
_HASH: Final = "pod-template-hash"


class DeploymentController(Manager):
    """The Deployment controller of one cluster."""

    def __init__(self, store: Store) -> None:
        super().__init__(
            store,
            self._sync_key,
            owners="deployments",
            kind="Deployment",
            owned="replicasets",
            also={"pods": self._pod_changed},
        )
        self._pods = Owned(store, "pods")

    def _pod_changed(self, type_: str, pod: Object) -> None:
        self._pods.put(type_, pod)
        owner = controller_of(pod)
        if type_ == "DELETED" and owner and owner["kind"] == "ReplicaSet":  # a Recreate may wait for it
            replica_set = self._store.find("replicasets", owner["name"], namespace_of(pod))
            if replica_set and (above := controller_of(replica_set)):
                self.add(("deployments", namespace_of(pod), above["name"]))

    def _sync_key(self, key: Key) -> None:
        deployment = self._store.find("deployments", key[2], key[1])
        if deployment is None:
            return
        if not metadata(deployment).get("deletionTimestamp") and not deployment["spec"].get("paused"):
            self._roll(deployment)
        current, old = self._split(deployment)
        set_status(self._store, "deployments", deployment, _status(deployment, current, old))

    def _split(self, deployment: Object) -> tuple[Object | None, list[Object]]:
        """Return the ReplicaSet of the present template and the others."""
        wanted = template_hash(deployment)
        sets = self._owned.of(deployment)
        current = next((item for item in sets if (metadata(item).get("labels") or {}).get(_HASH) == wanted), None)
        return current, [item for item in sets if item is not current]

    def _roll(self, deployment: Object) -> None:
        found, old = self._split(deployment)
        current = self._revise(found, old) if found else self._make(deployment, old)
        recreate = (deployment["spec"].get("strategy") or {}).get("type") == "Recreate"
        if recreate and any(_wanted(item) or self._runs(item) for item in old):
            for item in old:
                self._scale(item, 0)
        elif not any(_wanted(item) or _count(item, "replicas") for item in old):
            self._scale(current, deployment["spec"].get("replicas", 1))
            self._forget(deployment, old)
        else:
            self._step(deployment, current, old)

    def _runs(self, replica_set: Object) -> bool:
        """Say whether any of its pods is not finished, those on their way out included."""
        return not all(map(is_finished, self._pods.of(replica_set)))

    def _step(self, deployment: Object, current: Object, old: list[Object]) -> None:
        """Move on by what surge and unavailability allow."""
        replicas = deployment["spec"].get("replicas", 1)
        surge, unavailable = _limits(deployment, replicas)
        total = sum(map(_wanted, [current, *old]))
        target = min(replicas, _wanted(current) + max(0, replicas + surge - total))
        total += target - _wanted(current)
        unready = target - _count(current, "availableReplicas")
        self._scale(current, target)
        removable = max(0, total - (replicas - unavailable) - unready)
        for item in old:
            idle = _wanted(item) - _count(item, "availableReplicas")
            fewer = min(_wanted(item), max(idle, removable))
            self._scale(item, _wanted(item) - fewer)
            removable = max(0, removable - fewer)

    def _make(self, deployment: Object, old: list[Object]) -> Object:
        spec, digest = deployment["spec"], template_hash(deployment)
        template = clone(spec["template"])
        labels = template.setdefault("metadata", {}).setdefault("labels", {})
        labels[_HASH] = digest
        selector = clone(spec["selector"])
        selector.setdefault("matchLabels", {})[_HASH] = digest
        body = {
            "metadata": {
                "name": f"{name_of(deployment)}-{digest}",
                "labels": dict(labels),
                "annotations": {REVISION: str(1 + max(map(_revision, old), default=0))},
                "ownerReferences": [reference(deployment)],
            },
            "spec": {"replicas": 0, "selector": selector, "template": template},
        }
        made = self._store.create("replicasets", body, namespace_of(deployment))
        self._owned.put("ADDED", made)
        return made

    def _revise(self, current: Object, old: list[Object]) -> Object:
        """Give the present template the highest revision; after a rollback it had a lower one."""
        newest = max(map(_revision, old), default=0)
        if _revision(current) > newest:
            return current
        patch = {"metadata": {"annotations": {REVISION: str(newest + 1)}}}
        return self._store.patch("replicasets", name_of(current), patch, namespace_of(current))

    def _scale(self, replica_set: Object, replicas: int) -> None:
        if _wanted(replica_set) != replicas:
            patch = {"spec": {"replicas": replicas}}
            self._store.patch("replicasets", name_of(replica_set), patch, namespace_of(replica_set))

    def _forget(self, deployment: Object, old: list[Object]) -> None:
        limit = deployment["spec"].get("revisionHistoryLimit", 10)
        for item in sorted(old, key=_revision)[: max(0, len(old) - limit)]:
            self._store.delete("replicasets", name_of(item), namespace_of(item), uid=metadata(item)["uid"])


def template_hash(deployment: Object) -> str:
    """Return what names a template; the same template gives the same name."""
    text = json.dumps(deployment["spec"]["template"], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:10]


def _limits(deployment: Object, replicas: int) -> tuple[int, int]:
    """Return how many pods may be too many and too few during a rollout; one of them is at least 1."""
    rolling = (deployment["spec"].get("strategy") or {}).get("rollingUpdate") or {}
    surge = _share(rolling.get("maxSurge", "25%"), replicas, up=True)
    unavailable = _share(rolling.get("maxUnavailable", "25%"), replicas, up=False)
    return surge, unavailable if surge or unavailable else 1


def _share(value: Any, replicas: int, *, up: bool) -> int:
    if isinstance(value, int):
        return value
    part = int(str(value).rstrip("%")) * replicas / 100
    return ceil(part) if up else int(part)


def _wanted(replica_set: Object) -> int:
    return int(replica_set["spec"].get("replicas", 1))


def _count(replica_set: Object, field: str) -> int:
    return int((replica_set.get("status") or {}).get(field) or 0)


def _revision(replica_set: Object) -> int:
    return int((metadata(replica_set).get("annotations") or {}).get(REVISION) or 0)


def _status(deployment: Object, current: Object | None, old: list[Object]) -> Object:
    sets = [*([current] if current else []), *old]
    wanted = deployment["spec"].get("replicas", 1)
    total, available = (sum(_count(item, field) for item in sets) for field in ("replicas", "availableReplicas"))
    updated = _count(current, "replicas") if current else 0
    _, unavailable = _limits(deployment, wanted)
    enough = available >= wanted - unavailable
    done = updated == wanted == total == available
    counts = {
        "replicas": total,
        "updatedReplicas": updated,
        "readyReplicas": sum(_count(item, "readyReplicas") for item in sets),
        "availableReplicas": available,
        "unavailableReplicas": max(0, wanted - available),
    }
    conditions = [
        _condition("Available", enough, "MinimumReplicasAvailable" if enough else "MinimumReplicasUnavailable"),
        _condition("Progressing", True, "NewReplicaSetAvailable" if done else "ReplicaSetUpdated"),
    ]
    observed = metadata(deployment).get("generation", 1)
    return {"observedGeneration": observed, "conditions": conditions, **{k: v for k, v in counts.items() if v}}


def _condition(type_: str, holds: bool, reason: str) -> Object:
    return {"type": type_, "status": "True" if holds else "False", "reason": reason, "message": reason}
