"""All extended resources of a node: which there are, from Snapshot and config, and the life of each one's service.

A resource that has nothing to offer any more stays registered with an empty list, so that the kubelet counts none,
rather than the last ones for ever.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from driver.cdi.extras import IMEX
from driver.cdi.spec import NO_EDITS
from driver.cdi.static import StaticSpec, qualified
from driver.deviceplugin.links import Links
from driver.deviceplugin.prefer import Preference
from driver.deviceplugin.resources import SEPARATOR, Offer, Resource, offer
from driver.errors import DriverError, ServeError
from driver.kubelet.calls import CallInterceptor, CallObserver
from driver.kubelet.device_plugin.mps import specs
from driver.kubelet.device_plugin.registrar import Registrar
from driver.kubelet.device_plugin.service import CDI_STRATEGIES, Observer, ResourceService, State
from driver.kubelet.server import UnixServer
from driver.kubelet.sockets import Peer, probe
from driver.model import names
from driver.model.device import FullGpu, MigDevice
from driver.model.ownership import Owner

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from driver.cdi.extras import Extras
    from driver.cdi.spec import ContainerEdits
    from driver.config.device_plugin import PluginConfig
    from driver.kubelet.device_plugin.mps import MpsReplicas
    from driver.model.device import Device, Gpu
    from driver.model.snapshot import Snapshot
    from driver.teller import Teller

log = logging.getLogger(__name__)

_AGAIN = 10.0  # seconds between tries to serve a socket that can't be served now
_DAEMONS_AGAIN = 2.0  # seconds between looks whether an MPS daemon can be stopped, or started
_FILES_AGAIN = 5.0  # seconds between tries to write the CDI file


class PluginObserver(CallObserver, Observer, Protocol):
    """Who counts what happens here."""

    def resource_registered(self, resource: str, registered: bool) -> None:
        """Note whether the kubelet knows a resource."""
        ...

    def resource_offered(self, resource: str, *, healthy: int, unhealthy: int) -> None:
        """Note how many devices a resource has."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginPaths:
    """The kubelet's directory of device plugins, and the pod UID that makes this instance's names its own."""

    directory: Path
    pod_uid: str = ""

    def socket(self, endpoint: str) -> Path:
        """Return a resource's socket.

        :raises ServeError: its path is too long for a socket.
        """
        own = f"-{hashlib.sha256(self.pod_uid.encode()).hexdigest()[:8]}" if self.pod_uid else ""
        path = self.directory / f"{endpoint}{own}.sock"
        if len(bytes(path)) > names.UNIX_PATH_MAX:
            raise ServeError(f"socket path {path} is longer than {names.UNIX_PATH_MAX} bytes: use a shorter name")
        return path

    def plain_socket(self, endpoint: str) -> Path:
        """Return where NVIDIA's device plugin, or an instance without a pod UID, serves that resource."""
        return self.directory / f"{endpoint}.sock"


