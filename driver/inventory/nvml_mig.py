"""Reading MIG from NVML: mode, profiles with their placements, and the MIG devices that exist."""

from __future__ import annotations

import ctypes
import re
from typing import TYPE_CHECKING, Any, TypeVar

from driver.inventory.nvml_instances import NO_PROFILE, gpu_instances, profile_info
from driver.inventory.nvml_query import (
    FUNCTION_NOT_FOUND,
    INVALID_ARGUMENT,
    NO_PERMISSION,
    NOT_FOUND,
    NOT_SUPPORTED,
    GpuQuery,
    GpuRefusedError,
    is_one_of,
)
from driver.model.mig import MigInstance, MigProfile, MigState, Placement, profile_name
from driver.model.quantity import MI

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

T = TypeVar("T")

_NO_MIG = (NOT_SUPPORTED, FUNCTION_NOT_FOUND)
_NAME = re.compile(r"(?:MIG )?(\d+g\.\d+gb(?:[+-][a-z0-9.]+)*)")

# What the names of profiles say beyond slices and memory, by NVML's profile index (NVML_GPU_INSTANCE_PROFILE_*).
_SUFFIXES = {
    0x7: "+me",
    0x8: "+me",
    0xA: "+gfx",
    0xB: "+gfx",
    0xC: "+gfx",
    0xD: "-me",
    0xE: "-me",
    0xF: "+me.all",
    0x10: "+me.all",
    0x11: "+gfx",
}


def read_mig(gpu: GpuQuery, *, memory: int | None, switches_at_once: bool) -> MigState | None:
    """Return a GPU's MIG state, None where it has no MIG (M4); `memory` in bytes.

    :raises pynvml.NVMLError: a query failed for real.
    """
    mode = gpu.ask_or(None, "nvmlDeviceGetMigMode", absent=_NO_MIG)
    if mode is None:
        return None
    current, pending = mode
    profiles = tuple(_permitted(gpu, _profiles(gpu, memory)) or ())
    instances = _permitted(gpu, _instances(gpu, profiles)) if current else None
    bare = None if instances is None else _permitted(gpu, _bare(gpu, profiles, instances))
    ends = (placement.start + placement.size for profile in profiles for placement in profile.placements)
    return MigState(
        enabled=bool(current),
        pending=bool(pending),
        switches_at_once=switches_at_once,
        memory_slices=max(ends, default=0),
        profiles=profiles,
        instances=tuple(instances or ()),
        bare=tuple(bare or ()),
    )


def mig_devices(gpu: GpuQuery) -> Iterator[Any]:
    """Yield the handles of the MIG devices that exist."""
    for index in range(gpu.ask_or(0, "nvmlDeviceGetMaxMigDeviceCount", absent=_NO_MIG)):
        absent = (NOT_FOUND, INVALID_ARGUMENT)
        device = gpu.ask_or(None, "nvmlDeviceGetMigDeviceHandleByIndex", index, absent=absent)
        if device is not None:
            yield device


def _permitted(gpu: GpuQuery, found: Iterator[T]) -> list[T] | None:
    """Return all that is found, or None and a note where NVML wants more permission."""
    try:
        return list(found)
    except gpu.api.NVMLError as exc:
        if not is_one_of(gpu.api, exc, (NO_PERMISSION,)):
            raise
        gpu.notes.append(f"{gpu.asked}: {exc}; MIG is not fully known: it takes CAP_SYS_ADMIN (overlays/mig-mps)")
        return None


def _profiles(gpu: GpuQuery, memory: int | None) -> Iterator[MigProfile]:
    for index in range(gpu.api.NVML_GPU_INSTANCE_PROFILE_COUNT):
        info = profile_info(gpu, index)
        if info is not None:
            yield _profile(gpu, index, info, memory)


