"""Snapshots with any facts whatever."""

from __future__ import annotations

from types import MappingProxyType

from hypothesis import strategies as st

from driver.model.device import Fabric, Gpu, NvLink
from driver.model.health import Effect, Health, Taint
from driver.model.mig import MigInstance, MigProfile, MigState, Placement
from driver.model.snapshot import DriverVersions, Snapshot

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
