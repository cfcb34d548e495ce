"""Sharing on fake GPUs keeps to the same contract as the real one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from driver.errors import InvalidValueError, SettingNotSupportedError
from driver.sharing.base import MpsSpec
from driver.sharing.fake import FakeComputeModes, FakeMps, FakeState, FakeTimeSlices
from tests.unit.sharing.conftest import keeping

if TYPE_CHECKING:
    from pathlib import Path

GPU = "GPU-1"
SPEC = MpsSpec(devices=(GPU,), memory_limits={GPU: 1 << 30})


async def test_settings_are_remembered_by_the_next_agent(tmp_path: Path) -> None:
    file = tmp_path / "state" / "sharing.json"
    state = FakeState(file)
    slices, modes = FakeTimeSlices(state), FakeComputeModes(state)
    assert (await slices.get(GPU), await modes.get(GPU)) == (0, "DEFAULT")
    await slices.set(GPU, 2)
    await modes.set(GPU, "EXCLUSIVE_PROCESS")
    again = FakeState(file)
    assert await FakeTimeSlices(again).get(GPU) == 2
    assert await FakeComputeModes(again).get(GPU) == "EXCLUSIVE_PROCESS"


async def test_two_agents_see_each_others_settings(tmp_path: Path) -> None:
    """A rolling update: the old agent and the new one are there at once."""
    old, new = FakeState(tmp_path / "s"), FakeState(tmp_path / "s")
    await FakeTimeSlices(old).set(GPU, 2)
    await FakeComputeModes(new).set(GPU, "EXCLUSIVE_PROCESS")
    assert await FakeTimeSlices(new).get(GPU) == 2
    assert await FakeComputeModes(old).get(GPU) == "EXCLUSIVE_PROCESS"
    daemons = FakeMps(tmp_path / "mps", old)
    await daemons.start("a", SPEC)
    await FakeMps(tmp_path / "mps", new).stop("a")
    assert daemons.running() == frozenset()


async def test_a_reboot_resets_everything(tmp_path: Path) -> None:
    file = tmp_path / "sharing.json"
    await FakeTimeSlices(FakeState(file, "boot 1")).set(GPU, 2)
    assert await FakeTimeSlices(FakeState(file, "boot 1")).get(GPU) == 2
    assert await FakeTimeSlices(FakeState(file, "boot 2")).get(GPU) == 0


async def test_M7_a_gpu_without_time_slices(tmp_path: Path) -> None:
    slices = FakeTimeSlices(FakeState(tmp_path / "s"), unsupported={GPU})
    with pytest.raises(SettingNotSupportedError, match=GPU):
        await slices.set(GPU, 1)
    with pytest.raises(SettingNotSupportedError, match=GPU):
        await slices.get(GPU)


async def test_daemons_start_die_and_are_found_again(tmp_path: Path) -> None:
    state = FakeState(tmp_path / "s")
    first = FakeMps(tmp_path / "mps", state)
    deaths: list[tuple[str, str]] = []
    first.on_death = lambda name, message: deaths.append((name, message))
    for name in ("a", "b", "c"):
        await first.start(name, SPEC)
        await first.start(name, SPEC)
    assert [mount.container_path for mount in first.edits("a").mounts] == ["/tmp/nvidia-mps", "/dev/shm"]
    assert all((tmp_path / mount.host_path).is_dir() for mount in first.edits("a").mounts)
    first.die("c")
    assert [name for name, _ in deaths] == ["c"]
    await first.aclose()

    second = FakeMps(tmp_path / "mps", FakeState(tmp_path / "s"))
    assert second.running() == frozenset()
    assert await second.adopt("a", SPEC)
    assert not await second.adopt("b", MpsSpec(devices=(GPU,)))
    assert not await second.adopt("c", SPEC)
    assert second.running() == {"a"}
    assert await second.sweep(keeping("a")) == {"b"}
    await second.stop("a")
    await second.stop("a")
    await second.stop("c")
    assert second.running() == frozenset()
    assert list((tmp_path / "mps").iterdir()) == []


async def test_an_id_is_a_file_name(tmp_path: Path) -> None:
    with pytest.raises(InvalidValueError):
        await FakeMps(tmp_path, FakeState(tmp_path / "s")).start("../x", SPEC)


@pytest.mark.parametrize("content", [b"", b"{", b"\xff", b"7"])
async def test_unreadable_state_is_the_same_as_none(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "s").write_bytes(content)
    assert await FakeTimeSlices(FakeState(tmp_path / "s")).get(GPU) == 0
