"""The kubelet plugin as a whole: the service's socket first, then the one that tells the kubelet about it."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from driver.kubelet.calls import CallInterceptor, CallObserver
from driver.kubelet.dra import ClaimService, DraPlugin, FailureObserver
from driver.kubelet.registration import DRA_V1, DRA_V1BETA1, Registration
from driver.kubelet.resource_health import HEALTH_V1, HEALTH_V1ALPHA1, ResourceHealth
from driver.kubelet.server import UnixServer
from driver.kubelet.sockets import registration_path, service_path
from driver.waiting import happens

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import grpc.aio

log = logging.getLogger(__name__)

_PATIENCE = 30.0  # seconds without registration before that is remarked on; a kubelet takes 3


@dataclass(frozen=True, slots=True, kw_only=True)
class KubeletPaths:
    """The kubelet's directories, and the pod UID that makes this instance's names its own (empty: plain names)."""

    plugins: Path
    registry: Path
    pod_uid: str = ""


class PluginObserver(CallObserver, FailureObserver, Protocol):
    """Who counts what happens here."""

    def registered(self, value: bool) -> None:
        """Note whether the kubelet knows us."""
        ...


class KubeletPlugin:
    """Serves the DRA calls and keeps itself registered. `warn` gets (reason, message) for an Event.

    With `health`, the kubelet is offered the stream of the devices' health, too.
    """

    def __init__(
        self,
        paths: KubeletPaths,
        claims: ClaimService,
        observer: PluginObserver,
        *,
        warn: Callable[[str, str], None],
        health: ResourceHealth | None = None,
    ) -> None:
        endpoint = service_path(paths.plugins, paths.pod_uid)
        self._observer = observer
        self._warn = warn
        self._services: list[Callable[[grpc.aio.Server], None]] = [DraPlugin(claims, observer).add_to]
        self._health = health
        versions = [DRA_V1, DRA_V1BETA1]
        if health is not None:
            self._services.append(health.add_to)
            versions += [HEALTH_V1, HEALTH_V1ALPHA1]
        self.registration = Registration(endpoint, versions, told=self._told)
        intercept = (CallInterceptor(observer),)
        own_name = bool(paths.pod_uid)
        self._service = UnixServer(
            endpoint, self._add_services, interceptors=intercept, make_directory=True, take_over=own_name
        )
        self._registrar = UnixServer(
            registration_path(paths.registry, paths.pod_uid),
            self.registration.add_to,
            interceptors=intercept,
            take_over=own_name,
        )

    @property
    def serving(self) -> asyncio.Event:
        """Set while DRA calls are served."""
        return self._service.serving

    async def run(self) -> None:
        """Serve until cancelled.

        :raises ServeError: a socket can't be served.
        """
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._service.run())
            await self._service.serving.wait()
            tasks.create_task(self._registrar.run())
            tasks.create_task(self._remark())

    async def stop(self, grace: float) -> None:
        """Leave the kubelet's registry, then let the calls under way end within `grace` seconds."""
        await self._registrar.stop(0)
        if self._health is not None:
            self._health.close()
        await self._service.stop(grace)

    def missing(self) -> str:
        """Return what is missing for this plugin to be of use to the kubelet, or nothing."""
        if not self._service.serving.is_set():
            return f"not serving {self._service.path}"
        if not self._registrar.serving.is_set():
            return f"not serving {self._registrar.path}: does the directory exist?"
        if self.registration.error:
            return f"the kubelet refused the registration: {self.registration.error}"
        return "" if self.registration.registered.is_set() else "the kubelet has not registered the driver yet"

    def _add_services(self, server: grpc.aio.Server) -> None:
        for add in self._services:
            add(server)

    def _told(self, error: str) -> None:
        self._observer.registered(not error)
        if error:
            self._warn("RegistrationFailed", f"the kubelet did not register the driver: {error}")

    async def _remark(self) -> None:
        """Say what is missing if the kubelet doesn't come (K4: its root is elsewhere)."""
        if not await happens(self.registration.registered, _PATIENCE):
            message = f"after {_PATIENCE:g} s: {self.missing()}; does this kubelet use {self._registrar.path.parent}?"
            log.warning("%s", message)
            self._warn("NotRegistered", message)
