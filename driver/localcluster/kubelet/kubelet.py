"""A node of the embedded cluster: the kubelet over real sockets, with the container runtime beside it.

The runtime, the files and the containers outlive `restart()`, as they outlive a real kubelet's process; everything
else is made anew. Semantics as recorded from a real kubelet 1.36 (`recordings: kubelet-calls, device-plugin-calls`).
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from driver.errors import DriverError
from driver.localcluster.apiserver.errors import StatusError, bad_request
from driver.localcluster.apiserver.objects import metadata, name_of, namespace_of
from driver.localcluster.containers.runtime import ContainerRuntime
from driver.localcluster.kubelet.claim_cache import ClaimCache
from driver.localcluster.kubelet.claims import ClaimManager
from driver.localcluster.kubelet.device_grants import Grants
from driver.localcluster.kubelet.device_manager import DeviceManager
from driver.localcluster.kubelet.dra_plugins import DraPlugins
from driver.localcluster.kubelet.health import HealthBoard
from driver.localcluster.kubelet.node_object import NodeObject
from driver.localcluster.kubelet.plugin_watcher import PluginWatcher
from driver.localcluster.kubelet.pod_logs import Part, read_log
from driver.localcluster.kubelet.pod_resources import PodResources
from driver.localcluster.kubelet.pod_worker import PodWorker
from driver.localcluster.kubelet.registration import Registrar
from driver.localcluster.kubelet.services import NodeServices
from driver.localcluster.kubelet.times import Times

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from driver.localcluster.apiserver.execution import ExecRequest
    from driver.localcluster.apiserver.log_request import LogRequest
    from driver.localcluster.apiserver.objects import Object
    from driver.localcluster.apiserver.store import Store
    from driver.localcluster.containers.execution import Execution
    from driver.localcluster.kubelet.paths import NodePaths

_log = logging.getLogger(__name__)


class Kubelet:
    """One node's kubelet. Start it, stop it (its containers end), or restart it (they don't)."""

    def __init__(
        self,
        name: str,
        store: Store,
        paths: NodePaths,
        *,
        times: Times | None = None,
        runtime: ContainerRuntime | None = None,
    ) -> None:
        self.name = name
        self.paths = paths
        self.runtime = runtime or ContainerRuntime(paths.containers, cdi_dirs=paths.cdi_dirs)
        self.node = NodeObject(store, name)
        self._store = store
        self._times = times or Times()
        self._process: _Process | None = None

    @property
    def claims(self) -> ClaimManager:
        """The claims of the present process."""
        return self._running.claims

    @property
    def plugins(self) -> DraPlugins:
        """The DRA plugins of the present process."""
        return self._running.plugins

    @property
    def health(self) -> HealthBoard:
        """What plugins say of their devices, in the present process."""
        return self._running.health

    @property
    def _running(self) -> _Process:
        assert self._process is not None, "the kubelet does not run"  # noqa: S101 (a programming error)
        return self._process

    async def start(self) -> None:
        """Start; when it returns the node is Ready and its sockets are served."""
        self.paths.make()
        self.node.register()
        self._process = _Process(self, self._store, self._times)
        await self._process.start()

    async def kill(self) -> None:
        """End the kubelet's process; containers run on, the API server learns nothing."""
        if self._process is not None:
            await self._process.aclose()
            self._process = None

    async def restart(self) -> None:
        """End the kubelet's process and start it again."""
        await self.kill()
        await self.start()

    def publish(self) -> None:
        """Write the status of the node and of its pods, as far as it changed."""
        self._running.publish()

    async def stop(self) -> None:
        """End the kubelet and all containers of the node."""
        await self.kill()
        await self.runtime.aclose()

    def log_path(self, pod_uid: str, container: str, *, previous: bool = False) -> Path | None:
        """Return where a container's present (or previous) start writes its output; None if it has not started."""
        found = self.paths.pods.glob(f"{pod_uid}/logs/{container}-*.log")
        mine = [path for path in found if path.stem.rpartition("-")[0] == container]  # not another's, called c-x
        logs = sorted(mine, key=lambda path: int(path.stem.rpartition("-")[2]))
        wanted = logs[:-1] if previous else logs
        return wanted[-1] if wanted else None

    async def log(self, request: LogRequest) -> AsyncIterator[bytes]:
        """Yield a container's log.

        :raises StatusError: 400: it has not started (or not twice, if the previous one is asked for).
        """
        uid = str(metadata(request.pod)["uid"])
        previous = request.previous and not _waits_to_restart(request.pod, request.container)
        path = self.log_path(uid, request.container, previous=previous)
        if path is None:
            what = "previous terminated container" if request.previous else "container"
            state = "not found" if request.previous else "is waiting to start: ContainerCreating"
            raise bad_request(f'{what} "{request.container}" in pod "{name_of(request.pod)}" {state}')
        follow = await self.runtime.writer(path) if request.follow else None
        part = Part(
            tail=request.tail_lines, since=request.since, limit=request.limit_bytes, timestamps=request.timestamps
        )
        async for chunk in read_log(path, part, container=follow):
            yield chunk

    async def exec(self, request: ExecRequest) -> Execution:
        """Run a command in a container.

        :raises StatusError: 400: the container does not run.
        """
        containers = self.runtime.of_pod(str(metadata(request.pod)["uid"]))
        found = [item for item in containers if item.request.name == request.container and item.running]
        if not found:
            raise bad_request(f'container not found ("{request.container}"): it does not run')
        return await self.runtime.attach(found[-1], request.command, stdin=request.stdin, tty=request.tty)


