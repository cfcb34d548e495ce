"""The composition root: the parts of one node's agent, how they are wired, and their life as one process.

What can't be survived (a socket that can't be served, a state directory that can't be used, a bug in a background
task) ends the process with one line that says why. Everything else is a part's own business.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING

from driver.agent.health import make_charts, rules_by
from driver.agent.labels import make_labels, remove_elsewhere
from driver.agent.mps_health import MpsHealth
from driver.agent.pod_events import PodEvents
from driver.agent.telemetry import Parts, Telemetry
from driver.agent.upkeep import Upkeep, told
from driver.claims.cdi_files import ClaimCdi
from driver.claims.effect_runner import EffectRunner
from driver.claims.engine import ClaimEngine
from driver.claims.gpu_locks import GpuLocks
from driver.claims.ledger import Ledger
from driver.claims.metadata_files import CdiStoreWithMetadata, MetadataFiles
from driver.claims.state import ClaimState
from driver.claims.store import RecordStore
from driver.config.plugin_health import NO_WISHES
from driver.endpoints import Endpoints
from driver.errors import DriverError, SettingsError
from driver.inventory.choose import make_inventory
from driver.inventory.driver_root import DriverRoot
from driver.kube.client import KubeClient
from driver.kube.events import EventSink
from driver.kube.resources import ResourceApi
from driver.kubelet.device_plugin.mps import MpsReplicas
from driver.kubelet.gate import GatedClaims
from driver.kubelet.plugin import KubeletPaths, KubeletPlugin
from driver.kubelet.pod_resources import PodResources
from driver.kubelet.resource_health import ResourceHealth
from driver.metrics import Metrics
from driver.monitor.monitor import Monitor
from driver.offering.handover import Sources
from driver.offering.offering import Offering
from driver.sharing.choose import make_sharing
from driver.slices.build import BuildOptions
from driver.slices.publish import SlicePublisher
from driver.waiting import happens

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from driver.cdi.edits import EditsSource
    from driver.claims.store import Quarantined
    from driver.model.device import Gpu
    from driver.model.ownership import Ownership
    from driver.model.snapshot import DriverVersions
    from driver.settings import Settings

log = logging.getLogger(__name__)

_REGISTRATION_WAIT = 3.0  # seconds that slices wait for the kubelet's registration
_LAST_STEPS = 0.4  # seconds for closing connections


class Agent:
    """All parts of the agent on one node. Making it does no I/O beyond reading credentials and the boot id."""

    def __init__(self, settings: Settings) -> None:
        node = settings.node_name
        self._settings = settings
        self._metrics = Metrics(node)
        self._client = _client(settings)
        api = ResourceApi(self._client)
        self._events = EventSink(self._client, node)
        self._inventory = make_inventory(settings)
        self._recovered = asyncio.Event()
        self._boot_id = _boot_id(settings)
        self._health_rules = rules_by(settings)
        self._monitor = self._make_monitor()
        self._health = ResourceHealth(node, timeout=settings.health_timeout)
        options = BuildOptions(node_name=node, partitions=bool(settings.dynamic_mig), shares=settings.shares)
        self._publisher = SlicePublisher(self._client, api, options, events=self._events, metrics=self._metrics)
        self._store = RecordStore(settings.state / "claims", self._quarantined)
        self._pods = PodResources(settings.pod_resources_socket)
        self._sharing = make_sharing(settings, DriverRoot(settings.driver_root), self._boot_id, self._client)
        self._replicas = self._mps_replicas()
        self._runner = self._effect_runner()
        self._engine = ClaimEngine(
            state=self._claim_state(),
            claims=api,
            used_claims=self._pods.claims_in_use,
            runner=self._runner,
            locks=GpuLocks(settings.state / "gpus"),
        )
        self._telemetry = self._make_telemetry(api)
        self._mps_health = MpsHealth(lambda: tuple(self._store.records.values()))
        self._monitor.also(self._mps_health.facts)
        self._pod_events = PodEvents(self._engine.records, self._pods, api, self._events)
        self._plugin = self._make_plugin()
        self._offering = self._make_offering()
        self._labels = make_labels(settings, self._client, tell=self._events, observer=self._metrics)
        self._endpoints = self._make_endpoints()
        self._loop = asyncio.get_running_loop()
        self._upkeep = Upkeep(
            self._engine, cdi_dir=settings.cdi_dir, ready=self._monitor.ready, daemon_died=self._mps_died
        )

    def _make_monitor(self) -> Monitor:
        settings = self._settings
        return Monitor(
            self._inventory,
            tell=self._events,
            observer=self._metrics,
            resync=min(settings.resync_interval, settings.health_interval),
            owners=self._owners,
            dynamic_mig=settings.dynamic_mig,
            charts=make_charts(settings, self._boot_id, self._health_rules(NO_WISHES)),
        )

    def _make_telemetry(self, api: ResourceApi) -> Telemetry:
        parts = Parts(
            inventory=self._inventory,
            monitor=self._monitor,
            records=self._engine.records,
            pods=self._pods,
            missing=self.missing,
            unreadable=lambda: tuple(self._store.quarantined.values()),
        )
        return Telemetry(self._settings, parts, api, events=self._events, metrics=self._metrics)

    def _make_plugin(self) -> KubeletPlugin:
        settings = self._settings
        return KubeletPlugin(
            KubeletPaths(plugins=settings.plugins_dir, registry=settings.registry_dir, pod_uid=settings.pod_uid),
            self._telemetry.watched(GatedClaims(self._engine, self._monitor.ready)),
            self._metrics,
            warn=lambda reason, message: self._events.emit(reason, message, warning=True),
            health=self._health,
        )

    def missing(self) -> dict[str, str]:
        """Return what is missing for the agent to be of use, by part."""
        checks = {
            "inventory": self._monitor.missing,
            "slices": self._slices_missing,
            "kubelet": self._plugin.missing,
            "device plugin": self._offering.missing,
        }
        found = {name: check() for name, check in checks.items()}
        return {name: why for name, why in found.items() if why}

    async def run(self) -> None:
        """Do the agent's work until cancelled; errors come in an ExceptionGroup."""
        if self._endpoints is not None:
            await self._endpoints.start()
        self._monitor.subscribe(lambda _: self._upkeep.snapshot_changed())
        self._monitor.subscribe(self._health.publish)
        self._monitor.subscribe(self._pod_events.publish)
        self._offering.subscribe(lambda config: self._monitor.set_rules(self._health_rules(config.health)))
        self._metrics.count_records(lambda: len(self._store.quarantined), self._prepared)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._monitor.run(), name="monitor")
            tasks.create_task(self._publish(), name="slices")
            tasks.create_task(self._events.run(), name="events")
            tasks.create_task(self._pod_events.run(), name="pod events")
            tasks.create_task(self._telemetry.run(), name="telemetry")
            tasks.create_task(self._serve_claims(), name="claims")
            tasks.create_task(self._offering.run(self._monitor), name="offering")
            if self._labels is not None:
                self._monitor.subscribe(self._labels.publish)
                self._offering.subscribe(self._labels.configure)
                tasks.create_task(self._labels.run(), name="labels")
            tasks.create_task(remove_elsewhere(self._settings, self._client), name="former labels")
            tasks.create_task(told(self._preflight(), "checking the container runtime"), name="preflight")

    def look_again(self) -> None:
        """Read the GPUs now. Files that may be edited at any time are followed anyway."""
        log.info("told to look again: reading the GPUs")
        self._monitor.refresh()

    async def stop(self) -> None:
        """Let calls under way end, then close everything. Slices stay, as pods do."""
        grace = self._settings.shutdown_timeout
        await asyncio.gather(self._plugin.stop(grace), self._offering.stop(grace))
        endpoints = self._endpoints.stop() if self._endpoints is not None else asyncio.sleep(0)
        mps = self._sharing.mps.aclose() if self._sharing.mps is not None else asyncio.sleep(0)
        if self._labels is not None:
            await _within(self._labels.stop(), grace)
        steps = (
            endpoints,
            self._telemetry.stop(),
            self._inventory.aclose(),
            self._engine.aclose(),
            mps,
            self._client.aclose(),
        )
        await asyncio.gather(*(_within(step, _LAST_STEPS) for step in steps))

    async def _publish(self) -> None:
        """Offer devices once the kubelet knows us, so that no pod meets a driver that is not there yet (A14).

        A kubelet that stays away is no reason to keep silent for ever: it may know another instance.
        """
        await happens(self._plugin.registration.registered, _REGISTRATION_WAIT)
        self._monitor.subscribe(self._publisher.publish)
        await self._publisher.run()

    async def _preflight(self) -> None:
        """Warn, once, if the container runtime will not read our CDI files (C6)."""
        await self._monitor.ready.wait()
        from driver.cdi.preflight import check_runtime

        runtime = ""
        with contextlib.suppress(DriverError):
            node = await self._client.get(f"/api/v1/nodes/{self._settings.node_name}")
            runtime = str(((node.get("status") or {}).get("nodeInfo") or {}).get("containerRuntimeVersion") or "")
        settings = self._settings
        configs, in_pod = settings.container_runtime_configs, bool(settings.pod_uid)
        for finding in check_runtime(settings.cdi_dir, configs, runtime=runtime, in_pod=in_pod):
            log.log(logging.WARNING if finding.certain else logging.INFO, "%s", finding.message)
            if finding.certain:
                self._events.emit("CDINotEnabled", finding.message, warning=True)

    # --- ownership ---------------------------------------------------------------------------------------------------

    def _make_offering(self) -> Offering:
        return Offering(
            self._settings,
            self._client,
            Sources(records=self._engine.records, pods=self._pods.device_holders),
            _edits(self._settings, lambda: self._monitor.snapshot.versions),
            events=self._events,
            metrics=self._metrics,
            mps=self._replicas,
        )

    def _mps_replicas(self) -> MpsReplicas | None:
        sharing = self._sharing
        if sharing.mps is None:
            return None
        file = self._settings.state / "plugin-mps.json"
        return MpsReplicas(sharing.mps, sharing.compute_modes, file, self._pods.device_holders)

    async def _owners(self, gpus: tuple[Gpu, ...]) -> Mapping[str, Ownership]:
        await self._recovered.wait()
        return await self._offering.owners(gpus)

    # --- claims ------------------------------------------------------------------------------------------------------

    async def _serve_claims(self) -> None:
        await self._engine.recover()
        self._recovered.set()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._plugin.run(), name="kubelet")
            tasks.create_task(self._upkeep.run(), name="upkeep")

    def _claim_state(self) -> ClaimState:
        settings = self._settings
        metadata = MetadataFiles(settings.metadata_dir)
        return ClaimState(
            store=self._store,
            cdi=ClaimCdi(
                CdiStoreWithMetadata(settings.cdi_dir, metadata),  # which removes what an earlier life left of it, too
                _edits(settings, lambda: self._monitor.snapshot.versions),
                lambda: self._monitor.snapshot,
                self._runner.client_edits,
                metadata if settings.device_metadata == "on" else None,
            ),
            snapshot=lambda: self._monitor.snapshot,
            node=settings.node_name,
            pool=settings.node_name,
            boot_id=self._boot_id,
        )

    def _effect_runner(self) -> EffectRunner:
        mps = self._sharing.mps
        if mps is not None:
            mps.on_death = self._mps_died
        return EffectRunner(
            partitions=self._inventory,
            slices=self._sharing.time_slices,
            modes=self._sharing.compute_modes,
            daemons=mps,
            changed=self._monitor.refresh_later,
            other_daemons=self._replicas.daemons if self._replicas is not None else frozenset,
            ledger=Ledger(self._settings.state / "partitions", self._boot_id),
        )

    def _mps_died(self, daemon_id: str, message: str) -> None:
        """Tell that the clients of an MPS daemon have lost their GPU; it is not started again under them."""
        log.error("MPS daemon %s: %s", daemon_id, message)
        self._mps_health.died(daemon_id)
        self._monitor.reconsider()
        self._events.emit("MpsDaemonDied", f"the MPS daemon {daemon_id} died: {message}", warning=True)
        self._offering.daemon_died()

    def _quarantined(self, entry: Quarantined) -> None:
        """Tell of a record that can't be read (S1). Called on the engine's thread."""
        message = str(entry)
        self._loop.call_soon_threadsafe(lambda: self._events.emit("RecordQuarantined", message, warning=True))

    def _prepared(self) -> dict[str, int]:
        kinds = [device.kind for record in tuple(self._store.records.values()) for device in record.devices]
        return {kind: kinds.count(kind) for kind in ("gpu", "mig")}

    # --- readiness ---------------------------------------------------------------------------------------------------

    def _slices_missing(self) -> str:
        state = self._publisher.state
        return state.error or ("" if state.published else "the ResourceSlices have not been published yet")

    def _make_endpoints(self) -> Endpoints | None:
        address = self._settings.http_address
        if address is None:
            return None
        return Endpoints(host=address.host, port=address.port, missing=self.missing, metrics=self._metrics.exposition)


