"""Keep one container of a pod as its restart policy wants it: start it, wait, start it again, ever more slowly."""

from __future__ import annotations

import asyncio
import logging
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from driver.errors import DriverError
from driver.localcluster.apiserver.objects import metadata, name_of, namespace_of
from driver.localcluster.containers.errors import ContainerError
from driver.localcluster.containers.oci import ContainerRequest
from driver.localcluster.kubelet import lifecycle
from driver.localcluster.kubelet.command import command
from driver.localcluster.kubelet.environment import environment
from driver.localcluster.kubelet.pod_state import ContainerState, terminated
from driver.localcluster.kubelet.probes import supervise
from driver.localcluster.kubelet.volumes import mounts
from driver.model.wording import timestamp

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from driver.localcluster.apiserver.objects import Object
    from driver.localcluster.containers.process import Container
    from driver.localcluster.kubelet.services import NodeServices

_log = logging.getLogger(__name__)


class ContainerLoop:
    """Runs one container. `pod()` returns the pod as it is now, `changed()` publishes the state."""

    def __init__(
        self,
        services: NodeServices,
        pod: Callable[[], Object],
        state: ContainerState,
        volumes: dict[str, Path],
        changed: Callable[[], None],
    ) -> None:
        self._services = services
        self._pod = pod
        self._state = state
        self._volumes = volumes
        self._changed = changed
        self._failures = 0

    async def run(self, adopted: Container | None = None) -> None:
        """Run until the container has ended for good; `adopted` runs already, from before the kubelet's restart."""
        container = adopted or await self._started()
        while True:
            if container is not None:
                await self._watch(container)
            if self._is_done():
                self._state.done = True
                self._changed()
                return
            await self._back_off()
            container = await self._started()

    async def _started(self) -> Container | None:
        """Start it; None, with the state telling why, if that failed."""
        state, pod = self._state, self._pod()
        try:
            request = await self._request(pod)
            container = await self._services.runtime.start(request)
        except ContainerError as exc:
            self._failed(exc.reason, str(exc))
            return None
        except DriverError as exc:
            self._failed("RunContainerError" if "PreStart" in str(exc) else "CreateContainerError", str(exc))
            return None
        image = state.spec.get("image", "")
        self._event("Pulled", f'Container image "{image}" already present on machine')
        self._event("Created", f"Container created: {state.name}")
        self._event("Started", f"Container started: {state.name}")
        await lifecycle.after_start(self._services, pod, state.spec, container)
        return container

    async def _watch(self, container: Container) -> None:
        """Follow a running container to its end."""
        state = self._state
        state.current, state.last, state.terminated = container, state.terminated or state.last, None
        state.started = state.ready = False
        probes = asyncio.create_task(supervise(self._services, self._pod, state, container, self._changed))
        self._changed()
        try:
            await container.wait()
        finally:
            probes.cancel()
            await asyncio.gather(probes, return_exceptions=True)
        state.current, state.terminated = None, terminated(container)
        state.ready = state.started = False
        ran = datetime.now(UTC) - container.started
        self._failures = 0 if ran.total_seconds() > self._services.times.crash_forgotten else self._failures

    def _failed(self, reason: str, message: str) -> None:
        """Note a failed start: from RunContainerError on the container has existed, and ended with 128."""
        state, now = self._state, timestamp(datetime.now(UTC))
        _log.warning("container %s of pod %s: %s", state.name, name_of(self._pod()), message)
        self._event("Failed", f"Error: {message}", warning=True)
        state.waiting = (reason, message)
        if reason == "RunContainerError":
            end = {"exitCode": 128, "reason": "StartError", "message": message, "startedAt": now, "finishedAt": now}
            if self._restarts(128):
                state.last = end
            else:
                state.terminated = end
        self._changed()

    def _is_done(self) -> bool:
        end = self._state.terminated
        return end is not None and not self._restarts(end["exitCode"])

    def _restarts(self, code: int) -> bool:
        if self._state.role == "sidecar":
            return True
        policy = self._pod()["spec"].get("restartPolicy", "Always")
        if self._state.role == "init":
            return code != 0 and policy != "Never"
        return policy == "Always" or (policy == "OnFailure" and code != 0)

    async def _back_off(self) -> None:
        """Wait before the next start: not at all the first time, then ever longer; what never ran can't crash."""
        state, times = self._state, self._services.times
        if state.terminated is None and state.waiting[0] != "RunContainerError":
            await asyncio.sleep(times.crash_backoff)
            return
        delay = min(times.crash_backoff * 2 ** max(self._failures - 1, 0), times.crash_backoff_max)
        ended, first = state.terminated, self._failures == 0
        self._failures += 1
        state.restarts += 1
        if first and ended is not None:
            return
        pod = self._pod()
        where = f"container={state.name} pod={name_of(pod)}_{namespace_of(pod)}({metadata(pod)['uid']})"
        text = f"back-off {delay:.3g}s restarting failed {where}"
        state.last, state.terminated = ended or state.last, None
        state.waiting = ("CrashLoopBackOff", text)
        self._event("BackOff", f"Back-off restarting failed container {state.name} in pod {name_of(pod)}", warning=True)
        self._changed()
        await asyncio.sleep(delay)

    async def _request(self, pod: Object) -> ContainerRequest:
        services, state, spec = self._services, self._state, self._state.spec
        find = services.finder(pod)
        granted = services.devices.granted(metadata(pod)["uid"], state.name)
        await services.devices.pre_start(metadata(pod)["uid"], state.name)
        variables = environment(pod, spec, find)
        cdi = [*services.claims.cdi_devices(pod, spec), *granted.cdi]
        security = (pod["spec"].get("securityContext") or {}) | (spec.get("securityContext") or {})
        groups = [
            *(security.get("supplementalGroups") or ()),
            *([security["fsGroup"]] if "fsGroup" in security else ()),
        ]
        return ContainerRequest(
            pod_uid=metadata(pod)["uid"],
            pod_name=pod["spec"].get("hostname") or name_of(pod),
            namespace=namespace_of(pod),
            name=state.name,
            args=command(spec, variables),
            log_path=log_path(services, metadata(pod)["uid"], state.name, state.restarts),
            attempt=state.restarts,
            env=variables | granted.env,
            cwd=spec.get("workingDir") or "/",
            mounts=(*mounts(pod, spec, self._volumes, find), *granted.mounts),
            devices=granted.nodes,
            cdi_devices=tuple(dict.fromkeys(cdi)),
            annotations=granted.annotations,
            uid=security.get("runAsUser", 0),
            gid=security.get("runAsGroup", 0),
            groups=tuple(groups),
        )

    def _event(self, reason: str, message: str, *, warning: bool = False) -> None:
        self._services.record(self._pod(), reason, message, warning=warning)


def log_path(services: NodeServices, pod_uid: str, container: str, attempt: int) -> Path:
    """Return where one start of a container writes its output."""
    return services.paths.pods / pod_uid / "logs" / f"{container}-{attempt}.log"
