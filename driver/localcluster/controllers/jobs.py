"""Jobs: pods until enough of them succeeded, or too many failed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from driver.localcluster import events
from driver.localcluster.apiserver.objects import Object, metadata, name_of, namespace_of
from driver.localcluster.controllers.controller import (
    Key,
    Manager,
    is_active,
    is_ready,
    set_status,
)
from driver.localcluster.controllers.replicasets import pod_of

if TYPE_CHECKING:
    from driver.localcluster.apiserver.store import Store

_NAME = "job-controller"


class JobController(Manager):
    """The Job controller of one cluster: completions, parallelism, backoff limit; failed pods are followed at once."""

    def __init__(self, store: Store) -> None:
        super().__init__(store, self._sync_key, owners="jobs", kind="Job", owned="pods")

    def _sync_key(self, key: Key) -> None:
        job = self._store.find("jobs", key[2], key[1])
        if job is None or metadata(job).get("deletionTimestamp") or _outcome(job):
            return
        pods = self._owned.of(job)
        active = [pod for pod in pods if is_active(pod)]
        if verdict := _verdict(job, pods):
            self._remove(active)
            active = []
        else:
            active = self._scale(job, pods, active)
        self._report(job, active, verdict)

    def _scale(self, job: Object, pods: list[Object], active: list[Object]) -> list[Object]:
        spec = job["spec"]
        left = spec.get("completions", 1) - _phase_count(pods, "Succeeded")
        wanted = 0 if spec.get("suspend") else min(spec.get("parallelism", 1), left)
        self._remove(active[wanted:])
        made = [self._make(job) for _ in range(wanted - len(active))]
        return [*active[:wanted], *made]

    def _make(self, job: Object) -> Object:
        pod = self._store.create("pods", pod_of(job), namespace_of(job))
        self._owned.put("ADDED", pod)
        events.record(self._store, _NAME, job, "SuccessfulCreate", f"Created pod: {name_of(pod)}")
        return pod

    def _remove(self, pods: list[Object]) -> None:
        for pod in pods:
            self._store.delete("pods", name_of(pod), namespace_of(pod), uid=metadata(pod)["uid"])

    def _report(self, job: Object, active: list[Object], verdict: tuple[str, str, str] | None) -> None:
        old, pods, now = job.get("status") or {}, self._owned.of(job), self._store.now()
        counts = {
            "active": len(active),
            "ready": sum(map(is_ready, active)),
            "succeeded": _phase_count(pods, "Succeeded"),
            "failed": _phase_count(pods, "Failed"),
        }
        status = {"startTime": old.get("startTime") or now, **{name: count for name, count in counts.items() if count}}
        if verdict:
            type_, reason, message = verdict
            status["conditions"] = [
                {"type": type_, "status": "True", "reason": reason, "message": message, "lastTransitionTime": now}
            ]
            if type_ == "Complete":
                status["completionTime"] = now
            events.record(self._store, _NAME, job, reason, message, warning=type_ == "Failed")
        set_status(self._store, "jobs", job, status)


def _verdict(job: Object, pods: list[Object]) -> tuple[str, str, str] | None:
    """Return the condition that ends the job with its reason and message, None while it goes on."""
    spec = job["spec"]
    if _phase_count(pods, "Succeeded") >= spec.get("completions", 1):
        return "Complete", "CompletionsReached", "Reached expected number of succeeded pods"
    restarts = sum(
        int(container.get("restartCount") or 0)
        for pod in pods
        for container in (pod.get("status") or {}).get("containerStatuses") or ()
    )
    if _phase_count(pods, "Failed") + restarts > spec.get("backoffLimit", 6):
        return "Failed", "BackoffLimitExceeded", "Job has reached the specified backoff limit"
    return None


def _outcome(job: Object) -> str | None:
    conditions = (job.get("status") or {}).get("conditions") or ()
    ends = ("Complete", "Failed")
    return next((c["type"] for c in conditions if c.get("type") in ends and c.get("status") == "True"), None)


def _phase_count(pods: list[Object], phase: str) -> int:
    return sum(1 for pod in pods if (pod.get("status") or {}).get("phase") == phase)
