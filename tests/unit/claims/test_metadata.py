from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from driver.cdi.store import CdiStore
from driver.claims.cdi_files import ClaimCdi
from driver.claims.metadata import container_path, documents, generation_of
from driver.claims.metadata_files import CdiStoreWithMetadata, MetadataFiles
from driver.errors import StorageError
from driver.model.device import FullGpu, MigDevice
from tests.unit.claims.helpers import EnvEdits
from tests.unit.slices.helpers import NODE, snapshot
from tests.unit.telemetry.builders import held, record

SNAPSHOT = snapshot("h100:2")
FULL = {place: FullGpu(gpu=gpu) for place, gpu in enumerate(SNAPSHOT.gpus)}
ROOT = "/var/run/kubernetes.io/dra-device-attributes"


def two(**requests: str) -> Any:
    """A claim with two GPUs, by the names of their requests."""
    names = requests or {"a": "gpu", "b": "gpu"}
    return record(
        "c",
        *(
            held(f"gpu-{place}", SNAPSHOT.gpus[place].uuid, request=request)
            for place, request in enumerate(names.values())
        ),
    )


def stream(data: bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in data.splitlines()]


def test_a_file_has_the_same_in_every_version_newest_first():
    found = documents(two(), FULL, SNAPSHOT, 3)
    assert [*found] == ["gpu"]
    versions = stream(found["gpu"])
    assert [one.pop("apiVersion") for one in versions] == [
        "metadata.resource.k8s.io/v1beta1",
        "metadata.resource.k8s.io/v1alpha1",
    ]
    assert versions[0] == versions[1]
    assert versions[0]["kind"] == "DeviceMetadata"
    assert versions[0]["metadata"] == {"name": "c", "namespace": "ml", "uid": "uid-c", "generation": 3}
    assert "podClaimName" not in versions[0]
    ((request),) = versions[0]["requests"]
    assert request["name"] == "gpu"
    assert [one["name"] for one in request["devices"]] == ["gpu-0", "gpu-1"]
    assert {one["driver"] for one in request["devices"]} == {"gpu.nvidia.com"}
    assert {one["pool"] for one in request["devices"]} == {NODE}
    attributes = request["devices"][0]["attributes"]
    assert attributes["uuid"] == {"string": SNAPSHOT.gpus[0].uuid}
    assert attributes["resource.kubernetes.io/pciBusID"] == {"string": SNAPSHOT.gpus[0].pci_bus_id}
    assert len(attributes) <= 32


def test_each_request_has_its_file_and_names_the_alternative_that_was_chosen():
    found = documents(two(a="big", b="other/small"), FULL, SNAPSHOT, 1)
    assert {name: stream(data)[0]["requests"][0]["name"] for name, data in found.items()} == {
        "big": "big",
        "other": "other/small",
    }


def test_a_mig_device_has_the_uuid_that_it_was_made_with():
    node = snapshot("h100@mig=1g.10gb")
    gpu = node.gpus[0]
    assert gpu.mig is not None
    device = MigDevice(gpu=gpu, instance=gpu.mig.instances[0])
    claim = record("c", held(device.name, gpu.uuid, placement=device.instance.placement))
    shown = stream(documents(claim, {0: device}, node, 1)["gpu"])[0]["requests"][0]["devices"][0]
    assert shown["attributes"]["uuid"] == {"string": device.instance.uuid}
    assert shown["attributes"]["parentUUID"] == {"string": gpu.uuid}


@pytest.mark.parametrize(
    ("pod_claim", "path"),
    [
        ("", f"{ROOT}/resourceclaims/c/gpu/gpu.nvidia.com-metadata.json"),
        ("mine", f"{ROOT}/resourceclaimtemplates/mine/gpu/gpu.nvidia.com-metadata.json"),
    ],
)
def test_the_path_is_the_one_of_the_protocol(pod_claim, path):
    assert container_path(replace(two(), pod_claim=pod_claim), "gpu") == path


def test_a_claim_of_a_template_tells_its_name_in_the_pod():
    found = documents(replace(two(), pod_claim="mine"), FULL, SNAPSHOT, 1)
    assert stream(found["gpu"])[0]["podClaimName"] == "mine"


@pytest.mark.parametrize("data", [b"", b"x", b"[]", b'{"metadata": 1}', b'{"metadata": {"generation": "1"}}', b"\xff"])
def test_what_is_no_file_of_ours_has_no_generation(data):
    assert generation_of(data) == 0


