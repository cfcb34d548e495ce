"""Lifecycle hooks, and how a container is stopped: its `preStop` hook first, within the same grace.

Source: https://kubernetes.io/docs/concepts/containers/container-lifecycle-hooks/. A hook runs at least once, its output
goes nowhere, and an event tells of its failure.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from driver.localcluster.kubelet.command import stands_in
from driver.localcluster.kubelet.handlers import http_get

if TYPE_CHECKING:
    from driver.localcluster.apiserver.objects import Object
    from driver.localcluster.containers.process import Container
    from driver.localcluster.kubelet.services import NodeServices

LEAST = 2.0
"""Seconds that a container gets to end by itself, even if others or its hook took all the time there was."""


async def after_start(services: NodeServices, pod: Object, spec: dict[str, Any], container: Container) -> None:
    """Run a container's `postStart` hook; if that fails the container is stopped."""
    handler = (spec.get("lifecycle") or {}).get("postStart")
    if not handler:
        return
    why = await _run(services, spec, container, handler, None)
    if why:
        services.record(pod, "FailedPostStartHook", f"PostStartHook failed: {why}", warning=True)
        await stop(services, pod, spec, container, grace_of(services, pod))


async def stop(services: NodeServices, pod: Object, spec: dict[str, Any], container: Container, grace: float) -> None:
    """Run a container's `preStop` hook and stop it, in `grace` real seconds together; 0 leaves the hook out."""
    handler = (spec.get("lifecycle") or {}).get("preStop")
    if handler and grace > 0 and container.running:
        loop = asyncio.get_running_loop()
        began = loop.time()
        why = await _run(services, spec, container, handler, grace)
        if why:
            services.record(pod, "FailedPreStopHook", f"PreStopHook failed: {why}", warning=True)
        grace = max(grace - (loop.time() - began), LEAST * services.times.grace)
    await container.stop(grace)


def grace_of(services: NodeServices, pod: Object, probe: dict[str, Any] | None = None) -> float:
    """Return the grace period of a pod, or of a probe that has its own, in real seconds."""
    seconds = (probe or {}).get("terminationGracePeriodSeconds")
    if seconds is None:
        seconds = pod["spec"].get("terminationGracePeriodSeconds", 30)
    return float(seconds if seconds >= 0 else 1) * services.times.grace


async def _run(
    services: NodeServices,
    spec: dict[str, Any],
    container: Container,
    handler: dict[str, Any],
    timeout: float | None,  # noqa: ASYNC109 (a hook that takes too long has failed)
) -> str:
    """Run a hook, no longer than its container; return why it failed, nothing if it did not."""
    hook = asyncio.create_task(_handled(services, spec, container, handler))
    end = asyncio.create_task(container.wait())
    try:
        await asyncio.wait({hook, end}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        if hook.done():
            return hook.result()
        return "" if end.done() else "it did not end in time"
    finally:
        for task in (hook, end):
            task.cancel()
        await asyncio.gather(hook, end, return_exceptions=True)


async def _handled(services: NodeServices, spec: dict[str, Any], container: Container, handler: dict[str, Any]) -> str:
    if "sleep" in handler:
        await asyncio.sleep(handler["sleep"].get("seconds", 0) * services.times.grace)
        return ""
    if "exec" in handler:
        command = handler["exec"].get("command") or []
        code = await services.runtime.exec(container, command, None)
        return f"command {' '.join(command)!r} exited with {code}" if code else ""
    if "httpGet" in handler:
        return await _asked(spec, handler["httpGet"])
    return f"no hook of this kind: {', '.join(handler)}"


async def _asked(spec: dict[str, Any], get: dict[str, Any]) -> str:
    if stands_in(spec):
        return ""  # the server that would answer is in the image
    try:
        return await http_get(spec, get)
    except OSError as exc:
        return str(exc)
