from __future__ import annotations

import pytest
from prometheus_client import REGISTRY
from prometheus_client.parser import text_string_to_metric_families

from driver.metrics import Metrics
from driver.model.health import HEALTHY
from driver.model.health_facts import Fact, Kind
from driver.model.health_rules import judge


def values(metrics: Metrics) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    families = text_string_to_metric_families(metrics.exposition().decode())
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in families
        for sample in family.samples
    }


OURS = ("driver", "gpu.nvidia.com")


def test_the_peers_names_and_labels() -> None:
    metrics = Metrics("node1")
    metrics.call_started("prepare")
    metrics.call_started("prepare")
    metrics.call_finished("prepare", 0.004)
    metrics.claim_failed("prepare", "ClaimRefusedError")
    metrics.claim_failed("unprepare", "StorageError")
    metrics.count_records(lambda: 2, lambda: {"gpu": 3})
    found = values(metrics)
    call = (OURS, ("operation", "prepare"))
    assert found["nvidia_dra_requests_total", call] == 1
    assert found["nvidia_dra_requests_inflight", call] == 1
    assert found["nvidia_dra_request_duration_seconds_count", call] == 1
    assert found["nvidia_dra_request_duration_seconds_bucket", (OURS, ("le", "0.005"), ("operation", "prepare"))] == 1
    assert found["nvidia_dra_node_prepare_errors_total", (OURS, ("error_type", "ClaimRefusedError"))] == 1
    assert found["nvidia_dra_node_unprepare_errors_total", (OURS, ("error_type", "StorageError"))] == 1
    for device_type, count in (("gpu", 3), ("mig", 0)):
        labels = (("device_type", device_type), OURS, ("node", "node1"))
        assert found["nvidia_dra_prepared_devices", labels] == count


def test_own_metrics() -> None:
    metrics = Metrics("node1")
    metrics.slice_written("create")
    metrics.publish_failed("ApiInvalidError")
    metrics.count_records(lambda: 2, dict)
    metrics.inventory_read(healthy=7, unhealthy=1, problems=1, whole=True)
    metrics.registered(True)
    found = values(metrics)
    assert found["gpu_dra_slice_writes_total", (("verb", "create"),)] == 1
    assert found["gpu_dra_publish_errors_total", (("error_type", "ApiInvalidError"),)] == 1
    assert found["gpu_dra_quarantined_records", ()] == 2
    assert found["gpu_dra_gpus", (("health", "healthy"),)] == 7
    assert found["gpu_dra_gpus", (("health", "unhealthy"),)] == 1
    assert found["gpu_dra_inventory_problems", ()] == 1
    assert found["gpu_dra_inventory_read_timestamp_seconds", ()] > 1e9
    assert found["gpu_dra_registered", ()] == 1
    assert found["process_resident_memory_bytes", ()] > 0


def test_a_failed_reading_does_not_look_fresh() -> None:
    metrics = Metrics("node1")
    metrics.inventory_read(healthy=0, unhealthy=8, problems=1, whole=False)
    assert values(metrics)["gpu_dra_inventory_read_timestamp_seconds", ()] == 0


@pytest.mark.parametrize(("xid", "label"), [(79, "79"), (0, "other"), (-1, "other"), (2**31, "other")])
def test_garbage_xids_make_no_series_each(xid: int, label: str) -> None:
    metrics = Metrics("node1")
    metrics.xid(xid, "gpu-1")
    assert values(metrics)["gpu_dra_xid_events_total", (("gpu", "gpu-1"), ("xid", label))] == 1


def test_nothing_is_in_the_global_registry() -> None:
    Metrics("a")
    Metrics("b")
    assert not [family.name for family in REGISTRY.collect() if family.name.startswith(("gpu_dra", "nvidia_dra"))]


def test_no_created_series() -> None:
    metrics = Metrics("node1")
    metrics.slice_written("create")
    assert b"_created" not in metrics.exposition()


def test_the_verdicts_on_gpus_are_told_and_their_changes_counted() -> None:
    metrics = Metrics("node1")
    one, two = ("gpu-0", "GPU-0"), ("gpu-1", "GPU-1")
    bad = judge([Fact(Kind.XID, 79), Fact(Kind.UNMONITORED)])
    for health in (HEALTHY, bad, bad, HEALTHY):
        metrics.health_judged({one: HEALTHY, two: health})
        found = values(metrics)
        assert {key: 1 for name, key in found if name == "gpu_dra_gpu_taint"} == {
            (("effect", str(taint.effect)), ("gpu", "gpu-1"), ("taint", shown), ("uuid", "GPU-1")): 1
            for taint, shown in zip(
                health.taints, ("gpu.nvidia.com/xid=79", "gpu.nvidia.com/unmonitored"), strict=False
            )
        }
    for to in ("healthy", "unhealthy"):
        labels = (("gpu", "gpu-1"), ("to", to), ("uuid", "GPU-1"))
        assert found["gpu_dra_gpu_health_changes_total", labels] == 1


def test_a_gpu_that_has_left_is_told_no_more() -> None:
    metrics = Metrics("node1")
    bad = judge([Fact(Kind.XID, 79)])
    metrics.health_judged({("gpu-0", "GPU-0"): bad})
    metrics.health_judged({("gpu-0", "GPU-new"): bad})
    told = [dict(key)["uuid"] for name, key in values(metrics) if name == "gpu_dra_gpu_taint"]
    assert told == ["GPU-new"]
