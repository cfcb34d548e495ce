from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

import pytest
from prometheus_client.parser import text_string_to_metric_families

from driver.model.device import MigDevice
from driver.model.health import Effect, Health, Taint
from driver.model.holder import Holder
from driver.model.usage import GpuUsage, Usage
from driver.telemetry.exposition import escape, exposition, number, verdicts
from driver.telemetry.series import SERIES
from tests.unit.slices.helpers import FELL_OFF, NODE, snapshot

BUSY = Usage(
    utilization=80,
    memory_total=80 << 30,
    memory_used=(20 << 30) + 5,
    memory_free=60 << 30,
    power=512.5,
    temperature=66,
    sm_clock=1980,
    pcie_sent=2048.0,
    remap_failed=False,
)
PART = Usage(utilization=30.0, memory_total=10 << 30, memory_used=1 << 30, memory_free=9 << 30, graphics_active=0.3)


def samples(text: str) -> dict[str, list[tuple[dict[str, str], float]]]:
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in text_string_to_metric_families(text):
        for one in family.samples:
            found.setdefault(one.name, []).append((dict(one.labels), one.value))
    return found


def told(spec: str, **usage: GpuUsage | Usage) -> dict[str, list[tuple[dict[str, str], float]]]:
    node = snapshot(spec)
    given = {
        gpu.uuid: one if isinstance(one, GpuUsage) else GpuUsage(whole=one)
        for gpu in node.gpus
        if (one := usage.get(gpu.name.replace("-", ""))) is not None
    }
    return samples(exposition(node, given, {}, NODE))


def test_a_gpu_with_the_names_labels_and_units_of_dcgm():
    found = told("h100:2", gpu1=BUSY)
    uuid = snapshot("h100:2").gpus[1].uuid
    labels = {
        "gpu": "1",
        "UUID": uuid,
        "pci_bus_id": "00000000:43:00.0",
        "device": "nvidia1",
        "modelName": "NVIDIA H100 80GB HBM3",
        "Hostname": NODE,
    }
    assert found["DCGM_FI_DEV_GPU_UTIL"] == [(labels, 80)]
    assert found["DCGM_FI_DEV_FB_USED"] == [(labels, 20480)]
    assert found["DCGM_FI_DEV_FB_FREE"] == [(labels, 61440)]
    assert found["DCGM_FI_DEV_POWER_USAGE"] == [(labels, 512.5)]
    assert found["DCGM_FI_DEV_GPU_TEMP"] == [(labels, 66)]
    assert found["DCGM_FI_DEV_SM_CLOCK"] == [(labels, 1980)]
    assert found["DCGM_FI_DEV_PCIE_TX_THROUGHPUT"] == [(labels, 2)]
    assert found["DCGM_FI_PROF_PCIE_TX_BYTES"] == [(labels, 2048)]
    assert found["DCGM_FI_DEV_ROW_REMAP_FAILURE"] == [(labels, 0)]


def test_what_is_not_supported_costs_that_series_only():
    found = told("h100:2", gpu0=BUSY, gpu1=replace(BUSY, power=None))
    assert len(found["DCGM_FI_DEV_POWER_USAGE"]) == 1
    assert len(found["DCGM_FI_DEV_GPU_UTIL"]) == 2
    assert "DCGM_FI_DEV_ENC_UTIL" not in found


def test_a_series_for_each_container_that_has_the_gpu():
    node = snapshot("h100:1")
    uuid = node.gpus[0].uuid
    claim = {"claim_namespace": "ml", "claim": "c", "claim_uid": "u", "pool": NODE, "device": "gpu-0"}
    holders = {
        uuid: (
            Holder(namespace="ml", pod="a", container="main", **claim),  # type: ignore[arg-type]
            Holder(namespace="ml", pod="b", container="main"),
        )
    }
    found = samples(exposition(node, {uuid: GpuUsage(whole=BUSY)}, holders, NODE))["DCGM_FI_DEV_GPU_UTIL"]
    assert [(labels.get("pod"), labels.get("dra_claim_name"), value) for labels, value in found] == [
        ("a", "c", 80),
        ("b", None, 80),
    ]
    assert found[0][0]["dra_device_name"] == "gpu-0"
    assert all(labels["namespace"] == "ml" and labels["container"] == "main" for labels, _ in found)


def test_two_holders_with_the_same_labels_are_one_series():
    node = snapshot("h100:1")
    uuid = node.gpus[0].uuid
    twice = (Holder(namespace="n", pod="p", container="c"), Holder(namespace="n", pod="p", container="c", admin=True))
    found = samples(exposition(node, {uuid: GpuUsage(whole=BUSY)}, {uuid: twice}, NODE))
    assert len(found["DCGM_FI_DEV_GPU_UTIL"]) == 1


