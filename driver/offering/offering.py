"""How GPUs reach pods beside DRA: who owns which GPU, and the device-plugin API for those that are given to it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from driver.cdi.extras import Extras
from driver.cdi.static import StaticSpec
from driver.config.ownership import decode_rules, parse_rules
from driver.deviceplugin.backed import backed_gpus
from driver.kube.device_classes import DeviceClasses
from driver.kube.resources import ResourceApi
from driver.kubelet.device_plugin.mps import HOLDER
from driver.kubelet.device_plugin.plugins import DevicePlugins, PluginPaths
from driver.model.ownership import Owner, Rule, Rules
from driver.offering.handover import Handover, Sources
from driver.offering.peer_plugin import PeerPlugin
from driver.offering.plugin_config import ConfigSource, follow_yaml
from driver.root import Root
from driver.yaml_file import load_yaml, read_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from driver.cdi.edits import EditsSource
    from driver.config.device_plugin import PluginConfig
    from driver.kube.client import KubeClient
    from driver.kube.events import EventSink
    from driver.kubelet.device_plugin.mps import MpsReplicas
    from driver.metrics import Metrics
    from driver.model.device import Gpu
    from driver.model.ownership import Ownership
    from driver.monitor.monitor import Monitor
    from driver.settings import Settings

log = logging.getLogger(__name__)

_DAEMONS_AGAIN = 2.0  # seconds between looks whether an MPS daemon can be stopped
_FACTS_WAIT = 5.0  # seconds that the first decision about owners waits for DeviceClasses and config

STATUS_FILE = "ownership.json"
"""Below the driver's state directory: who has which GPU, as `gpu-dra migrate --status` shows it."""


