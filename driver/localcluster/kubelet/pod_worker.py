"""One pod on this node, from its admission until nothing of it is left.

Admission (device plugins' devices), volumes, claims, init containers one after another, the other containers side by
side; then the containers are stopped, the claims released, and a pod that is to be deleted is deleted.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from driver.errors import DriverError
from driver.localcluster.apiserver.objects import clone, metadata, name_of, namespace_of
from driver.localcluster.kubelet import lifecycle, pod_state
from driver.localcluster.kubelet.admission import AdmissionError, admit
from driver.localcluster.kubelet.container_loop import ContainerLoop
from driver.localcluster.kubelet.resource_status import allocated_resources
from driver.localcluster.kubelet.volumes import set_up
from driver.waiting import happens

if TYPE_CHECKING:
    from pathlib import Path

    from driver.localcluster.apiserver.objects import Object
    from driver.localcluster.containers.process import Container
    from driver.localcluster.kubelet.services import NodeServices

_log = logging.getLogger(__name__)

_TOO_LONG = ("DeadlineExceeded", "Pod was active on the node longer than the specified deadline")


class PodWorker:
    """Works on one pod, known by its UID. `run` once; `update` and `terminate` tell it what the API server says."""

    def __init__(self, services: NodeServices, pod: Object) -> None:
        self.pod = pod
        self.uid = str(metadata(pod)["uid"])
        self._services = services
        self._states = pod_state.new_states(pod)
        self._stop = asyncio.Event()
        self._released = False
        self._rejected: tuple[str, str] | None = None
        self._failure: tuple[str, str] | None = None
        self._updated = asyncio.Event()
        self._loops: list[asyncio.Task[None]] = []
        self._waiters: list[asyncio.Event] = []

    @property
    def active(self) -> bool:
        """Say whether the pod's containers may still run."""
        return pod_state.phase(self._states) not in pod_state.FINAL and self._rejected is None

    def update(self, pod: Object) -> None:
        """Take a newer version of the pod."""
        self.pod = pod
        self._updated.set()
        if metadata(pod).get("deletionTimestamp"):
            self._stop.set()

    def terminate(self, pod: Object | None = None) -> None:
        """Stop the pod: its object is gone from the API server; `pod` is what it was last."""
        self.pod = pod or self.pod
        self._updated.set()
        self._stop.set()

    async def run(self) -> None:
        """Work until nothing is left of the pod; cancelled, its containers run on (the kubelet restarts)."""
        self.update(self.pod)
        if not self._stop.is_set():
            await self._live_until_stopped()
        await self._end()
        await self._stop.wait()
        self._remove()

    async def _live_until_stopped(self) -> None:
        life, stop = asyncio.create_task(self._live()), asyncio.create_task(self._stop.wait())
        late = asyncio.create_task(self._deadline())
        try:
            await asyncio.wait({life, stop, late}, return_when=asyncio.FIRST_COMPLETED)
            if life.done() and (error := life.exception()):
                _log.error("pod %s can't be worked on any more", name_of(self.pod), exc_info=error)
            if late.done() and not life.done():
                self._failure = _TOO_LONG
                self._event(*_TOO_LONG)
        finally:
            for task in (life, stop, late):
                task.cancel()
            await asyncio.gather(life, stop, late, return_exceptions=True)

    async def _deadline(self) -> None:
        """Wait until the pod has been active for longer than it may; what it may can change."""
        while True:
            self._updated.clear()
            left = self._time_left()
            if left is not None and left <= 0:
                return
            await happens(self._updated, left)

    def _time_left(self) -> float | None:
        """Return the real seconds of its `activeDeadlineSeconds` that are left; None: no end, or not begun."""
        seconds, begun = self.pod["spec"].get("activeDeadlineSeconds"), (self.pod.get("status") or {}).get("startTime")
        if seconds is None or begun is None:
            return None
        active = datetime.now(UTC) - datetime.fromisoformat(begun)
        return float(seconds) * self._services.times.grace - active.total_seconds()

    def publish(self) -> None:
        """Write the pod's status, if it changed and the pod is still there."""
        store = self._services.store
        found = store.find("pods", name_of(self.pod), namespace_of(self.pod))
        if found is None or metadata(found)["uid"] != self.uid:
            return
        new = clone(found)
        if self._rejected is not None:
            reason, message = self._rejected
            new["status"] = {**(found.get("status") or {}), "phase": "Failed", "reason": reason, "message": message}
        else:
            health = allocated_resources(self._services, found)
            new["status"] = pod_state.status(found, self._states, health, store.now(), released=self._released)
            if self._failure is not None:
                reason, message = self._failure
                new["status"] |= {"reason": reason, "message": message} | (
                    {"phase": "Failed"} if self._released else {}
                )
        try:
            store.update_status("pods", new)
        except DriverError as exc:
            _log.warning("status of pod %s: %s", name_of(self.pod), exc)

    async def _live(self) -> None:
        """Bring the pod up and see it through; returns when all its containers have ended for good."""
        if (self.pod.get("status") or {}).get("phase") in pod_state.FINAL:
            self._mark_finished()
            return
        adopted = self._adopt()
        try:
            await admit(self._services, self.pod)
        except AdmissionError as exc:
            self._rejected = (exc.reason, str(exc))
            self._event(exc.reason, str(exc), warning=True)
            self.publish()
            return
        self.publish()
        volumes = await self._until_ready("FailedMount", self._volumes)
        if not adopted:
            await self._until_ready("FailedPrepareDynamicResources", self._prepare)
        try:
            await self._run_containers(volumes, adopted)
        finally:
            for task in self._loops:
                task.cancel()
            await asyncio.gather(*self._loops, return_exceptions=True)

    def _adopt(self) -> dict[str, Container]:
        """Take over what ran before the kubelet's restart: the last start of each container."""
        containers = {container.request.name: container for container in self._services.runtime.of_pod(self.uid)}
        for name, container in containers.items():
            self._states[name].restarts = container.request.attempt
        return containers

    def _mark_finished(self) -> None:
        """Believe the status of a pod that had ended before this kubelet started."""
        status = self.pod["status"]
        if "reason" in status:
            self._failure = (status["reason"], status.get("message", ""))
        for item in [*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ())]:
            state = self._states.get(item["name"])
            if state is not None and "terminated" in item.get("state", {}):
                state.terminated, state.done = item["state"]["terminated"], True

    async def _volumes(self) -> dict[str, Path]:
        directory = self._services.paths.pods / self.uid / "volumes"
        return set_up(self.pod, directory, self._services.finder(self.pod))

    async def _prepare(self) -> None:
        try:
            await self._services.claims.prepare(self.pod)
        except DriverError as exc:
            raise type(exc)(f"Failed to prepare dynamic resources: prepare dynamic resources: {exc}") from exc

    async def _until_ready(self, reason: str, action: Any) -> Any:
        """Do what the pod needs, again and again at the kubelet's leisure."""
        while True:
            try:
                return await action()
            except DriverError as exc:
                _log.warning("pod %s: %s", name_of(self.pod), exc)
                self._event(reason, str(exc), warning=True)
                for state in self._states.values():
                    state.waiting = (state.waiting[0], str(exc))
                self.publish()
            await asyncio.sleep(self._services.random.uniform(*self._services.times.sync_retry))

    async def _run_containers(self, volumes: dict[str, Path], adopted: dict[str, Container]) -> None:
        for state in self._states.values():
            state.waiting = (state.waiting[0], "")
        for state in [state for state in self._states.values() if state.role != "main"]:
            task = self._loop(state, volumes, adopted)
            if state.role == "init":
                await task
                if not state.succeeded:
                    return
            else:
                await self._until_started(state)
        main = [self._loop(state, volumes, adopted) for state in self._states.values() if state.role == "main"]
        await asyncio.gather(*main)

    def _loop(self, state: pod_state.ContainerState, volumes: dict[str, Path], adopted: dict[str, Any]) -> Any:
        loop = ContainerLoop(self._services, lambda: self.pod, state, volumes, self._changed)
        task = asyncio.create_task(loop.run(adopted.get(state.name)))
        self._loops.append(task)
        return task

    def _changed(self) -> None:
        for event in self._waiters:
            event.set()
        self.publish()

    async def _until_started(self, state: pod_state.ContainerState) -> None:
        """Wait until a sidecar has started, as the containers after it may."""
        changed = asyncio.Event()
        self._waiters.append(changed)
        while not state.started:
            changed.clear()
            await changed.wait()

    async def _end(self) -> None:
        """Stop all containers, then release the claims (again and again until it works) and the devices."""
        await self._stop_in_time()
        self.publish()
        await self._release()
        self._released = True
        self.publish()

    async def _release(self) -> None:
        while True:
            try:
                await self._services.claims.unprepare(self.uid)
                break
            except DriverError as exc:
                _log.warning("pod %s: unprepare: %s", name_of(self.pod), exc)
                self._event("FailedUnprepareDynamicResources", str(exc), warning=True)
            await asyncio.sleep(self._services.times.unprepare_retry)
        self._services.devices.release(self.uid)

    async def _stop_in_time(self) -> None:
        """Stop all containers; begin anew when somebody shortens the grace meanwhile, as a kubelet does."""
        while True:
            grace = self._grace()
            stopping = asyncio.create_task(self._stop_containers(grace))
            shorter = asyncio.create_task(self._shortened(grace))
            try:
                await asyncio.wait({stopping, shorter}, return_when=asyncio.FIRST_COMPLETED)
                if stopping.done():
                    return stopping.result()
            finally:
                for task in (stopping, shorter):
                    task.cancel()
                await asyncio.gather(stopping, shorter, return_exceptions=True)

    def _grace(self) -> float:
        """Return the grace period in real seconds."""
        given = metadata(self.pod).get("deletionGracePeriodSeconds")
        return lifecycle.grace_of(self._services, self.pod) if given is None else given * self._services.times.grace

    async def _shortened(self, grace: float) -> None:
        while self._grace() >= grace:
            self._updated.clear()
            await self._updated.wait()

    async def _stop_containers(self, grace: float) -> None:
        services, loop = self._services, asyncio.get_running_loop()
        deadline = loop.time() + grace
        known = [(container, self._states[container.request.name]) for container in services.runtime.of_pod(self.uid)]
        running = [(item, state) for item, state in known if item.running or state.current is item]
        for container, _ in running:
            self._event("Killing", f"Stopping container {container.request.name}")
        for sidecars in (False, True):
            left = max(deadline - loop.time(), min(grace, lifecycle.LEAST * services.times.grace))
            batch = [(item, state) for item, state in running if (state.role == "sidecar") is sidecars]
            await asyncio.gather(*(lifecycle.stop(services, self.pod, state.spec, item, left) for item, state in batch))
            for item, state in batch:
                state.current, state.terminated = None, pod_state.terminated(item)
                state.ready = state.started = False
                state.done = True

    def _remove(self) -> None:
        """Remove the pod's containers, files and object."""
        runtime, store = self._services.runtime, self._services.store
        for container in runtime.of_pod(self.uid):
            runtime.remove(container)
        shutil.rmtree(self._services.paths.pods / self.uid, ignore_errors=True)
        with contextlib.suppress(DriverError):  # it is gone, or another pod has its name
            store.delete("pods", name_of(self.pod), namespace_of(self.pod), uid=self.uid, grace_seconds=0)

    def _event(self, reason: str, message: str, *, warning: bool = False) -> None:
        self._services.record(self.pod, reason, message, warning=warning)
