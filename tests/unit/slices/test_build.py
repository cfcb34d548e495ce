from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from driver.model.device import Gpu
from driver.model.health import Effect, Taint
from driver.model.snapshot import Snapshot
from driver.slices.build import BuildOptions, build
from tests.unit.slices.helpers import (
    FELL_OFF,
    NODE,
    OPTIONS,
    PARTITIONS,
    add,
    gpus,
    names,
    new_store,
    partitioned,
    snapshot,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

WITHOUT_TAINTS = replace(OPTIONS, taints=False)
PRODUCTS = "t4,l4,l40s,a10,a30,a100-40,a100-80,h100,h100-pcie,h200,b200,gb200,rtx-pro-6000"


def test_a_node_is_one_pool_in_one_slice() -> None:
    (spec,) = build(snapshot("h100:8"), OPTIONS)
    assert spec["driver"] == "gpu.nvidia.com"
    assert spec["nodeName"] == NODE
    assert spec["pool"] == {"name": NODE, "generation": 1, "resourceSliceCount": 1}
    assert names([spec]) == [[f"gpu-{minor}" for minor in range(8)]]


def test_a_node_without_gpus_publishes_an_empty_pool() -> None:
    (spec,) = build(Snapshot(), OPTIONS)
    assert spec["devices"] == []
    assert spec["pool"]["resourceSliceCount"] == 1
    add(new_store(), [spec])


@pytest.mark.parametrize("spec", [PRODUCTS, "h100:8,l4:130", "a30@mig=1g.6gb*4,h100:2@mig=1g.10gb*7,l4", "l4:129"])
@pytest.mark.parametrize("options", [OPTIONS, WITHOUT_TAINTS])
def test_A9_an_api_server_takes_all_slices(spec: str, options: BuildOptions) -> None:
    specs = build(snapshot(spec), options)
    stored = add(new_store(), specs)
    assert [item["spec"]["pool"]["resourceSliceCount"] for item in stored] == [len(specs)] * len(specs)


@pytest.mark.parametrize(
    ("count", "options", "sizes"),
    [
        (128, WITHOUT_TAINTS, [128]),
        (129, WITHOUT_TAINTS, [128, 1]),
        (64, OPTIONS, [64]),
        (65, OPTIONS, [64, 1]),
        (129, OPTIONS, [64, 64, 1]),
    ],
)
def test_A9_slices_are_split_at_the_limits(count: int, options: BuildOptions, sizes: list[int]) -> None:
    specs = build(snapshot(f"l4:{count}"), options)
    assert [len(some) for some in names(specs)] == sizes
    assert [name for some in names(specs) for name in some] == [f"gpu-{minor}" for minor in range(count)]


def test_A9_a_gpu_that_falls_ill_changes_one_slice_in_place() -> None:
    before = build(snapshot("l4:65"), OPTIONS)
    after = build(snapshot("l4:65", taints={64: (FELL_OFF,)}), OPTIONS)
    assert names(before) == names(after)
    assert [one == other for one, other in zip(before, after, strict=True)] == [True, False]
    add(new_store(), after)


def test_the_same_snapshot_gives_the_same_slices_whatever_its_order() -> None:
    wanted = build(snapshot("h100:4,l4:2"), OPTIONS)
    shuffled = Snapshot(versions=snapshot("h100:4,l4:2").versions, gpus=gpus("h100:4,l4:2")[::-1])
    assert build(shuffled, OPTIONS) == wanted == build(snapshot("h100:4,l4:2"), OPTIONS)


def test_A10_names_of_the_others_stay_when_a_gpu_drops() -> None:
    whole = snapshot("h100:4")
    without = replace(whole, gpus=tuple(gpu for gpu in whole.gpus if gpu.minor != 1))
    assert names(build(without, OPTIONS)) == [["gpu-0", "gpu-2", "gpu-3"]]
    shown = {device["name"]: device["attributes"]["uuid"] for device in build(without, OPTIONS)[0]["devices"]}
    before = {device["name"]: device["attributes"]["uuid"] for device in build(whole, OPTIONS)[0]["devices"]}
    assert shown.items() <= before.items()


def test_P1_gpus_without_minor_numbers_come_last_and_are_named_by_uuid() -> None:
    some = (Gpu(uuid="GPU-b", index=0), Gpu(uuid="GPU-a", index=1), Gpu(uuid="GPU-c", index=2, minor=7))
    assert names(build(Snapshot(gpus=some), OPTIONS)) == [["gpu-7", "gpu-a", "gpu-b"]]


def test_a_second_device_of_one_name_does_not_spoil_the_slice() -> None:
    some = (Gpu(uuid="GPU-a", index=0, minor=0), Gpu(uuid="GPU-b", index=1, minor=0))
    specs = build(Snapshot(gpus=some), OPTIONS)
    assert names(specs) == [["gpu-0"]]
    add(new_store(), specs)


# --- MIG -------------------------------------------------------------------------------------------------------------


def test_mig_devices_are_offered_instead_of_their_parent() -> None:
    specs = build(snapshot("h100@mig=1g.10gb:0+3g.40gb:4,l4"), OPTIONS)
    assert names(specs) == [["gpu-0-mig-1g10gb-19-0", "gpu-0-mig-3g40gb-9-4", "gpu-1"]]
    assert [device["attributes"]["type"]["string"] for device in specs[0]["devices"]] == ["mig", "mig", "gpu"]


def test_a_gpu_in_mig_mode_without_mig_devices_offers_nothing() -> None:
    assert names(build(snapshot("h100@mig,l4"), OPTIONS)) == [["gpu-1"]]


# --- partitions ------------------------------------------------------------------------------------------------------


def sets(specs: Sequence[dict[str, Any]]) -> list[list[str]]:
    return [[one["name"] for one in spec["sharedCounters"]] for spec in specs if "sharedCounters" in spec]


@pytest.mark.parametrize("count", [1, 8, 9, 16, 24, 40])
def test_any_number_of_gpus_can_be_partitioned(count: int) -> None:
    specs = build(partitioned(f"h100:{count}"), PARTITIONS)
    assert [one for some in sets(specs) for one in some] == [f"gpu-{minor}-counter-set" for minor in range(count)]
    assert all(len(some) <= 8 for some in sets(specs))
    shown = [device for spec in specs for device in spec.get("devices", ())]
    assert len(shown) == count * (1 + 7 + 7 + 4 + 3 + 2 + 1 + 1)
    assert all(len(device["consumesCounters"]) == 1 for device in shown)
    assert [item["spec"]["pool"]["resourceSliceCount"] for item in add(new_store(), specs)] == [len(specs)] * len(specs)


@pytest.mark.parametrize("spec", [PRODUCTS, "h100:9@mig=1g.10gb*7,l4:70"])
def test_slices_with_counters_come_first_and_hold_nothing_else(spec: str) -> None:
    specs = build(partitioned(spec), PARTITIONS)
    kinds = ["sharedCounters" in one for one in specs]
    assert kinds == sorted(kinds, reverse=True)
    assert all(("sharedCounters" in one) != ("devices" in one) for one in specs)
    assert max(len(some) for some in names(specs)) <= 64
    homes = [{name.split("-mig")[0] for name in some} for some in names(specs)]
    assert sum(map(len, homes)) == len(set().union(*homes))  # no GPU is in two slices
    add(new_store(), specs)
    add(new_store(kubernetes="1.35", gates={"DRAPartitionableDevices": True}), specs)


def test_a_partition_is_a_mig_device_without_uuid_that_takes_of_its_gpu() -> None:
    specs = build(partitioned("h100"), PARTITIONS)
    found = {device["name"]: device for spec in specs for device in spec.get("devices", ())}
    device = found["gpu-0-mig-3g40gb-9-4"]
    assert device["attributes"]["type"] == {"string": "mig"}
    assert device["attributes"]["parentUUID"] == {"string": gpus("h100")[0].uuid}
    assert "uuid" not in device["attributes"]
    assert not [name for name in device["capacity"] if name.startswith("memorySlice")]
    (taken,) = device["consumesCounters"]
    assert taken["counterSet"] == "gpu-0-counter-set"
    assert [name for name in taken["counters"] if name.startswith("memory-slice")] == [
        f"memory-slice-{index}" for index in range(4, 8)
    ]
    plain = build(snapshot("h100"), OPTIONS)[0]["devices"][0]
    assert {key: value for key, value in found["gpu-0"].items() if key != "consumesCounters"} == plain


def test_one_prepare_changes_no_slice() -> None:
    """Neither MIG mode nor instances of a GPU that is partitioned for claims show in the slices."""
    idle = build(partitioned("h100:2"), PARTITIONS)
    assert build(partitioned("h100@mig=1g.10gb*3,h100"), PARTITIONS) == idle
    assert build(partitioned("h100@mig,h100@mig=7g.80gb"), PARTITIONS) == idle


def test_where_mig_mode_needs_a_reset_it_decides_what_is_offered() -> None:
    assert build(partitioned("a100-80"), PARTITIONS) == build(snapshot("a100-80"), OPTIONS)
    _, on = names(build(partitioned("a100-80@mig"), PARTITIONS))
    assert len(on) == 25
    assert "gpu-0" not in on
    assert names(build(partitioned("a100-80@mig=1g.10gb*2"), PARTITIONS)) == [[], on]


def test_M4_boards_without_mig_are_as_ever() -> None:
    assert build(partitioned("l4:2,t4"), PARTITIONS) == build(snapshot("l4:2,t4"), OPTIONS)


def test_gpus_that_are_not_chosen_are_as_ever() -> None:
    chosen = replace(snapshot("h100:2"), dynamic_mig=frozenset({gpus("h100:2")[1].uuid}))
    specs = build(chosen, PARTITIONS)
    assert sets(specs) == [["gpu-1-counter-set"]]
    found = {device["name"]: device for spec in specs for device in spec.get("devices", ())}
    assert "consumesCounters" not in found["gpu-0"]
    assert [name for name in found if name.startswith("gpu-0")] == ["gpu-0"]


def test_where_counters_are_dropped_whole_gpus_are_offered_alone() -> None:
    assert build(partitioned("h100:2,l4"), OPTIONS) == build(snapshot("h100:2,l4"), OPTIONS)
    assert names(build(partitioned("h100@mig=1g.10gb"), OPTIONS)) == [["gpu-0"]]


def test_a_second_gpu_of_one_name_does_not_spoil_the_counters() -> None:
    twins = snapshot("h100,a100-80@mig", minor=0)
    both = replace(twins, dynamic_mig=frozenset(gpu.uuid for gpu in twins.gpus))
    specs = build(both, PARTITIONS)
    assert sets(specs) == [["gpu-0-counter-set"]]
    add(new_store(), specs)


def test_an_unhealthy_gpu_taints_its_partitions_or_is_withdrawn_with_them() -> None:
    ill = partitioned("h100:2", taints={1: (FELL_OFF,)})
    shown = [device for spec in build(ill, PARTITIONS) for device in spec.get("devices", ())]
    assert {device["name"].split("-mig")[0] for device in shown if "taints" in device} == {"gpu-1"}
    assert sum("taints" in device for device in shown) == 26
    withdrawn = build(ill, replace(PARTITIONS, taints=False))
    assert sets(withdrawn) == [["gpu-0-counter-set"]]
    assert all(name.startswith("gpu-0") for some in names(withdrawn) for name in some)


# --- health ----------------------------------------------------------------------------------------------------------


def test_an_unhealthy_gpu_is_tainted_and_so_are_its_mig_devices() -> None:
    (spec,) = build(snapshot("l4:2,h100@mig=1g.10gb*2", taints={1: (FELL_OFF,), 2: (FELL_OFF,)}), OPTIONS)
    taint = {"key": "gpu.nvidia.com/xid", "value": "79", "effect": "NoSchedule"}
    assert [device.get("taints") for device in spec["devices"]] == [None, [taint], [taint], [taint]]


def test_a_healthy_gpu_may_have_a_taint_without_effect() -> None:
    unmonitored = Taint("gpu.nvidia.com/unmonitored", "", Effect.NONE)
    sick = snapshot("l4", taints={0: (unmonitored,)})
    healthy = replace(sick, health={uuid: replace(one, healthy=True) for uuid, one in sick.health.items()})
    (spec,) = build(healthy, OPTIONS)
    assert spec["devices"][0]["taints"] == [{"key": "gpu.nvidia.com/unmonitored", "effect": "None"}]
    assert names(build(healthy, WITHOUT_TAINTS)) == [["gpu-0"]]


def test_where_taints_are_dropped_unhealthy_devices_are_withdrawn() -> None:
    specs = build(snapshot("l4:2,h100@mig=1g.10gb*2", taints={1: (FELL_OFF,), 2: (FELL_OFF,)}), WITHOUT_TAINTS)
    assert names(specs) == [["gpu-0"]]
    assert "taints" not in specs[0]["devices"][0]


@pytest.mark.parametrize("features", [{"kubernetes": "1.34"}, {"kubernetes": "1.37"}, {"dra_versions": ("v1beta1",)}])
def test_slices_are_valid_in_every_release(features: dict[str, Any]) -> None:
    specs = build(snapshot("h100:2@mig=1g.10gb*7,l4:60", taints={0: (FELL_OFF,)}), OPTIONS)
    assert len(add(new_store(**features), specs)) == 2
