from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from driver.cdi.fake import FakeEdits
from driver.cdi.static import KIND, StaticSpec, qualified
from driver.cdi.store import CdiStore
from driver.errors import DeviceNotReadyError, StorageError
from driver.model.snapshot import DriverVersions
from tests.unit.cdi.gpus import full, mig

if TYPE_CHECKING:
    from pathlib import Path

    from driver.cdi.spec import ContainerEdits
    from driver.model.device import Device

FULL = {device.gpu.uuid: device for device in (full(0), full(1))}


class Edits(FakeEdits):
    """Fake edits that fail as a test says, and whose driver may be upgraded."""

    def __init__(self, directory: Path) -> None:
        self.driver = "1"
        self.not_ready: set[str] = set()
        super().__init__(directory, versions=lambda: DriverVersions(driver=self.driver))

    def common(self) -> ContainerEdits:
        if "common" in self.not_ready:
            raise DeviceNotReadyError("no libraries yet")
        return super().common()

    def device(self, device: Device) -> ContainerEdits:
        if device.name in self.not_ready:
            raise DeviceNotReadyError("no node yet")
        return super().device(device)


@pytest.fixture
def edits(tmp_path: Path) -> Edits:
    return Edits(tmp_path / "bin")


@pytest.fixture
def static(tmp_path: Path, edits: Edits) -> StaticSpec:
    return StaticSpec(tmp_path / "cdi", edits)


def path(tmp_path: Path) -> Path:
    return tmp_path / "cdi/k8s.device-plugin.nvidia.com-gpu.json"


def listed(tmp_path: Path) -> list[str]:
    spec = json.loads(path(tmp_path).read_bytes())
    assert spec["kind"] == KIND
    return [device["name"] for device in spec["devices"]]


def test_every_device_by_uuid(tmp_path, static):
    part = mig(0, 2)
    static.refresh({**FULL, part.instance.uuid: part})
    assert listed(tmp_path) == [*FULL, part.instance.uuid]
    assert set(static.devices) == {*FULL, part.instance.uuid}
    assert qualified("GPU-x") == "k8s.device-plugin.nvidia.com/gpu=GPU-x"
    assert path(tmp_path).stat().st_mode & 0o777 == 0o644


def test_it_is_written_only_when_it_changes(tmp_path, static, edits):
    static.refresh(FULL)
    before = path(tmp_path).stat().st_ino
    static.refresh(FULL)
    static.ensure()
    assert path(tmp_path).stat().st_ino == before
    edits.driver = "2"
    static.refresh(FULL)
    assert path(tmp_path).stat().st_ino != before
    again = StaticSpec(tmp_path / "cdi", edits)
    before = path(tmp_path).stat().st_ino
    again.refresh(FULL)
    assert path(tmp_path).stat().st_ino == before


@pytest.mark.parametrize("damage", ["gone", "changed"])
def test_C1_what_happened_to_the_file_is_made_good(tmp_path, static, damage):
    static.refresh(FULL)
    before = path(tmp_path).read_bytes()
    if damage == "gone":
        path(tmp_path).unlink()
    else:
        path(tmp_path).write_text("{}")
    static.ensure()
    assert path(tmp_path).read_bytes() == before


def test_C2_a_device_that_is_not_ready_costs_itself_only(tmp_path, static, edits):
    edits.not_ready = {"gpu-0"}
    static.refresh(FULL)
    assert listed(tmp_path) == [full(1).gpu.uuid]
    edits.not_ready = set()
    static.refresh(FULL)
    assert listed(tmp_path) == [*FULL]


def test_where_nothing_is_ready_the_file_stays_as_it_is(tmp_path, static, edits):
    static.refresh(FULL)
    before = path(tmp_path).read_bytes()
    edits.not_ready = {"common"}
    with pytest.raises(DeviceNotReadyError):
        static.refresh(FULL)
    assert static.error == "no libraries yet"
    edits.not_ready = {"gpu-0", "gpu-1"}
    with pytest.raises(StorageError, match="no device is ready"):
        static.refresh(FULL)
    assert path(tmp_path).read_bytes() == before
    edits.not_ready = set()
    static.refresh(FULL)
    assert static.error == ""


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("k8s.device-plugin.nvidia.com-gpu.yaml", "kind: x"),
        ("k8s.device-plugin.nvidia.com-gpu-old.json", json.dumps({"kind": KIND})),
    ],
)
def test_another_file_of_this_kind_is_told_and_not_made_worse(tmp_path, static, name, content):
    (tmp_path / "cdi").mkdir()
    (tmp_path / "cdi" / name).write_text(content)
    with pytest.raises(StorageError, match=f"remove {name}"):
        static.refresh(FULL)
    assert not path(tmp_path).exists()
    assert (tmp_path / "cdi" / name).read_text() == content


def test_it_does_not_touch_claims_files_or_the_toolkits(tmp_path, static):
    store = CdiStore(tmp_path / "cdi")
    store.write("some-uid", b"{}")
    (tmp_path / "cdi/nvidia.yaml").write_text("kind: nvidia.com/gpu")
    static.refresh(FULL)
    assert store.claim_uids() == {"some-uid"}
    assert store.sweep() == 0
    static.remove()
    assert sorted(entry.name for entry in (tmp_path / "cdi").iterdir()) == [
        "k8s.gpu.nvidia.com-claim_some-uid.json",
        "nvidia.yaml",
    ]


def test_a_directory_that_can_not_be_made(tmp_path, edits):
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="cannot make the CDI directory"):
        StaticSpec(tmp_path / "file/cdi", edits).refresh(FULL)
