from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from driver.errors import InvalidValueError
from driver.inventory.fake import FakeInventory
from driver.inventory.fake_usage import FakeUsage, Load, decode_loads
from tests.unit.slices.helpers import gpus

if TYPE_CHECKING:
    from pathlib import Path

GPUS = gpus("h100:4")


async def test_fake_gpus_are_idle_unless_told(tmp_path: Path) -> None:
    inventory = FakeInventory.from_spec("h100:2,l4", node_name="n", faults_file=tmp_path / "faults.yaml")
    found = await inventory.usage()
    assert len(found) == 3
    assert all(one.whole.utilization == 0 and one.whole.memory_used == 0 for one in found.values())
    assert all(one.whole.power and one.whole.power < 100 for one in found.values())
    (tmp_path / "usage.yaml").write_text("gpus: {gpu-1: {load: 80, memory: 50}, all: {load: 10}}")
    busy = [*(await inventory.usage()).values()]
    assert [one.whole.utilization for one in busy] == [10, 80, 10]
    whole = busy[1].whole
    assert whole.memory_used is not None
    assert whole.memory_total is not None
    assert whole.memory_used + (whole.memory_free or 0) + (whole.memory_reserved or 0) == whole.memory_total
    assert (whole.nvlink_sent or 0) > 0
    assert busy[2].whole.nvlink_sent is None  # an L4 has none
    (tmp_path / "usage.yaml").unlink()
    assert all(one.whole.utilization == 0 for one in (await inventory.usage()).values())


async def test_the_same_each_time_and_different_by_gpu(tmp_path: Path) -> None:
    usage = FakeUsage(GPUS, clock=lambda: 5.0)
    first = [usage.of(gpu, None) for gpu in GPUS]
    assert first == [usage.of(gpu, None) for gpu in GPUS]
    assert len({one.whole.power for one in first}) > 1


async def test_mig_devices_are_as_busy_as_their_gpu_or_as_told(tmp_path: Path) -> None:
    inventory = FakeInventory.from_spec("h100@mig=1g.10gb*2", node_name="n", faults_file=tmp_path / "faults.yaml")
    (tmp_path / "usage.yaml").write_text("gpus: {0: {load: 40, devices: {mig-1g10gb-19-1: {load: 90, memory: 10}}}}")
    (gpu,) = (await inventory.usage()).values()
    parts = [*gpu.mig.values()]
    assert [one.utilization for one in parts] == [40, 90]
    assert gpu.whole.utilization is None
    total, used = parts[1].memory_total, parts[1].memory_used
    assert total is not None
    assert used is not None
    assert used < total // 9


async def test_H5_a_lost_gpu_tells_nothing(tmp_path: Path) -> None:
    inventory = FakeInventory.from_spec("h100:2", node_name="n", faults_file=tmp_path / "faults.yaml")
    (tmp_path / "faults.yaml").write_text("gpus: {gpu-0: {lost: true}}")
    assert len(await inventory.usage()) == 1


async def test_faults_show(tmp_path: Path) -> None:
    inventory = FakeInventory.from_spec("h100:2", node_name="n", faults_file=tmp_path / "faults.yaml")
    (tmp_path / "faults.yaml").write_text(
        "gpus: {gpu-0: {temperature: 95, ecc: 2, row_remap: failed}, gpu-1: {not_supported: [memory, nvlink]}}"
    )
    first, second = [one.whole for one in (await inventory.usage()).values()]
    assert (first.temperature, first.ecc_uncorrected, first.remap_failed) == (95, 2, True)
    assert (second.memory_total, second.nvlink_sent) == (None, None)
    assert second.power is not None


async def test_a_bad_file_is_told_once_and_changes_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "usage.yaml"
    usage = FakeUsage(GPUS, file)
    file.write_text("gpus: {gpu-0: {load: 50}}")
    assert usage.of(GPUS[0], None).whole.utilization == 50
    file.write_text("gpus: {gpu-0: {load: 5000}}")
    for _ in range(3):
        assert usage.of(GPUS[0], None).whole.utilization == 50
    assert caplog.text.count("ignoring a bad usage file") == 1
    os.truncate(file, 0)
    assert usage.of(GPUS[0], None).whole.utilization == 0


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("gpus: {gpu-9: {}}", "gpu-9"),
        ("gpus: []", "must be a mapping from a GPU's name"),
        ("gpus: {gpu-0: {lod: 1}}", "did you mean 'load'"),
        ("gpus: {gpu-0: {load: 101}}", "a whole number from 0 to 100"),
        ("gpus: {gpu-0: {load: true}}", "load"),
        ("gpus: {gpu-0: {memory: -1}}", "memory"),
        ("gpus: {gpu-0: {devices: []}}", "devices"),
        ("gpus: {gpu-0: {devices: {mig-x: {load: x}}}}", "mig-x.load"),
        ("gpu: {}", "unknown field"),
        ("[]", "a mapping"),
    ],
)
def test_bad_files(text: str, named: str) -> None:
    with pytest.raises(InvalidValueError, match=named):
        decode_loads(text, GPUS, "usage.yaml")


@pytest.mark.parametrize("name", ["gpu-1", "1", GPUS[1].uuid])
def test_gpus_by_any_name(name: str) -> None:
    loads = decode_loads(f"gpus: {{{name}: {{load: 7}}}}", GPUS, "usage.yaml")
    assert loads[GPUS[1].uuid].whole == Load(load=7, memory=7)


@pytest.mark.parametrize("text", ["", "{}", "gpus: {}", "# nothing"])
def test_no_loads(text: str) -> None:
    assert decode_loads(text, GPUS, "usage.yaml") == {}
