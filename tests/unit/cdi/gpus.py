"""GPUs for these tests."""

from __future__ import annotations

from driver.model.device import FullGpu, Gpu, MigDevice, MigPartition
from driver.model.mig import MigInstance, MigProfile, MigState, Placement
from driver.model.quantity import MI

PROFILE_1G = MigProfile(
    name="1g.10gb",
    id=19,
    index=0,
    compute_slices=1,
    max_instances=7,
    placements=tuple(Placement(start, 1) for start in range(7)),
    memory=9984 * MI,
    multiprocessors=16,
    copy_engines=1,
    decoders=1,
    encoders=0,
    jpeg_engines=1,
    ofa_engines=0,
)


def gpu(number: int, *, minor: int | None = -1, mig: bool = False) -> Gpu:
    return Gpu(
        uuid=f"GPU-0000000{number}-0000-4000-8000-000000000000",
        index=number,
        minor=number if minor == -1 else minor,
        product="NVIDIA H100 80GB HBM3",
        brand="Nvidia",
        architecture="Hopper",
        compute_capability=(9, 0),
        memory=81559 * MI,
        pci_bus_id=f"0000:6{number:x}:00.0",
        mig=MigState(enabled=mig, pending=mig, switches_at_once=True, memory_slices=8),
    )


def full(number: int, *, minor: int | None = -1) -> FullGpu:
    return FullGpu(gpu=gpu(number, minor=minor))


def partition(number: int, start: int) -> MigPartition:
    return MigPartition(gpu=gpu(number, mig=True), profile=PROFILE_1G, placement=Placement(start, 1))


def mig(number: int, start: int, *, gi: int = 7, ci: int = 0) -> MigDevice:
    instance = MigInstance(
        uuid=f"MIG-{number}{start}000000-0000-4000-8000-000000000000",
        gpu_instance_id=gi,
        compute_instance_id=ci,
        profile=PROFILE_1G,
        placement=Placement(start, 1),
        compute_slices=1,
    )
    return MigDevice(gpu=gpu(number, mig=True), instance=instance)
