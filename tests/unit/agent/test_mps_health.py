from __future__ import annotations

from driver.agent.mps_health import MpsHealth
from driver.claims.allocation import ClaimRef
from driver.claims.effect import MpsDaemon
from driver.claims.holding import Holding
from driver.claims.record import Record, RecordedDevice
from driver.config.parameters import Mps
from driver.model.health_facts import Kind

GPU, MIG = "gpu-0", "gpu-1-mig-1g10gb-19-0"


def record(name: str, *devices: tuple[str, str], daemon: str = "") -> Record:
    held = tuple(
        RecordedDevice(
            request="r",
            pool="n",
            kind="mig" if "mig" in device else "gpu",
            holding=Holding(device=device, gpu_uuid=uuid),
        )
        for device, uuid in devices
    )
    names, uuids = zip(*devices, strict=True)
    effects = (MpsDaemon(id=daemon, gpus=uuids, devices=names, uuids=(), settings=Mps()),) if daemon else ()
    ref = ClaimRef(namespace="ns", name=name, uid=f"uid-{name}")
    return Record(claim=ref, boot_id="b", devices=held, effects=effects)


def test_a_dead_daemon_concerns_its_devices_while_a_claim_needs_it():
    records = [
        record("a", (GPU, "GPU-0"), ("gpu-2", "GPU-2"), daemon="d-a"),
        record("b", (MIG, "GPU-1"), daemon="d-b"),
        record("c", ("gpu-3", "GPU-3")),
    ]
    health = MpsHealth(lambda: records)
    assert health.facts() == {}
    health.died("d-a")
    facts = health.facts()
    assert {*facts} == {"GPU-0", "GPU-2"}
    assert facts["GPU-0"][0].kind is Kind.MPS
    assert "claim a" in facts["GPU-0"][0].detail
    health.died("d-b")
    assert {*health.facts()} == {"GPU-0", "GPU-2", MIG}
    del records[0]
    assert {*health.facts()} == {MIG}
    records.insert(0, record("a", (GPU, "GPU-0"), daemon="d-a"))  # another claim's daemon of that name is a new one
    assert {*health.facts()} == {MIG}


def test_nobody_is_asked_while_all_daemons_live():
    def records():
        raise AssertionError

    assert MpsHealth(records).facts() == {}
