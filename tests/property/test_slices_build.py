"""Any facts whatever make slices that a real API server takes, with one shape per type of device."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

from hypothesis import given, settings
from hypothesis import strategies as st

from driver.localcluster.apiserver import Features, Store
from driver.model.device import Fabric, Gpu, NvLink
from driver.model.health import Effect, Health, Taint
from driver.model.mig import MigInstance, MigProfile, MigState, Placement
from driver.model.quantity import parse_bytes
from driver.model.shares import Shares
from driver.model.snapshot import DriverVersions, Snapshot
from driver.slices.build import BuildOptions, build
from driver.slices.normal import normal
from tests.examples import examples

TEXT = st.text(max_size=70)
COUNT = st.integers(0, 200)
MEMORY = st.integers(0, 1 << 42)
PLACEMENT = st.builds(Placement, st.integers(0, 11), st.integers(1, 12))
PLACEMENTS = st.lists(PLACEMENT, max_size=5, unique=True).map(tuple)
PROFILE = st.builds(
    MigProfile,
    name=TEXT,
    id=COUNT,
    index=COUNT,
    compute_slices=st.integers(1, 8),
    max_instances=COUNT,
    placements=PLACEMENTS,
    memory=MEMORY,
    multiprocessors=COUNT,
    copy_engines=COUNT,
    decoders=COUNT,
    encoders=COUNT,
    jpeg_engines=COUNT,
    ofa_engines=COUNT,
)
INSTANCE = st.builds(
    MigInstance,
    uuid=TEXT,
    gpu_instance_id=COUNT,
    compute_instance_id=COUNT,
    profile=PROFILE,
    placement=PLACEMENT,
    compute_slices=st.integers(1, 8),
)
MIG = st.builds(
    MigState,
    enabled=st.booleans(),
    pending=st.booleans(),
    switches_at_once=st.booleans(),
    memory_slices=st.integers(1, 30),
    profiles=st.lists(PROFILE, max_size=5, unique_by=lambda one: one.id).map(tuple),
    instances=st.lists(INSTANCE, max_size=4).map(tuple),
)
GPU = st.builds(
    Gpu,
    uuid=st.text(min_size=1, max_size=50),
    index=COUNT,
    minor=st.none() | COUNT,
    product=TEXT,
    brand=TEXT,
    architecture=TEXT,
    compute_capability=st.tuples(COUNT, COUNT),
    memory=st.none() | MEMORY,
    addressing_mode=TEXT,
    pci_bus_id=st.none() | TEXT,
    pcie_root=st.none() | TEXT,
    numa_node=st.none() | st.integers(-1, 64),
    nvlink=st.builds(NvLink, active_links=COUNT, switched=st.booleans()),
    fabric=st.none() | st.builds(Fabric, cluster_uuid=TEXT, clique=COUNT),
    mig=st.none() | MIG,
)
TAINT = st.builds(Taint, TEXT | st.just("gpu.nvidia.com/xid"), TEXT, st.sampled_from(Effect))
HEALTH = st.builds(Health, healthy=st.booleans(), taints=st.lists(TAINT, max_size=20).map(tuple))
VERSIONS = st.builds(DriverVersions, driver=TEXT, cuda=TEXT)


@st.composite
def snapshots(draw: st.DrawFn) -> Snapshot:
    gpus = draw(st.lists(GPU, max_size=4, unique_by=lambda gpu: gpu.uuid))
    health = {gpu.uuid: draw(HEALTH) for gpu in gpus if draw(st.booleans())}
    chosen = frozenset(gpu.uuid for gpu in gpus if draw(st.booleans()))
    return Snapshot(versions=draw(VERSIONS), gpus=tuple(gpus), health=MappingProxyType(health), dynamic_mig=chosen)


SHARES = st.sampled_from(["disabled", "memory", "unlimited", "1", "7"]).map(Shares.parse)
OPTIONS = st.builds(BuildOptions, node_name=st.just("n"), taints=st.booleans(), partitions=st.booleans(), shares=SHARES)


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
