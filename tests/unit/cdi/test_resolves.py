"""What is written here, as a container runtime resolves it (the embedded cluster's, held to containerd's answers)."""

from __future__ import annotations

import pytest

from driver.cdi.fake import FakeEdits
from driver.cdi.spec import ContainerEdits, claim_spec, encode, merge
from driver.cdi.store import CdiStore
from driver.errors import StorageError
from driver.localcluster.containers import cdi
from driver.localcluster.containers.errors import CdiError
from driver.model import names
from tests.unit.cdi.gpus import full, mig

CLAIMS = ("3f0c5a2e-11aa-4b0a-9d7e-0a1b2c3d4e5f", "af0c5a2e-11aa-4b0a-9d7e-0a1b2c3d4e5f")


@pytest.fixture
def store(tmp_path):
    return CdiStore(tmp_path / "run-cdi")


@pytest.fixture
def source(tmp_path):
    return FakeEdits(tmp_path / "plugin")


def write(store, source, uid, devices):
    edits = {names.cdi_device(uid, device.name): source.device(device) for device in devices}
    store.write(uid, encode(claim_spec(uid, common=source.common(), devices=edits)))
    return [names.cdi_id(uid, device.name) for device in devices]


def test_devices_of_two_claims_meet_in_one_container(store, source):
    ids = write(store, source, CLAIMS[0], [full(0), full(1)]) + write(store, source, CLAIMS[1], [mig(2, 3)])
    registry = cdi.read([store.directory])
    assert registry.errors == ()
    edits = registry.inject(ids)
    assert sorted(name for name in edits.env if name.startswith("GPU_DRA_DEVICE_")) == [
        "GPU_DRA_DEVICE_0",
        "GPU_DRA_DEVICE_1",
        "GPU_DRA_DEVICE_2_MIG_1G10GB_19_3",
    ]
    assert list(edits.mounts) == ["/usr/bin/nvidia-smi"]


def test_a_container_sees_the_devices_that_it_asked_for_only(store, source):
    ids = write(store, source, CLAIMS[0], [full(0), full(1)])
    edits = cdi.read([store.directory]).inject(ids[1:])
    assert [name for name in edits.env if name.startswith("GPU_DRA_DEVICE_")] == ["GPU_DRA_DEVICE_1"]


def test_two_shares_of_one_gpu_are_both_resolved(store, source):
    shares = ["11111111-0000-4000-8000-000000000000", "22222222-0000-4000-8000-000000000000"]
    devices = {
        names.cdi_device(CLAIMS[0], "gpu-0", share): merge(
            source.device(full(0)), ContainerEdits(env={f"SHARE_{index}": share})
        )
        for index, share in enumerate(shares)
    }
    store.write(CLAIMS[0], encode(claim_spec(CLAIMS[0], devices=devices)))
    edits = cdi.read([store.directory]).inject([names.cdi_id(CLAIMS[0], "gpu-0", share) for share in shares])
    assert {edits.env["SHARE_0"], edits.env["SHARE_1"]} == set(shares)


def test_C4_nothing_is_left_to_resolve_when_the_claim_goes(store, source):
    ids = write(store, source, CLAIMS[0], [full(0)])
    store.remove(CLAIMS[0])
    registry = cdi.read([store.directory])
    assert registry.errors == ()
    with pytest.raises(CdiError, match="unresolvable CDI devices"):
        registry.inject(ids)


def test_a_half_written_file_is_no_spec_to_the_runtime(store, source):
    ids = write(store, source, CLAIMS[0], [full(0)])
    (store.directory / f".k8s.gpu.nvidia.com-claim_{CLAIMS[0]}.json.01234567.tmp").write_text('{"cdiVersion"')
    registry = cdi.read([store.directory])
    assert registry.errors == ()
    assert registry.inject(ids)


def test_the_peers_file_for_one_claim_would_spoil_both_as_the_store_says(store, source):
    ids = write(store, source, CLAIMS[0], [full(0)])
    ours = store.path(CLAIMS[0])
    twin = ours.with_suffix(".yaml")
    twin.write_bytes(ours.read_bytes())
    with pytest.raises(StorageError, match="would resolve neither"):
        store.write(CLAIMS[0], b"")
    with pytest.raises(CdiError):
        cdi.read([store.directory]).inject(ids)
