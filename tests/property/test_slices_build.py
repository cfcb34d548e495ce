"""Any facts whatever make slices that a real API server takes, with one shape per type of device."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from hypothesis import given, settings
from hypothesis import strategies as st

from driver.localcluster.apiserver import Features, Store
from driver.model.quantity import parse_bytes
from driver.model.shares import Shares
from driver.slices.build import BuildOptions, build
from driver.slices.normal import normal
from tests.examples import examples
from tests.property.snapshots import snapshots

if TYPE_CHECKING:
    from driver.model.device import Gpu
    from driver.model.snapshot import Snapshot

SHARES = st.sampled_from(["disabled", "memory", "unlimited", "1", "7"]).map(Shares.parse)
OPTIONS = st.builds(
    BuildOptions,
    node_name=st.just("n"),
    taints=st.booleans(),
    notices=st.booleans(),
    partitions=st.booleans(),
    shares=SHARES,
)


@given(snapshots(), OPTIONS)
@settings(max_examples=examples(200))
def test_any_snapshot_makes_valid_slices(snapshot: Snapshot, options: BuildOptions) -> None:
    store = Store(Features())
    specs = build(snapshot, options)
    assert specs == build(snapshot, options)
    for spec in specs:
        stored = store.create("resourceslices", {"metadata": {"generateName": "x-"}, "spec": spec})
        assert normal(stored["spec"]) == normal(spec)


@given(snapshots())
def test_devices_of_a_type_have_one_set_of_own_attributes(snapshot: Snapshot) -> None:
    shapes: dict[str, set[frozenset[str]]] = {}
    for spec in build(snapshot, BuildOptions(node_name="n", partitions=True)):
        for device in spec.get("devices", ()):
            own = frozenset(name for name in device["attributes"] if "/" not in name)
            shapes.setdefault(device["attributes"]["type"]["string"], set()).add(own - {"uuid"})
    assert all(len(some) == 1 for some in shapes.values())


@given(snapshots())
def test_a_device_takes_only_counters_that_there_are(snapshot: Snapshot) -> None:
    specs = build(snapshot, BuildOptions(node_name="n", partitions=True))
    sets = [one for spec in specs for one in spec.get("sharedCounters", ())]
    totals = {one["name"]: one["counters"] for one in sets}
    assert len(totals) == len(sets)
    for device in (device for spec in specs for device in spec.get("devices", ())):
        assert (
            (device["attributes"]["type"]["string"] == "gpu")
            or "uuid" in device["attributes"]
            or ("consumesCounters" in device)
        )
        for taken in device.get("consumesCounters", ()):
            for name, amount in taken["counters"].items():
                there = totals[taken["counterSet"]][name]
                assert parse_bytes(amount["value"]) <= parse_bytes(there["value"])


@given(snapshots(), st.booleans())
def test_mode_and_instances_of_partitioned_gpus_show_nowhere(snapshot: Snapshot, on: bool) -> None:
    def toggled(gpu: Gpu) -> Gpu:
        mig = gpu.mig
        if mig is None or not mig.switches_at_once or gpu.uuid not in snapshot.dynamic_mig:
            return gpu
        return replace(gpu, mig=replace(mig, enabled=on, pending=not on, instances=()))

    other = replace(snapshot, gpus=tuple(map(toggled, snapshot.gpus)))
    options = BuildOptions(node_name="n", partitions=True)
    assert build(other, options) == build(snapshot, options)
