"""GPU instances and compute instances through NVML: what is offered, and what exists, bare GPU instances included."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

from driver.inventory.nvml_query import FUNCTION_NOT_FOUND, INVALID_ARGUMENT, NOT_SUPPORTED, GpuQuery, is_one_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

NO_PROFILE = (NOT_SUPPORTED, FUNCTION_NOT_FOUND, INVALID_ARGUMENT)
_NO_VERSION_2 = (FUNCTION_NOT_FOUND, "NVML_ERROR_ARGUMENT_VERSION_MISMATCH")


def profile_info(gpu: GpuQuery, index: int) -> Any:
    """Return what NVML says about a GPU instance profile; None if this GPU doesn't offer it.

    :raises pynvml.NVMLError: any other failure.
    """
    return _info(gpu, "nvmlDeviceGetGpuInstanceProfileInfo", gpu.handle, index)


def offered(gpu: GpuQuery) -> Iterator[tuple[int, int]]:
    """Yield the id of each GPU instance profile, and how many instances there can be."""
    for index in range(gpu.api.NVML_GPU_INSTANCE_PROFILE_COUNT):
        info = profile_info(gpu, index)
        if info is not None:
            yield info.id, info.instanceCount


def gpu_instances(gpu: GpuQuery, profiles: Iterable[tuple[int, int]]) -> Iterator[tuple[Any, Any]]:
    """Yield handle and info of each GPU instance of these profiles (id, at most); none where MIG mode is off.

    :raises pynvml.NVMLError: any other failure.
    """
    for profile_id, most in profiles:
        found = (gpu.api.c_nvmlGpuInstance_t * most)()
        count = ctypes.c_uint(0)
        gpu.ask_or(None, "nvmlDeviceGetGpuInstances", profile_id, found, ctypes.byref(count), absent=NO_PROFILE)
        for handle in found[: count.value]:
            yield handle, gpu.call("nvmlGpuInstanceGetInfo", handle)


def compute_profiles(gpu: GpuQuery, gpu_instance: Any) -> Iterator[Any]:
    """Yield what NVML says about each compute instance profile of a GPU instance."""
    for index in range(gpu.api.NVML_COMPUTE_INSTANCE_PROFILE_COUNT):
        shared = gpu.api.NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED
        info = _info(gpu, "nvmlGpuInstanceGetComputeInstanceProfileInfo", gpu_instance, index, shared)
        if info is not None:
            yield info


def compute_instances(gpu: GpuQuery, gpu_instance: Any) -> Iterator[Any]:
    """Yield the handle of each compute instance of a GPU instance.

    :raises pynvml.NVMLError: NVML fails.
    """
    for profile in compute_profiles(gpu, gpu_instance):
        found = (gpu.api.c_nvmlComputeInstance_t * profile.instanceCount)()
        count = ctypes.c_uint(0)
        gpu.call("nvmlGpuInstanceGetComputeInstances", gpu_instance, profile.id, found, ctypes.byref(count))
        yield from found[: count.value]


def _info(gpu: GpuQuery, function: str, *arguments: Any) -> Any:
    """Ask about a profile the new way or the old; None if there is no such profile here."""
    try:
        return gpu.call_or(None, function, *arguments, 2, absent=(NOT_SUPPORTED, INVALID_ARGUMENT))
    except gpu.api.NVMLError as exc:
        if not is_one_of(gpu.api, exc, _NO_VERSION_2):
            raise
    return gpu.call_or(None, function, *arguments, 1, absent=NO_PROFILE)