async def _within(step: Awaitable[None], seconds: float) -> None:
    with contextlib.suppress(TimeoutError):
        try:
            async with asyncio.timeout(seconds):
                await step
        except DriverError as exc:
            log.warning("while stopping: %s", exc)


def _client(settings: Settings) -> KubeClient:
    if settings.kubeconfig is not None:
        return KubeClient.from_kubeconfig(settings.kubeconfig, settings.context or None, timeout=settings.api_timeout)
    return KubeClient.in_cluster(timeout=settings.api_timeout)


def _edits(settings: Settings, versions: Callable[[], DriverVersions]) -> EditsSource:
    if settings.fake:
        from driver.cdi.fake import FakeEdits

        return FakeEdits(settings.state / "bin", versions=versions)
    from driver.cdi.edits import NvidiaEdits

    return NvidiaEdits(
        settings.driver_root,
        settings.dev_root,
        host_driver_root=settings.host_driver_root,
        host_dev_root=settings.host_dev_root,
        proc_root=settings.proc_root,
        sys_root=settings.sys_root,
        hook=settings.cdi_hook,
    )


def _boot_id(settings: Settings) -> str:
    try:
        text = settings.boot_id.read_text().strip()
    except (OSError, ValueError) as exc:
        raise SettingsError(f"cannot read the boot id from {settings.boot_id}: {exc}") from exc
    if not text:
        raise SettingsError(f"{settings.boot_id} is empty: it must tell one boot of this node from another")
    return text
