"""The agent's own metrics, in one registry. Names that people's dashboards know are the peer's (`nvidia_dra_…`).

Unlike there, failures are counted too. Methods, not metric objects, are what the rest sees, so that no other module
knows prometheus-client or a label's name.
"""

from __future__ import annotations

import functools
import time
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, disable_created_metrics
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest

import driver
from driver.model import names

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from driver.model.health import Health

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4

_CALL_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 45)


class Metrics:
    """All metrics of one agent."""

    def __init__(self, node_name: str) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self._node = node_name
        self._further: list[Callable[[], bytes]] = []
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self._make_call_metrics()
        self._make_state_metrics()
        self._make_plugin_metrics()

    def _make_call_metrics(self) -> None:
        labels = ("driver", "operation")
        kind = ("driver", "error_type")
        registry = self.registry
        calls = Counter("nvidia_dra_requests", "Calls of the kubelet, failed ones too", labels, registry=registry)
        seconds = Histogram(
            "nvidia_dra_request_duration_seconds",
            "Time that calls took",
            labels,
            buckets=_CALL_BUCKETS,
            registry=registry,
        )
        inflight = Gauge("nvidia_dra_requests_inflight", "Calls under way", labels, registry=registry)
        operations = ("prepare", "unprepare")
        self._calls = {one: calls.labels(names.DRIVER, one) for one in operations}
        self._seconds = {one: seconds.labels(names.DRIVER, one) for one in operations}
        self._inflight = {one: inflight.labels(names.DRIVER, one) for one in operations}
        self._errors = {
            operation: Counter(
                f"nvidia_dra_node_{operation}_errors", f"Claims not {operation}d", kind, registry=registry
            )
            for operation in operations
        }

    def _make_state_metrics(self) -> None:
        registry = self.registry
        self._prepared = Gauge(
            "nvidia_dra_prepared_devices",
            "Devices that prepared claims hold",
            ("node", "driver", "device_type"),
            registry=registry,
        )
        self._writes = Counter("gpu_dra_slice_writes", "ResourceSlice writes", ("verb",), registry=registry)
        self._publish_errors = Counter(
            "gpu_dra_publish_errors", "ResourceSlice writes that failed", ("error_type",), registry=registry
        )
        self._statuses = Counter(
            "gpu_dra_claim_status_writes", "Writes of claims' device status", ("result",), registry=registry
        )
        self._labels = Counter("gpu_dra_label_writes", "Writes of the node's labels", ("result",), registry=registry)
        self._quarantined = Gauge(
            "gpu_dra_quarantined_records", "Claim records that can't be read and were set aside", registry=registry
        )
        self._problems = Gauge("gpu_dra_inventory_problems", "Objects that could not be read", registry=registry)
        self._gpus = Gauge("gpu_dra_gpus", "GPUs known, by health", ("health",), registry=registry)
        self._read_at = Gauge("gpu_dra_inventory_read_timestamp_seconds", "Last whole reading", registry=registry)
        self._registered = Gauge("gpu_dra_registered", "1 if the kubelet registered the driver", registry=registry)
        self._xids = Counter(
            "gpu_dra_xid_events", "XID errors that the GPU driver reported", ("gpu", "xid"), registry=registry
        )
        gpu = ("gpu", "uuid")
        self._taints = Gauge(
            "gpu_dra_gpu_taint", "1 for each taint of a GPU", (*gpu, "taint", "effect"), registry=registry
        )
        self._transitions = Counter(
            "gpu_dra_gpu_health_changes",
            "Times that a GPU became unhealthy, or healthy",
            (*gpu, "to"),
            registry=registry,
        )
        self._judged: dict[tuple[str, str], bool] = {}
        Gauge("gpu_dra_build_info", "Version of the agent", ("version",), registry=registry).labels(
            driver.__version__
        ).set(1)

    def _make_plugin_metrics(self) -> None:
        registry = self.registry
        self._owners = Gauge("gpu_dra_gpu_owners", "GPUs by who offers them", ("owner",), registry=registry)
        self._waiting = Gauge("gpu_dra_ownership_waiting", "GPUs that wait to change owners", registry=registry)
        self._offered = Gauge(
            "gpu_dra_device_plugin_devices",
            "Devices offered by the device-plugin API",
            ("resource", "health"),
            registry=registry,
        )
        self._resources = Gauge(
            "gpu_dra_device_plugin_registered", "1 if the kubelet knows the resource", ("resource",), registry=registry
        )
        self._allocations = Counter(
            "gpu_dra_device_plugin_allocations", "Allocate calls", ("resource", "result"), registry=registry
        )

    def call_started(self, operation: str) -> None:
        """Count a call of the kubelet; `operation` is `prepare` or `unprepare`."""
        self._inflight[operation].inc()

    def call_finished(self, operation: str, seconds: float) -> None:
        """Count its end, whatever came of it."""
        self._inflight[operation].dec()
        self._calls[operation].inc()
        self._seconds[operation].observe(seconds)

    def claim_failed(self, operation: str, error_type: str) -> None:
        """Count a claim that was refused or failed."""
        self._errors[operation].labels(names.DRIVER, error_type).inc()

    def count_records(self, quarantined: Callable[[], int], prepared: Callable[[], Mapping[str, int]]) -> None:
        """Ask at each scrape how many records are in quarantine, and how many devices of each type are held."""
        self._quarantined.set_function(quarantined)
        for device_type in ("gpu", "mig"):
            count = functools.partial(_count, prepared, device_type)
            self._prepared.labels(self._node, names.DRIVER, device_type).set_function(count)

    def slice_written(self, verb: str) -> None:
        """Count a write to the API server."""
        self._writes.labels(verb).inc()

    def publish_failed(self, error_type: str) -> None:
        """Count a failed one."""
        self._publish_errors.labels(error_type).inc()

    def claim_status_written(self, error_type: str = "") -> None:
        """Count a write of a claim's device status; the type of its error if it failed."""
        self._statuses.labels(error_type or "OK").inc()

    def labels_written(self, error_type: str = "") -> None:
        """Count a write of the node's labels; the type of its error if it failed."""
        self._labels.labels(error_type or "OK").inc()

    def inventory_read(self, *, healthy: int, unhealthy: int, problems: int, whole: bool) -> None:
        """Set what the last reading saw; `whole` is false if it failed altogether."""
        self._gpus.labels("healthy").set(healthy)
        self._gpus.labels("unhealthy").set(unhealthy)
        self._problems.set(problems)
        if whole:
            self._read_at.set(time.time())

    def xid(self, xid: int, gpu: str) -> None:
        """Count an XID error on a GPU, by name. Garbage must not become a label each."""
        self._xids.labels(gpu, str(xid) if 0 < xid < 1000 else "other").inc()

    def health_judged(self, health: Mapping[tuple[str, str], Health]) -> None:
        """Set the verdicts on all GPUs, by name and UUID."""
        self._taints.clear()
        for gpu, one in health.items():
            for taint in one.taints:
                shown = f"{taint.key}={taint.value}" if taint.value else taint.key
                self._taints.labels(*gpu, shown, str(taint.effect)).set(1)
            if self._judged.get(gpu, True) != one.healthy:
                self._transitions.labels(*gpu, "healthy" if one.healthy else "unhealthy").inc()
        self._judged = {gpu: one.healthy for gpu, one in health.items()}

    def registered(self, value: bool) -> None:
        """Set whether the kubelet knows the driver."""
        self._registered.set(value)

    def owners(self, counts: Mapping[str, int], waiting: int) -> None:
        """Set how many GPUs each owner has, and how many wait for another one."""
        for owner, count in counts.items():
            self._owners.labels(owner).set(count)
        self._waiting.set(waiting)

    def resource_registered(self, resource: str, registered: bool) -> None:
        """Set whether the kubelet knows an extended resource."""
        self._resources.labels(resource).set(registered)

    def resource_offered(self, resource: str, *, healthy: int, unhealthy: int) -> None:
        """Set how many devices an extended resource has."""
        self._offered.labels(resource, "healthy").set(healthy)
        self._offered.labels(resource, "unhealthy").set(unhealthy)

    def allocated(self, resource: str, result: str = "OK") -> None:
        """Count an Allocate call; `result` is the name of its gRPC code."""
        self._allocations.labels(resource, result).inc()

    def append(self, text: Callable[[], bytes]) -> None:
        """Add further text of that format to each scrape; the names in it are of no metric here."""
        self._further.append(text)

    def exposition(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return b"".join((generate_latest(self.registry), *(text() for text in self._further)))


def _count(counts: Callable[[], Mapping[str, int]], key: str) -> float:
    return counts().get(key, 0)
