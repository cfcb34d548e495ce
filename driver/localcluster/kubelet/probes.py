"""Startup, readiness and liveness probes of a running container."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from driver.localcluster.kubelet import lifecycle
from driver.localcluster.kubelet.command import stands_in
from driver.localcluster.kubelet.handlers import http_get, port
from driver.localcluster.kubelet.pod_state import NODE_IP

if TYPE_CHECKING:
    from collections.abc import Callable

    from driver.localcluster.apiserver.objects import Object
    from driver.localcluster.containers.process import Container
    from driver.localcluster.kubelet.pod_state import ContainerState
    from driver.localcluster.kubelet.services import NodeServices


async def supervise(
    services: NodeServices,
    pod: Callable[[], Object],
    state: ContainerState,
    container: Container,
    changed: Callable[[], None],
) -> None:
    """Set `started` and `ready` as the probes say, and stop the container when it is to be restarted."""
    spec = state.spec
    startup = spec.get("startupProbe")
    if startup is not None and not await _comes_up(services, pod, state, container, startup):
        return
    state.started = True
    readiness, liveness = spec.get("readinessProbe"), spec.get("livenessProbe")
    state.ready = readiness is None
    changed()
    async with asyncio.TaskGroup() as group:
        if readiness is not None:
            group.create_task(_follow_readiness(services, pod, state, container, readiness, changed))
        if liveness is not None:
            group.create_task(_comes_up(services, pod, state, container, liveness, forever=True))


async def _follow_readiness(
    services: NodeServices,
    pod: Callable[[], Object],
    state: ContainerState,
    container: Container,
    probe: dict[str, Any],
    changed: Callable[[], None],
) -> None:
    scale, successes, failures = services.times.grace, 0, 0
    await asyncio.sleep(probe.get("initialDelaySeconds", 0) * scale)
    while True:
        why = await _check(services, state.spec, container, probe)
        successes, failures = (0, failures + 1) if why else (successes + 1, 0)
        if why:
            services.record(pod(), "Unhealthy", f"Readiness probe failed: {why}", warning=True)
        before = state.ready
        if successes >= probe.get("successThreshold", 1):
            state.ready = True
        elif failures >= probe.get("failureThreshold", 3):
            state.ready = False
        if state.ready != before:
            changed()
        await asyncio.sleep(probe.get("periodSeconds", 10) * scale)


async def _comes_up(
    services: NodeServices,
    pod: Callable[[], Object],
    state: ContainerState,
    container: Container,
    probe: dict[str, Any],
    *,
    forever: bool = False,
) -> bool:
    """Wait for a first success, or with `forever` watch on; stop the container after too many failures in a row."""
    kind, scale, failures = ("Liveness" if forever else "Startup"), services.times.grace, 0
    await asyncio.sleep(probe.get("initialDelaySeconds", 0) * scale)
    while failures < probe.get("failureThreshold", 3):
        why = await _check(services, state.spec, container, probe)
        failures = failures + 1 if why else 0
        if why:
            services.record(pod(), "Unhealthy", f"{kind} probe failed: {why}", warning=True)
        elif not forever:
            return True
        await asyncio.sleep(probe.get("periodSeconds", 10) * scale)
    text = f"Container {state.name} failed {kind.lower()} probe, will be restarted"
    services.record(pod(), "Killing", text)
    await lifecycle.stop(services, pod(), state.spec, container, lifecycle.grace_of(services, pod(), probe))
    return False


async def _check(services: NodeServices, spec: dict[str, Any], container: Container, probe: dict[str, Any]) -> str:
    """Return why a probe failed, nothing if it passed."""
    timeout = float(probe.get("timeoutSeconds", 1))
    if "exec" in probe:
        command = probe["exec"]["command"]
        code = await services.runtime.exec(container, command, timeout)
        what = f"command {' '.join(command)!r}"
        return f"{what} timed out after {timeout:g}s" if code < 0 else f"{what} exited with {code}" if code else ""
    if stands_in(spec):
        return ""  # the server that would answer is in the image
    try:
        async with asyncio.timeout(timeout):
            return await _asked(spec, probe)
    except TimeoutError:
        return f"no answer within {timeout:g}s"
    except OSError as exc:
        return str(exc)


async def _asked(spec: dict[str, Any], probe: dict[str, Any]) -> str:
    if "httpGet" in probe:
        return await http_get(spec, probe["httpGet"])
    if "tcpSocket" in probe:
        host = probe["tcpSocket"].get("host") or NODE_IP
        _, writer = await asyncio.open_connection(host, port(spec, probe["tcpSocket"]["port"]))
        writer.close()
    return ""