def _waits_to_restart(pod: Object, container: str) -> bool:
    """Say whether a container has ended and not been started again: its last start is the previous one, too."""
    status = pod.get("status") or {}
    found = [*status.get("containerStatuses", ()), *status.get("initContainerStatuses", ())]
    mine: dict[str, Any] = next((item for item in found if item["name"] == container), {})
    return "waiting" in mine.get("state", {}) and "terminated" in mine.get("lastState", {})


class _Process:
    """What ends and begins with the kubelet's process."""

    def __init__(self, kubelet: Kubelet, store: Store, times: Times) -> None:
        paths, node = kubelet.paths, kubelet.node
        self._name, self._store, self._node = kubelet.name, store, node
        self._workers: dict[str, PodWorker] = {}
        self._tasks: dict[str, asyncio.Task[Any]] = {}
        self._times = times
        self.health = HealthBoard(times, _health_services(store), self._publish_pods)
        self.plugins = DraPlugins(times, self.health, self._wipe)
        cache = ClaimCache(paths.claims_checkpoint)
        self.claims = ClaimManager(cache, self.plugins, lambda ns, name: store.find("resourceclaims", name, ns))
        self._devices = DeviceManager(paths.device_plugins, Grants(paths.devices_checkpoint), times, self._publish_node)
        self._pod_resources = PodResources(paths.pod_resources, self.claims, self._devices, self._active_pods)
        self._watcher = PluginWatcher(paths.plugins_registry, Registrar({"DRAPlugin": self.plugins}, times), times)
        self._services = NodeServices(
            node=kubelet.name, store=store, runtime=kubelet.runtime, claims=self.claims, devices=self._devices,
            health=self.health, paths=paths, times=times,
        )  # fmt: skip

    async def start(self) -> None:
        self.claims.cache.load()
        self._wipe("")
        await self._devices.start()
        await self._pod_resources.start()
        watching = asyncio.Event()
        self._spawn("plugins", self._watcher.run(watching))
        await watching.wait()
        self._publish_node()
        listed = asyncio.Event()
        self._spawn("pods", self._follow_pods(listed))
        await listed.wait()

    async def aclose(self) -> None:
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        await self._pod_resources.aclose()
        await self._devices.aclose()
        await self.plugins.aclose()
        await self.health.aclose()

    def _spawn(self, name: str, work: Any) -> None:
        task = self._tasks[name] = asyncio.create_task(work, name=f"{self._name}: {name}")
        task.add_done_callback(lambda done: self._ended(name, done))

    def _ended(self, name: str, task: asyncio.Task[Any]) -> None:
        if self._tasks.get(name) is task:
            del self._tasks[name]
        if not task.cancelled() and task.exception() is not None:
            _log.error("%s: %s failed", self._name, name, exc_info=task.exception())

    # --- pods --------------------------------------------------------------------------------------------------------

    async def _follow_pods(self, listed: asyncio.Event) -> None:
        """Give every pod of this node a worker; list anew when the watch has lost track."""
        selector = f"spec.nodeName={self._name}"
        while True:
            present = self._store.list("pods", field_selector=selector)
            since = self._store.revision
            self._forget_others({metadata(pod)["uid"] for pod in present})
            for pod in present:
                self._take(pod)
            listed.set()
            try:
                async for type_, pod in self._store.watch("pods", since=since, field_selector=selector):
                    if type_ == "DELETED":
                        self._gone(metadata(pod)["uid"], pod)
                    else:
                        self._take(pod)
            except StatusError as exc:
                _log.info("%s: pods are listed anew: %s", self._name, exc)
            else:
                return

    def _take(self, pod: Object) -> None:
        uid = metadata(pod)["uid"]
        worker = self._workers.get(uid)
        if worker is not None:
            worker.update(pod)
            return
        now = self._store.find("pods", name_of(pod), namespace_of(pod))
        if now is None or metadata(now)["uid"] != uid:
            return  # old news: its worker has seen it to its end
        worker = self._workers[uid] = PodWorker(self._services, pod)
        self._spawn(uid, self._work(worker))

    async def _work(self, worker: PodWorker) -> None:
        try:
            await worker.run()
        finally:
            self._workers.pop(worker.uid, None)

    def _gone(self, uid: str, pod: Object | None = None) -> None:
        worker = self._workers.get(uid)
        if worker is not None:
            worker.terminate(pod)

    def _forget_others(self, present: set[str]) -> None:
        """Clean up after pods that vanished while nobody watched."""
        for uid in set(self._workers) - present:
            self._gone(uid)
        known = {container.request.pod_uid for container in self._services.runtime.containers.values()}
        known |= {uid for claim in self.claims.cache for uid in claim.pods}
        known |= {grant.pod for grant in self._devices.all_grants()}
        for uid in known - present - set(self._workers):
            self._spawn(uid, self._clean_up(uid))

    async def _clean_up(self, uid: str) -> None:
        runtime = self._services.runtime
        for container in runtime.of_pod(uid):
            await container.stop(0)
            runtime.remove(container)
        while True:
            try:
                await self.claims.unprepare(uid)
                break
            except DriverError as exc:
                _log.warning("%s: unprepare of a pod that is gone: %s", self._name, exc)
            await asyncio.sleep(self._times.unprepare_retry)
        self._devices.release(uid)

    def _active_pods(self) -> Iterator[Object]:
        return (worker.pod for worker in list(self._workers.values()) if worker.active)

    def publish(self) -> None:
        self._publish_node()
        self._publish_pods()

    # --- what is written to the API server ---------------------------------------------------------------------------

    def _publish_pods(self) -> None:
        for worker in list(self._workers.values()):
            worker.publish()

    def _publish_node(self) -> None:
        try:
            self._node.update(self._devices.resources(), ready=True)
        except DriverError as exc:
            _log.warning("status of node %s: %s", self._name, exc)

    def _wipe(self, driver: str) -> None:
        """Delete the ResourceSlices of one driver, or of all, on this node."""
        selector = f"spec.nodeName={self._name}" + (f",spec.driver={driver}" if driver else "")
        slices = self._store.list("resourceslices", field_selector=selector)
        for item in slices:
            try:
                self._store.delete("resourceslices", name_of(item))
            except DriverError as exc:
                _log.warning("%s: slice %s: %s", self._name, name_of(item), exc)
        if slices:
            _log.info("%s: %d slices of %s deleted", self._name, len(slices), driver or "all drivers")


def _health_services(store: Store) -> tuple[str, ...]:
    """Return the health services that a kubelet of this version knows."""
    if not store.features.enabled("ResourceHealthStatus"):
        return ()
    older = ("v1alpha1.DRAResourceHealth",)
    return ("v1.DRAResourceHealth", *older) if store.features.minor >= 37 else older