# --- files ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def files(tmp_path: Path) -> MetadataFiles:
    return MetadataFiles(tmp_path / "metadata")


def test_the_file_is_there_and_readable_when_it_is_mounted(files: MetadataFiles, tmp_path: Path) -> None:
    mounts = files.write(two(), FULL, SNAPSHOT)
    ((mount,),) = [edits.mounts for edits in mounts.values()]
    path = tmp_path / "metadata/uid-c/gpu.json"
    assert mount.host_path == str(path)
    assert mount.container_path == container_path(two(), "gpu")
    assert "ro" in mount.options
    assert path.stat().st_mode & 0o777 == 0o644
    assert path.parent.stat().st_mode & 0o777 == 0o755


def test_an_unchanged_file_is_left_alone_and_a_changed_one_has_a_new_generation(
    files: MetadataFiles, tmp_path: Path
) -> None:
    path = tmp_path / "metadata/uid-c/gpu.json"
    files.write(two(), FULL, SNAPSHOT)
    inode = path.stat().st_ino
    files.write(two(), FULL, SNAPSHOT)
    assert path.stat().st_ino == inode
    newer = replace(SNAPSHOT, versions=replace(SNAPSHOT.versions, driver="999.1"))
    files.write(two(), FULL, newer)
    assert generation_of(path.read_bytes()) == 2
    assert stream(path.read_bytes())[0]["requests"][0]["devices"][0]["attributes"]["driverVersionString"] == {
        "string": "999.1"
    }


def test_a_damaged_file_is_written_anew(files: MetadataFiles, tmp_path: Path) -> None:
    path = tmp_path / "metadata/uid-c/gpu.json"
    files.write(two(), FULL, SNAPSHOT)
    path.write_bytes(path.read_bytes()[:100])
    files.write(two(), FULL, SNAPSHOT)
    assert generation_of(path.read_bytes()) == 1


def test_a_directory_that_can_not_be_made_fails_the_prepare(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="file"):
        MetadataFiles(tmp_path / "file/metadata").write(two(), FULL, SNAPSHOT)


def claim_cdi(tmp_path: Path, files: MetadataFiles | None) -> ClaimCdi:
    store = CdiStoreWithMetadata(tmp_path / "cdi", MetadataFiles(tmp_path / "metadata"))
    return ClaimCdi(store, EnvEdits(), lambda: SNAPSHOT, metadata=files)


def test_the_claims_cdi_file_mounts_it_for_each_device(files: MetadataFiles, tmp_path: Path) -> None:
    cdi = claim_cdi(tmp_path, files)
    cdi.write(two(a="big", b="other/small"))
    spec = json.loads(CdiStore(tmp_path / "cdi").path("uid-c").read_bytes())
    paths = {
        device["name"]: [mount["containerPath"] for mount in device["containerEdits"]["mounts"]]
        for device in spec["devices"]
    }
    assert paths == {
        "uid-c-gpu-0": [f"{ROOT}/resourceclaims/c/big/gpu.nvidia.com-metadata.json"],
        "uid-c-gpu-1": [f"{ROOT}/resourceclaims/c/other/gpu.nvidia.com-metadata.json"],
    }
    for device in spec["devices"]:
        for mount in device["containerEdits"]["mounts"]:
            assert stream(Path(mount["hostPath"]).read_bytes())


def test_it_goes_with_the_claim(files: MetadataFiles, tmp_path: Path) -> None:
    cdi = claim_cdi(tmp_path, files)
    cdi.write(two())
    cdi.files.remove("uid-c")
    assert [*(tmp_path / "metadata").iterdir()] == []
    cdi.files.remove("uid-c")


def test_what_a_crash_left_goes_at_the_start(files: MetadataFiles, tmp_path: Path) -> None:
    cdi = claim_cdi(tmp_path, files)
    cdi.write(two())
    files.write(replace(two(), claim=replace(two().claim, uid="half-done")), FULL, SNAPSHOT)
    cdi.files.sweep()
    assert [path.name for path in (tmp_path / "metadata").iterdir()] == ["uid-c"]


def test_without_the_setting_nothing_is_written(tmp_path: Path) -> None:
    claim_cdi(tmp_path, None).write(two())
    assert not (tmp_path / "metadata").exists()
    assert b"dra-device-attributes" not in CdiStore(tmp_path / "cdi").path("uid-c").read_bytes()
