"""What is known after a reading, and which GPUs are partitioned for claims."""

from __future__ import annotations

from dataclasses import replace

import pytest

from driver.model.choice import NO_GPUS, GpuChoice
from driver.model.device import NvLink
from driver.model.health import LOST
from driver.model.mig import MigState
from driver.model.snapshot import Problem, Snapshot
from driver.monitor.observation import advance, unavailable
from tests.unit.monitor.monitors import GPUS, VERSIONS, reading, without

# --- what is known after a reading ------------------------------------------------------------------------------------


def test_A10_names_do_not_shift_when_a_gpu_is_lost() -> None:
    first = advance(None, reading(*GPUS))
    second = advance(first, without(1))
    assert [gpu.name for gpu in second.gpus] == ["gpu-0", "gpu-1", "gpu-2", "gpu-3"]
    assert [gpu.uuid for gpu in second.gpus] == [gpu.uuid for gpu in GPUS]
    assert dict(second.health) == {"GPU-1": LOST}
    third = advance(second, reading(*GPUS))
    assert dict(third.health) == {}
    assert third == first


def test_gpus_are_in_order_of_identity_whatever_nvml_says() -> None:
    old = replace(GPUS[0], uuid="GPU-wsl", minor=None)
    snapshot = advance(None, reading(old, *reversed(GPUS)))
    assert [gpu.uuid for gpu in snapshot.gpus] == ["GPU-0", "GPU-1", "GPU-2", "GPU-3", "GPU-wsl"]


@pytest.mark.parametrize("named", ["GPU-1", "gpu-1"])
def test_a_lost_gpu_says_why(named: str) -> None:
    problem = Problem(object=named, message="GPU is lost (NVML error 15)")
    snapshot = advance(advance(None, reading(*GPUS)), replace(without(1), problems=(problem,)))
    assert snapshot.health_of("GPU-1").reason == "GPU is lost (NVML error 15)"
    assert snapshot.health_of("GPU-1").taints == LOST.taints
    assert snapshot.problems == (problem,)


def test_A11_a_gpu_that_never_answered_is_left_out_and_named() -> None:
    problem = Problem(object="GPU 3", message="GPU 3 can't be read: memory: unknown error")
    snapshot = advance(None, reading(*GPUS[:3], problems=(problem,)))
    assert [gpu.name for gpu in snapshot.gpus] == ["gpu-0", "gpu-1", "gpu-2"]
    assert dict(snapshot.health) == {}
    assert snapshot.problems == (problem,)


def test_a_replaced_gpu_gives_its_name_to_the_new_one() -> None:
    new = replace(GPUS[1], uuid="GPU-new")
    snapshot = advance(advance(None, reading(*GPUS)), reading(GPUS[0], new, *GPUS[2:]))
    assert [gpu.uuid for gpu in snapshot.gpus] == ["GPU-0", "GPU-new", "GPU-2", "GPU-3"]
    assert dict(snapshot.health) == {}


def test_H6_nothing_is_offered_where_nothing_could_be_read() -> None:
    snapshot = unavailable(None, "libnvidia-ml.so.1 not found")
    assert snapshot == Snapshot(problems=(Problem(object="nvml", message="libnvidia-ml.so.1 not found"),))


def test_H6_all_known_gpus_are_lost_when_nvml_fails_later() -> None:
    before = advance(None, reading(*GPUS))
    snapshot = unavailable(before, "second init failed")
    assert snapshot.gpus == before.gpus
    assert snapshot.versions == VERSIONS
    assert {health.reason for health in snapshot.health.values()} == {"second init failed"}
    assert snapshot.health.keys() == {gpu.uuid for gpu in GPUS}
    assert not any(health.healthy for health in snapshot.health.values())
    assert advance(snapshot, reading(*GPUS)) == before


# --- which GPUs are partitioned for claims ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "chosen"),
    [("off", []), ("all", [0, 1, 2, 3]), ("1,3", [1, 3]), ("h100", [0, 1, 2, 3]), ("*L4*", [])],
)
def test_the_setting_says_which_gpus_are_partitioned(text: str, chosen: list[int]) -> None:
    snapshot = advance(None, reading(*GPUS), GpuChoice.parse(text))
    assert snapshot.dynamic_mig == {GPUS[index].uuid for index in chosen}


def test_A10_an_index_does_not_move_to_a_neighbour_when_a_gpu_drops() -> None:
    choice = GpuChoice.parse("1,2")
    first = advance(None, reading(*GPUS), choice)
    dropped = advance(first, without(1), choice)
    assert first.dynamic_mig == dropped.dynamic_mig == {"GPU-1", "GPU-2"}
    assert advance(dropped, reading(*GPUS), choice) == first
    assert unavailable(first, "down").dynamic_mig == first.dynamic_mig


def test_a_gpu_that_appears_is_chosen_then() -> None:
    choice = GpuChoice.parse("3")
    first = advance(None, reading(*GPUS[:3]), choice)
    assert not first.dynamic_mig
    assert advance(first, reading(*GPUS), choice).dynamic_mig == {"GPU-3"}


def test_what_a_gpu_tells_of_itself_does_not_change_with_mig_mode() -> None:
    """NVML reports neither NVLink nor the usual addressing mode while the mode is on."""
    off = MigState(enabled=False, pending=False, switches_at_once=True, memory_slices=8)
    idle = replace(GPUS[0], mig=off, memory=80 << 30, addressing_mode="HMM", nvlink=NvLink(active_links=18))
    cut = replace(GPUS[0], mig=replace(off, enabled=True), memory=79 << 30, addressing_mode="None")
    for choice, shown in ((GpuChoice.parse("all"), idle), (NO_GPUS, cut)):
        first = advance(None, reading(idle), choice)
        second = advance(first, reading(cut), choice)
        assert second.gpus == (replace(shown, mig=cut.mig),)
        assert advance(second, reading(idle), choice) == first
    assert advance(None, reading(cut), GpuChoice.parse("all")).gpus == (cut,)