def test_a_partitioned_gpu_tells_memory_and_load_by_its_parts():
    node = snapshot("h100@mig=1g.10gb*2")
    mig = node.gpus[0].mig
    assert mig is not None
    parts = {one.uuid: PART for one in mig.instances}
    usage = GpuUsage(whole=BUSY, mig=MappingProxyType(parts))
    holder = Holder(namespace="ml", pod="p", container="main")
    text = exposition(node, {node.gpus[0].uuid: usage}, {mig.instances[0].uuid: (holder,)}, NODE)
    found = samples(text)
    assert [(one["GPU_I_ID"], one["GPU_I_PROFILE"], value) for one, value in found["DCGM_FI_DEV_GPU_UTIL"]] == [
        ("7", "1g.10gb", 30),
        ("8", "1g.10gb", 30),
    ]
    assert [one.get("pod") for one, _ in found["DCGM_FI_DEV_FB_USED"]] == ["p", None]
    assert [one["dra_mig_device_uuid"] for one, _ in found["DCGM_FI_DEV_FB_USED"]] == [*parts]
    assert all(one["UUID"] == node.gpus[0].uuid for one, _ in found["DCGM_FI_DEV_FB_USED"])
    assert [value for _, value in found["DCGM_FI_PROF_GR_ENGINE_ACTIVE"]] == [0.3, 0.3]
    assert [one.get("GPU_I_ID") for one, _ in found["DCGM_FI_DEV_POWER_USAGE"]] == [None]


def test_a_mig_device_made_since_the_gpus_were_read():
    node = snapshot("h100:1")
    usage = GpuUsage(whole=BUSY, mig=MappingProxyType({"MIG-new": PART}))
    found = samples(exposition(node, {node.gpus[0].uuid: usage}, {}, NODE))
    ((labels, _),) = found["DCGM_FI_DEV_FB_USED"]
    assert labels["dra_mig_device_uuid"] == "MIG-new"
    assert "GPU_I_ID" not in labels


def test_health_is_told_without_any_use():
    node = snapshot("h100:2", taints={1: (FELL_OFF,)})
    found = samples(exposition(node, {}, {}, NODE))
    assert [(one["gpu"], value) for one, value in found["gpu_dra_gpu_healthy"]] == [("0", 1), ("1", 0)]
    assert [(one["gpu"], value) for one, value in found["DCGM_FI_DEV_XID_ERRORS"]] == [("0", 0), ("1", 79)]
    assert "DCGM_FI_DEV_GPU_UTIL" not in found
    alone = samples(verdicts(node, NODE))
    assert alone == {"gpu_dra_gpu_healthy": found["gpu_dra_gpu_healthy"]}


def test_a_mig_device_that_fails_alone():
    node = snapshot("h100@mig=1g.10gb*2,h100")
    one, two = node.gpus[0].mig.instances  # type: ignore[union-attr]
    bad = Health(healthy=False, taints=(Taint("gpu.nvidia.com/xid", "43", Effect.NONE),))
    node = replace(node, device_health=MappingProxyType({MigDevice(gpu=node.gpus[0], instance=two).name: bad}))
    holder = Holder(namespace="ml", pod="p", container="main")
    found = samples(exposition(node, {}, {two.uuid: (holder,)}, NODE))
    assert [value for _, value in found["gpu_dra_gpu_healthy"]] == [1, 1]
    devices = found["gpu_dra_mig_device_healthy"]
    assert [(labels["dra_mig_device_uuid"], value) for labels, value in devices] == [(one.uuid, 1), (two.uuid, 0)]
    assert (devices[1][0]["gpu"], devices[1][0]["GPU_I_PROFILE"], devices[1][0]["GPU_I_ID"]) == ("0", "1g.10gb", "8")
    xids = [(labels.get("GPU_I_ID"), labels.get("pod"), value) for labels, value in found["DCGM_FI_DEV_XID_ERRORS"]]
    assert xids == [(None, None, 0), (None, None, 0), ("8", "p", 43)]


def test_a_mig_device_fails_with_its_gpu():
    node = snapshot("h100@mig=1g.10gb", taints={0: (FELL_OFF,)})
    assert [value for _, value in samples(verdicts(node, NODE))["gpu_dra_mig_device_healthy"]] == [0]


def test_a_taint_that_is_no_number_is_no_xid():
    node = snapshot("h100:1")
    bad = Health(healthy=False, taints=(Taint("gpu.nvidia.com/xid", "x", Effect.NONE),))
    node = replace(node, health=MappingProxyType({node.gpus[0].uuid: bad}))
    assert samples(exposition(node, {}, {}, NODE))["DCGM_FI_DEV_XID_ERRORS"][0][1] == 0


def test_no_gpus_no_lines():
    assert exposition(replace(snapshot("h100:1"), gpus=()), {}, {}, NODE) == ""


def test_names_come_once_and_have_help():
    names = [one.name for one in SERIES]
    assert len(names) == len(set(names))
    assert all(one.help and one.kind in ("gauge", "counter") for one in SERIES)


@pytest.mark.parametrize("text", ["plain", 'a"b', "a\\b", "a\nb", '\\"\n', "ü"])
def test_labels_survive(text):
    line = f'm{{a="{escape(text)}"}} 1\n'
    ((family),) = text_string_to_metric_families(line)
    assert family.samples[0].labels["a"] == text


@pytest.mark.parametrize(
    ("value", "text"), [(True, "1"), (False, "0"), (3, "3"), (1 << 62, str(1 << 62)), (0.5, "0.5"), (1e-9, "0.0")]
)
def test_numbers(value, text):
    assert number(value) == text
