"""The scheduling loop: pods without a node get one, and their claims get devices there.

Driven by the store's changes alone: a pod that did not fit is tried again when something changed that could help.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from typing import TYPE_CHECKING

from driver.localcluster import events
from driver.localcluster.apiserver.errors import StatusError
from driver.localcluster.apiserver.objects import Object, metadata, name_of, namespace_of
from driver.localcluster.informer import Informer
from driver.localcluster.scheduler import binding
from driver.localcluster.scheduler.placing import Placement, Placer, Refusal
from driver.localcluster.scheduler.podclaims import ClaimNotReadyError, claims_of
from driver.localcluster.scheduler.view import ClusterView

if TYPE_CHECKING:
    from collections.abc import Callable

    from driver.localcluster.apiserver.store import Store

log = logging.getLogger(__name__)

NAME = "default-scheduler"
_Key = tuple[str, str]


class Scheduler:
    """Schedules the pods of one cluster until cancelled; `new_id` gives the share ids of shared devices."""

    def __init__(self, store: Store, new_id: Callable[[], str] = lambda: str(uuid.uuid4())) -> None:
        self._store = store
        self._view = ClusterView(extended=store.features.enabled("DRAExtendedResource"))
        self._placer = Placer(self._view, new_id)
        self._waiting: dict[_Key, None] = {}
        self._parked: dict[_Key, Object] = {}
        self._wake = asyncio.Event()
        self._informer = Informer(
            store,
            {
                "nodes": lambda type_, obj: self._changed(self._view.node(type_, obj)),
                "deviceclasses": lambda type_, obj: self._changed(self._view.device_class(type_, obj)),
                "resourceslices": lambda type_, obj: self._changed(self._view.resource_slice(type_, obj)),
                "resourceclaims": self._claim_changed,
                "resourceclaimtemplates": self._awaited,
                "pods": self._pod_changed,
            },
        )

    async def run(self) -> None:
        """Schedule until cancelled or the store closes its watches."""
        self._informer.load()
        async with asyncio.TaskGroup() as group:
            loop = group.create_task(self._loop(), name="scheduler")
            await self._informer.run()
            loop.cancel()

    async def _loop(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            for pod in self._in_order():
                self._attempt(pod)
                await asyncio.sleep(0)  # let the changes in, and everybody else

    def _changed(self, helpful: bool) -> None:
        if helpful and self._parked:
            self._waiting.update(dict.fromkeys(self._parked))
            self._parked.clear()
            self._wake.set()

    def _claim_changed(self, type_: str, claim: Object) -> None:
        self._changed(self._view.claim(type_, claim))
        self._awaited(type_, claim)

    def _awaited(self, type_: str, obj: Object) -> None:
        """Try the pods again that name a claim or a template which is new."""
        if type_ != "ADDED":
            return
        for key, pod in list(self._parked.items()):
            if key[0] == namespace_of(obj) and name_of(obj) in _names(pod):
                del self._parked[key]
                self._waiting[key] = None
                self._wake.set()

    def _pod_changed(self, type_: str, pod: Object) -> None:
        self._changed(self._view.pod(type_, pod))
        key = (namespace_of(pod), name_of(pod))
        parked = self._parked.get(key)
        if parked is not None and type_ == "MODIFIED" and _same_wishes(parked, pod):
            return  # our own condition, or another write that changes nothing for us
        self._parked.pop(key, None)
        self._waiting.pop(key, None)
        if type_ != "DELETED" and _is_ours(pod):
            self._waiting[key] = None
            self._wake.set()

    def _in_order(self) -> list[Object]:
        """Return the pods to try: by priority, then by age."""
        found = [self._store.find("pods", name, namespace) for namespace, name in self._waiting]
        self._waiting.clear()
        return sorted((pod for pod in found if pod is not None), key=_rank)

    def _attempt(self, seen: Object) -> None:
        """Try one pod; whatever goes wrong costs this pod only."""
        pod = self._store.find("pods", name_of(seen), namespace_of(seen))
        if pod is None or not _is_ours(pod):
            return
        key = (namespace_of(pod), name_of(pod))
        try:
            self._schedule(pod)
        except StatusError as exc:
            log.info("pod %s/%s changed while it was scheduled, trying again: %s", *key, exc)
            if exc.code in (404, 409):
                self._waiting[key] = None
                self._wake.set()
            else:
                self._pend(pod, Refusal(reason="SchedulerError", message=str(exc)))
        except Exception as exc:
            log.exception("pod %s/%s could not be scheduled", *key)
            self._pend(pod, Refusal(reason="SchedulerError", message=f"internal error: {exc}"))

    def _schedule(self, pod: Object) -> None:
        if metadata(pod).get("deletionTimestamp"):
            return
        if gates := pod["spec"].get("schedulingGates"):
            names = ", ".join(gate["name"] for gate in gates)
            self._pend(pod, Refusal(reason="SchedulingGated", message=f"waiting for the scheduling gates {names}"))
            return
        try:
            claims = claims_of(self._store, pod)
        except ClaimNotReadyError as exc:
            self._park(pod)
            if not exc.quiet:
                count = len(self._view.nodes)
                self._pend(pod, Refusal(reason="Unschedulable", message=f"0/{count} nodes are available: {exc}."))
            return
        placed = self._placer.place(pod, claims)
        if isinstance(placed, Refusal):
            self._pend(pod, placed)
        else:
            self._bind(pod, claims, placed)

    def _bind(self, pod: Object, claims: list[Object], placement: Placement) -> None:
        for claim in binding.commit(self._store, pod, claims, placement):
            self._view.claim("MODIFIED", claim)
        bound = self._store.get("pods", name_of(pod), namespace_of(pod))
        self._view.pod("MODIFIED", bound)
        where = f"{namespace_of(pod)}/{name_of(pod)}"
        message = f"Successfully assigned {where} to {placement.node}"
        events.record(self._store, NAME, bound, "Scheduled", message)

    def _park(self, pod: Object) -> None:
        self._parked[namespace_of(pod), name_of(pod)] = pod

    def _pend(self, pod: Object, refusal: Refusal) -> None:
        """Leave a pod pending and say why, once per reason."""
        self._park(pod)
        condition = {
            "type": "PodScheduled",
            "status": "False",
            "reason": refusal.reason,
            "message": refusal.message,
        }
        conditions = (pod.get("status") or {}).get("conditions") or []
        old: Object = next((item for item in conditions if item.get("type") == "PodScheduled"), {})
        if all(old.get(field) == value for field, value in condition.items()):
            return
        since = old["lastTransitionTime"] if old.get("status") == "False" else self._store.now()
        others = [item for item in conditions if item.get("type") != "PodScheduled"]
        patch = {"status": {"conditions": [*others, {**condition, "lastTransitionTime": since}]}}
        try:
            self._store.patch("pods", name_of(pod), patch, namespace_of(pod), subresource="status")
        except StatusError as exc:
            log.info("pod %s/%s could not be marked pending: %s", namespace_of(pod), name_of(pod), exc)
        events.record(self._store, NAME, pod, "FailedScheduling", refusal.message, warning=True)


def _is_ours(pod: Object) -> bool:
    spec, phase = pod.get("spec") or {}, (pod.get("status") or {}).get("phase")
    return not spec.get("nodeName") and spec.get("schedulerName", NAME) == NAME and phase in (None, "Pending")


def _names(pod: Object) -> set[str]:
    """Return the claims and templates that a pod names."""
    entries = pod["spec"].get("resourceClaims") or ()
    return {name for entry in entries for field, name in entry.items() if field != "name"}


def _same_wishes(old: Object, new: Object) -> bool:
    if metadata(old)["uid"] != metadata(new)["uid"] or metadata(new).get("deletionTimestamp"):
        return False
    statuses = [(pod.get("status") or {}).get("resourceClaimStatuses") for pod in (old, new)]
    return bool(old["spec"] == new["spec"] and statuses[0] == statuses[1])


def _rank(pod: Object) -> tuple[int, str, str, str]:
    created = metadata(pod).get("creationTimestamp") or ""
    return -int(pod["spec"].get("priority") or 0), created, namespace_of(pod), name_of(pod)