class DevicePlugins:
    """Serves what `publish` and `configure` say. Both only note it; `run` does the work once it has both."""

    def __init__(
        self,
        paths: PluginPaths,
        files: StaticSpec,
        observer: PluginObserver,
        tell: Teller,
        mps: MpsReplicas | None = None,
        extras: Extras | None = None,
    ) -> None:
        self._paths = paths
        self._files = files
        self._observer = observer
        self._mps = mps
        self._extras = extras
        self._tell = tell
        self._config: PluginConfig | None = None
        self._snapshot: Snapshot | None = None
        self._wanted = asyncio.Event()
        self._served: dict[str, _Served] = {}
        self._tasks: asyncio.TaskGroup | None = None
        self._told: set[str] = set()
        self._has_file = False
        self._timer: asyncio.TimerHandle | None = None

    def publish(self, snapshot: Snapshot) -> None:
        """Offer what this Snapshot has."""
        self._snapshot = snapshot
        self._wanted.set()

    def configure(self, config: PluginConfig) -> None:
        """Offer it as this config says."""
        self._config = config
        self._wanted.set()

    def look_again(self) -> None:
        """Look whether all is as it shall be (an MPS daemon has died)."""
        self._wanted.set()

    async def run(self) -> None:
        """Serve until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            while True:
                await self._wanted.wait()
                self._wanted.clear()
                if self._snapshot is not None and self._config is not None:
                    await self._apply(self._snapshot, self._config)

    async def stop(self, grace: float) -> None:
        """Leave the kubelet: it sees the lists end."""
        if self._timer is not None:
            self._timer.cancel()
        for one in self._served.values():
            one.service.close()
        await asyncio.gather(*(one.server.stop(grace) for one in self._served.values()))

    def missing(self) -> str:
        """Return what is missing for this to be of use to the kubelet, or nothing."""
        return "; ".join(f"{name}: {one.missing()}" for name, one in sorted(self._served.items()) if one.missing())

    async def _apply(self, snapshot: Snapshot, config: PluginConfig) -> None:
        found = offer(snapshot, config, mps=self._mps is not None)
        self._remark(found)
        found = await self._keep_daemons(found)
        listed = {device.uuid for resource in found.resources.values() for device in resource.devices}
        known = listed <= self._files.devices.keys()
        if known:  # health must not wait for files
            self._offer(snapshot, config, found)
        await self._keep_files(snapshot)
        ready = self._ready(found, config)
        if not known or ready is not found:
            self._offer(snapshot, config, ready)

    def _ready(self, found: Offer, config: PluginConfig) -> Offer:
        """Mark what containers can't be given yet as unhealthy: a pod whose Allocate is refused fails for good."""
        if CDI_STRATEGIES.isdisjoint(config.flags.device_list_strategy):
            return found
        files = self._files
        absent = {
            one.uuid: files.left_out.get(one.uuid) or files.error or "it has no CDI entry yet"
            for resource in found.resources.values()
            for one in resource.devices
            if one.uuid not in files.devices
        }
        return replace(found, resources=_marked(found.resources, absent)) if absent else found

    def _offer(self, snapshot: Snapshot, config: PluginConfig, found: Offer) -> None:
        links = Links(snapshot.gpus)
        gone = {name: Resource(name=name) for name in self._served if name not in found.resources}
        for name, resource in {**found.resources, **gone}.items():
            state = State(
                resource=resource,
                config=config,
                preference=Preference(resource.devices, links, config.flags.shared_devices_allocation_policy),
                why_not=self._why_not,
                client_edits=self._mps.edits if self._mps is not None else lambda _: None,
                extras=self._beside_gpus,
            )
            unhealthy = sum(bool(one.unhealthy) for one in resource.devices)
            self._observer.resource_offered(name, healthy=len(resource.devices) - unhealthy, unhealthy=unhealthy)
            if name in self._served:
                self._served[name].service.update(state)
            elif self._tasks is not None:
                self._start(name, state)

    def _start(self, name: str, state: State) -> None:
        try:
            served = _Served(self._paths, state, self._files, self._observer, self._tell)
        except ServeError as exc:
            self._say("DevicePluginNotServed", f"{name}: {exc}")
            return
        self._served[name] = served
        if self._tasks is not None:
            self._tasks.create_task(served.run(), name=f"device plugin {name}")

    def _why_not(self, one: str) -> str:
        """Say, by the newest Snapshot, why an id may not be given away; nothing if it may."""
        return _why_not(one, self._snapshot) if self._snapshot is not None else "is not known yet"

    def _beside_gpus(self, config: PluginConfig) -> ContainerEdits:
        wanted = config.extras
        if self._extras is None or not wanted:
            return NO_EDITS
        channels = config.imex_channels if IMEX in wanted else ()
        return self._extras.find(wanted - {IMEX}, channels, required=config.imex_required)

    async def _keep_daemons(self, found: Offer) -> Offer:
        """Have the MPS daemons that the replicas need; those of a GPU without one are unhealthy."""
        if self._mps is None:
            return found
        if await self._mps.keep(specs(found.resources.values())):
            self._look_in(_DAEMONS_AGAIN)
        served = {
            one.uuid
            for resource in found.resources.values()
            for one in resource.devices
            if resource.sharing == "mps" and one.replicas > 1
        }
        errors = {uuid: why for uuid, why in self._mps.errors.items() if uuid in served}
        return replace(found, resources=_marked(found.resources, errors)) if errors else found

    async def _keep_files(self, snapshot: Snapshot) -> None:
        """Keep the CDI file current; on a thread, as it looks through the driver's files."""
        devices = dict(_devices(snapshot))
        before = self._files.error
        try:
            if devices:
                await asyncio.to_thread(self._files.refresh, devices)
                self._has_file = True
                if self._files.left_out:
                    self._look_in(_FILES_AGAIN)
            elif self._has_file:
                self._files.remove()
                self._has_file = False
        except DriverError as exc:
            if str(exc) != before:
                self._say("DevicePluginCDI", str(exc))
            self._look_in(_FILES_AGAIN)

    def _look_in(self, seconds: float) -> None:
        """Look again after a while, once, whoever asks."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(seconds, self._wanted.set)

    def _remark(self, found: Offer) -> None:
        for problem in found.problems:
            if problem not in self._told:
                self._say("DevicePluginProblem", problem)
        self._told = set(found.problems)

    def _say(self, reason: str, message: str) -> None:
        log.warning("%s: %s", reason, message)
        self._tell.emit(reason, message, warning=True)


class _Served:
    """One resource: its service, its socket, its registration."""

    def __init__(
        self, paths: PluginPaths, state: State, files: StaticSpec, observer: PluginObserver, tell: Teller
    ) -> None:
        self.name = state.resource.name
        self._endpoint = state.resource.endpoint
        self._paths = paths
        self._observer = observer
        self._tell = tell
        self._error = ""
        self.service = ResourceService(state, files, observer, qualified)
        self.server = UnixServer(
            paths.socket(self._endpoint),
            self.service.add_to,
            interceptors=(CallInterceptor(observer),),
            take_over=bool(paths.pod_uid),
        )
        self.registrar = Registrar(
            self.server.path,
            self.name,
            serving=self.server.serving,
            listeners=self.service.listeners,
            told=self._registered,
        )

    async def run(self) -> None:
        """Serve and register until cancelled; what stands in the way is told, and looked at again."""
        while True:
            try:
                self._refuse_peer()
                self._error = ""
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(self.server.run())
                    tasks.create_task(self.registrar.run())
            except (ServeError, ExceptionGroup) as exc:
                self._failed(exc)
            await asyncio.sleep(_AGAIN)

    def missing(self) -> str:
        """Return what is missing, or nothing."""
        return self._error or self.registrar.error

    def _refuse_peer(self) -> None:
        """Never offer a resource that another device plugin offers on this node (K6)."""
        plain = self._paths.plain_socket(self._endpoint)
        if plain != self.server.path and probe(plain) is Peer.LIVE:
            raise ServeError(f"another device plugin serves {plain}: stop it first")

    def _failed(self, error: Exception) -> None:
        if isinstance(error, ExceptionGroup):
            served, other = error.split(ServeError)
            if other is not None:
                raise other
            error = served.exceptions[0] if served is not None else error
        if str(error) != self._error:
            self._error = str(error)
            log.warning("%s can't be served: %s", self.name, error)
            self._tell.emit("DevicePluginNotServed", f"{self.name}: {error}", warning=True)

    def _registered(self, error: str) -> None:
        self._observer.resource_registered(self.name, not error)
        if error:
            log.warning("%s is not registered: %s", self.name, error)
            self._tell.emit("DevicePluginNotRegistered", f"{self.name}: {error}", warning=True)


def _marked(resources: Mapping[str, Resource], reasons: Mapping[str, str]) -> dict[str, Resource]:
    """Return the resources with some devices, by UUID, unhealthy."""
    return {
        name: replace(
            resource,
            devices=tuple(
                replace(one, unhealthy=one.unhealthy or reasons[one.uuid]) if one.uuid in reasons else one
                for one in resource.devices
            ),
        )
        for name, resource in resources.items()
    }


def _devices(snapshot: Snapshot) -> Iterable[tuple[str, Device]]:
    """Return what containers may have by the device-plugin API, draining GPUs included: pods restart containers."""
    for gpu in snapshot.gpus:
        if gpu.uuid not in snapshot.ownership:
            continue
        yield gpu.uuid, FullGpu(gpu=gpu)
        for instance in gpu.mig.instances if gpu.mig is not None else ():
            yield instance.uuid, MigDevice(gpu=gpu, instance=instance)


def _why_not(one: str, snapshot: Snapshot) -> str:
    """Say why an id may not be given away; nothing if its GPU is there, well, and the device-plugin API's."""
    uuid = one.partition(SEPARATOR)[0]
    gpu = next((gpu for gpu in snapshot.gpus if uuid == gpu.uuid or uuid in _instances(gpu)), None)
    if gpu is None:
        return "is not on this node (any more)"
    ownership = snapshot.ownership_of(gpu.uuid)
    if not ownership.offers(Owner.DEVICE_PLUGIN):
        to = f", and is to be {ownership.wanted}" if ownership.wanted is not ownership.owner else ""
        return f"is not offered through the device-plugin API: its GPU's owner is {ownership.owner}{to}"
    health = snapshot.health_of(gpu.uuid)
    return "" if health.healthy else f"is unhealthy: {health.reason}"


def _instances(gpu: Gpu) -> Iterable[str]:
    return (one.uuid for one in gpu.mig.instances) if gpu.mig is not None else ()