class Offering:
    """Ownership and the device-plugin API, wired. Making it reads the rules and the config, and serves nothing.

    :raises InvalidValueError: rules or config are wrong.
    """

    def __init__(
        self,
        settings: Settings,
        client: KubeClient,
        sources: Sources,
        edits: EditsSource,
        *,
        events: EventSink,
        metrics: Metrics,
        mps: MpsReplicas | None = None,
    ) -> None:
        self._settings = settings
        self._events = events
        self._pods = sources.pods
        self._mps = mps
        self._inline = parse_rules(settings.ownership or _default(settings), settings.source("ownership"))
        self.handover = Handover(
            self._first_rules(),
            replace(sources, pods=self._holders),
            settings.state / STATUS_FILE,
            tell=events,
            observer=metrics,
        )
        self._configs = ConfigSource(settings, client, tell=events, apply=self._apply)
        self._subscribers: list[Callable[[PluginConfig], None]] = []
        self._classes = DeviceClasses(ResourceApi(client)) if _follows_classes(settings) else None
        self._peer = None if settings.serves_device_plugin else PeerPlugin(settings.device_plugins_dir)
        self._told_of: Path | None = None
        self._reown = asyncio.Event()
        self._configured = asyncio.Event()
        self._has_waited = False
        self._plugins: DevicePlugins | None = None
        if settings.serves_device_plugin:
            self._plugins = DevicePlugins(
                PluginPaths(directory=settings.device_plugins_dir, pod_uid=settings.pod_uid),
                StaticSpec(settings.cdi_dir, edits),
                _Observer(metrics, self.handover),
                events,
                mps,
                _extras(settings),
            )

    @property
    def config(self) -> PluginConfig | None:
        """The device plugin's config in force; None while it is not known."""
        return self._configs.config

    def subscribe(self, callback: Callable[[PluginConfig], None]) -> None:
        """Call `callback` with the config, if it is known, and with each new one."""
        self._subscribers.append(callback)
        if self.config is not None:
            callback(self.config)

    async def owners(self, gpus: Sequence[Gpu]) -> Mapping[str, Ownership]:
        """Return who has each GPU now; those that are simply DRA's are left out."""
        if self._classes is not None:
            await self._first_facts(self._classes)
            self.handover.set_rules(self._with_backed(gpus, self._classes.resources))
        elif self._peer is not None:
            self._heed(self._peer.look())
        return await self.handover.owners(gpus)

    async def run(self, monitor: Monitor) -> None:
        """Serve until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._follow_facts(monitor), name="owners by what is found")
            if self._classes is not None:
                tasks.create_task(self._classes.run(self._reown.set), name="device classes")
            if self._peer is not None:
                tasks.create_task(self._peer.run(self._reown.set), name="other device plugins")
            tasks.create_task(self.handover.run(monitor.reown), name="ownership")
            if self._settings.ownership_file is not None:
                tasks.create_task(self._follow_rules(), name="ownership file")
            if self._plugins is not None:
                monitor.subscribe(self._plugins.publish)
                tasks.create_task(self._configs.run(), name="device plugin config")
                tasks.create_task(self._plugins.run(), name="device plugins")
            elif self._mps is not None:
                tasks.create_task(self._stop_daemons(self._mps), name="MPS daemons of the device plugin")

    async def stop(self, grace: float) -> None:
        """Leave the kubelet."""
        if self._plugins is not None:
            await self._plugins.stop(grace)

    def missing(self) -> str:
        """Return what is missing, or nothing."""
        if self._plugins is None:
            return ""
        if self._configs.config is None:
            return "the device plugin has no config yet"
        return self._plugins.missing()

    def daemon_died(self) -> None:
        """Look whether an MPS daemon has to be started again."""
        if self._plugins is not None:
            self._plugins.look_again()

    async def _holders(self) -> Mapping[str, tuple[str, ...]] | None:
        """Return who holds devices; a GPU that is not as it was is held until it is."""
        pods = await self._pods()
        if pods is None or self._mps is None:
            return pods
        return {**dict.fromkeys(self._mps.held(), (HOLDER,)), **pods}

    async def _stop_daemons(self, mps: MpsReplicas) -> None:
        """Undo what an agent with a device plugin did, when the clients are gone."""
        while True:
            if not await mps.keep({}):
                return
            await asyncio.sleep(_DAEMONS_AGAIN)

    def _apply(self, config: PluginConfig) -> None:
        self._configured.set()
        self._reown.set()
        for callback in self._subscribers:
            callback(config)
        if self._plugins is not None:
            self._plugins.configure(config)

    # --- extended resources that DeviceClasses back ------------------------------------------------------------------

    def _with_backed(self, gpus: Sequence[Gpu], resources: frozenset[str]) -> Rules:
        """Give DRA the GPUs that it can serve to the same pods: then we do not advertise their resources ourselves."""
        config = self._configs.config
        backed = backed_gpus(gpus, config, resources) if config is not None else ()
        if not backed:
            return self._inline
        rule = Rule(owner=Owner.DRA, uuids=backed, source="DeviceClasses with an extendedResourceName")
        return replace(self._inline, rules=(rule,))

    async def _first_facts(self, classes: DeviceClasses) -> None:
        """Wait, once and not for long, for what decides: no GPU should go back and forth at a restart."""
        if not self._has_waited:
            self._has_waited = True
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_FACTS_WAIT):
                    await classes.known.wait()
                    await self._configured.wait()

    async def _follow_facts(self, monitor: Monitor) -> None:
        while True:
            await self._reown.wait()
            self._reown.clear()
            await monitor.reown()

    # --- other device plugins ----------------------------------------------------------------------------------------

    def _heed(self, peer: Path | None) -> None:
        """Offer nothing that another device plugin gives away (K6), unless rules of ours say who has the GPUs."""
        settings = self._settings
        decided = bool(settings.ownership) or settings.ownership_file is not None
        if not decided:
            self.handover.set_rules(self._inline if peer is None else Rules(default=Owner.WITHHELD))
        if peer is not None and peer != self._told_of:
            message = f"another device plugin serves {peer}: " + (
                "pods that it gives GPUs to are seen only afterwards, so a GPU may be given twice; stop it, or keep "
                "it off this node"
                if decided
                else "all GPUs are withheld from claims, as none may be given twice; stop it on this node, have this "
                "agent serve its pods (device_plugin_config), or say who has which GPU (ownership)"
            )
            log.warning("%s", message)
            self._events.emit("AnotherDevicePlugin", message, warning=True)
        self._told_of = peer

    # --- rules -------------------------------------------------------------------------------------------------------

    def _first_rules(self) -> Rules:
        file = self._settings.ownership_file
        if file is None or not file.exists():
            return self._inline
        return self._decoded(load_yaml(read_text(file), str(file)))

    def _decoded(self, document: object) -> Rules:
        return decode_rules(document, str(self._settings.ownership_file))

    async def _follow_rules(self) -> None:
        file = self._settings.ownership_file
        if file is not None:
            await follow_yaml(file, self._take_rules, self._refuse_rules)

    def _take_rules(self, document: object) -> None:
        self.handover.set_rules(self._inline if document is None else self._decoded(document))

    def _refuse_rules(self, why: str) -> None:
        log.error("%s; the rules before stay in force", why)
        self._events.emit("OwnershipRefused", f"{why}; the rules before stay in force", warning=True)


class _Observer:
    """Counts, and tells the handover what was given away."""

    def __init__(self, metrics: Metrics, handover: Handover) -> None:
        self.call_started = metrics.call_started
        self.call_finished = metrics.call_finished
        self.resource_registered = metrics.resource_registered
        self.resource_offered = metrics.resource_offered
        self._metrics = metrics
        self._handover = handover

    def allocated(self, resource: str, gpu_uuids: Iterable[str]) -> None:
        """Note that devices were given to a container."""
        self._handover.given(gpu_uuids)
        self._metrics.allocated(resource)

    def allocate_refused(self, resource: str, code: str) -> None:
        """Count a refusal."""
        self._metrics.allocated(resource, code)


def _follows_classes(settings: Settings) -> bool:
    """Say whether DeviceClasses decide who has the GPUs: only where the device plugin is on, and no rule decides."""
    return settings.serves_device_plugin and not settings.ownership and settings.ownership_file is None


def _extras(settings: Settings) -> Extras | None:
    """Return what looks for devices beside GPUs; fake GPUs have none beside them."""
    if settings.fake:
        return None
    root = Root(settings.driver_root, settings.host_driver_root)
    host_dev = settings.host_dev_root or (settings.host_driver_root if settings.dev_root is None else None)
    return Extras(root, Root(settings.dev_root or settings.driver_root, host_dev))


def _default(settings: Settings) -> str:
    """Return who has all GPUs where no rule says so: whoever turns the device plugin on wants it to have them."""
    on = settings.device_plugin == "on" or settings.device_plugin_config is not None
    return "device-plugin" if on else "dra"