def _profile(gpu: GpuQuery, index: int, info: Any, memory: int | None) -> MigProfile:
    return MigProfile(
        name=_profile_name(index, info, memory),
        id=info.id,
        index=index,
        compute_slices=info.sliceCount,
        max_instances=info.instanceCount,
        placements=_placements(gpu, info.id),
        memory=info.memorySizeMB * MI,
        multiprocessors=info.multiprocessorCount,
        copy_engines=info.copyEngineCount,
        decoders=info.decoderCount,
        encoders=info.encoderCount,
        jpeg_engines=info.jpegCount,
        ofa_engines=info.ofaCount,
    )


def _profile_name(index: int, info: Any, memory: int | None) -> str:
    """Take the driver's own name, which is exact (M5); older libraries have none, so make it."""
    named = _NAME.fullmatch(getattr(info, "name", ""))
    if named:
        return named[1]
    total = memory // MI if memory else info.memorySizeMB or 1
    return profile_name(info.memorySizeMB, total, info.sliceCount) + _SUFFIXES.get(index, "")


def _placements(gpu: GpuQuery, profile_id: int) -> tuple[Placement, ...]:
    """Return where the profile may lie, with MIG on or off (NVML API reference).

    Only partitioning needs it: without CAP_SYS_ADMIN, which it takes, a profile is known by name and size.
    """
    function = "nvmlDeviceGetGpuInstancePossiblePlacements"
    count = ctypes.c_uint(0)
    absent = (*NO_PROFILE, NO_PERMISSION)
    if gpu.ask_or(None, function, profile_id, None, ctypes.byref(count), absent=absent) is None:
        return ()
    found = (gpu.api.c_nvmlGpuInstancePlacement_t * count.value)()
    gpu.ask(function, profile_id, found, ctypes.byref(count))
    return tuple(sorted(Placement(one.start, one.size) for one in found[: count.value]))


def _instances(gpu: GpuQuery, profiles: tuple[MigProfile, ...]) -> Iterator[MigInstance]:
    by_id = {profile.id: profile for profile in profiles}
    for device in mig_devices(gpu):
        yield _instance(gpu, device, by_id)


def _bare(gpu: GpuQuery, profiles: tuple[MigProfile, ...], instances: Iterable[MigInstance]) -> Iterator[Placement]:
    """Yield the placements of GPU instances without a compute instance, which are no MIG devices."""
    filled = {instance.gpu_instance_id for instance in instances}
    for _, info in gpu_instances(gpu, ((profile.id, profile.max_instances) for profile in profiles)):
        if info.id not in filled:
            yield Placement(info.placement.start, info.placement.size)


def _instance(gpu: GpuQuery, device: Any, profiles: dict[int, MigProfile]) -> MigInstance:
    gpu_instance_id = gpu.call("nvmlDeviceGetGpuInstanceId", device)
    handle = gpu.ask("nvmlDeviceGetGpuInstanceById", gpu_instance_id)
    info = gpu.call("nvmlGpuInstanceGetInfo", handle)
    profile = profiles.get(info.profileId)
    if profile is None:
        raise GpuRefusedError(
            f"GPU instance {gpu_instance_id} has profile {info.profileId}, which the GPU doesn't offer"
        )
    return MigInstance(
        uuid=gpu.call("nvmlDeviceGetUUID", device),
        gpu_instance_id=gpu_instance_id,
        compute_instance_id=gpu.call("nvmlDeviceGetComputeInstanceId", device),
        profile=profile,
        placement=Placement(info.placement.start, info.placement.size),
        compute_slices=_compute_slices(gpu, device, profile),
    )


def _compute_slices(gpu: GpuQuery, device: Any, profile: MigProfile) -> int:
    try:
        return int(gpu.call("nvmlDeviceGetAttributes_v2", device).computeInstanceSliceCount)
    except gpu.api.NVMLError as exc:
        if not is_one_of(gpu.api, exc, _NO_MIG):
            raise
        return profile.compute_slices
