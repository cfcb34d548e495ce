"""Changing MIG through NVML. Every function runs on the NVML thread, and maps NVML's errors to the driver's.

What may pass by itself (in use, not ready) is a `DeviceNotReadyError`, an NVML that has ended an `InventoryError`, a
GPU that is not there any more a `GpuLostError`, and everything else a `MigError`. All or nothing: what was begun and
failed is undone, or the error says what is left.
"""

from __future__ import annotations

import contextlib
import ctypes
from typing import TYPE_CHECKING, Any

from driver.errors import DeviceNotReadyError, DriverError, GpuLostError, InventoryError, MigError
from driver.inventory.mig_rules import check_creation, check_mode, needs_reset
from driver.inventory.nvml_instances import compute_instances, compute_profiles, gpu_instances, offered
from driver.inventory.nvml_mig import mig_devices
from driver.inventory.nvml_query import (
    INVALID_ARGUMENT,
    NO_PERMISSION,
    NOT_FOUND,
    GpuQuery,
    GpuRefusedError,
    ends_session,
    is_one_of,
)
from driver.inventory.nvml_read import mig_of
from driver.model.mig import MigInstance, Placement

if TYPE_CHECKING:
    from collections.abc import Iterator

    from driver.model.mig import MigProfile, MigState

_LOST = "NVML_ERROR_GPU_IS_LOST"
_PASSING = ("NVML_ERROR_IN_USE", "NVML_ERROR_NOT_READY", "NVML_ERROR_TIMEOUT")
_RESET = ("NVML_ERROR_RESET_REQUIRED", "NVML_SUCCESS")  # success, but the mode is as before


def mig_state(api: Any, gpu_uuid: str) -> MigState:
    """Observe MIG of one GPU."""
    with _opened(api, gpu_uuid, "reading MIG") as gpu:
        return _state(gpu, gpu_uuid)


def set_mig_mode(api: Any, gpu_uuid: str, enabled: bool) -> None:
    """Switch MIG mode at once, or leave everything as it was: the pending mode, too (M2)."""
    what = f"switching MIG mode {'on' if enabled else 'off'}"
    with _opened(api, gpu_uuid, what) as gpu:
        if not check_mode(gpu_uuid, _state(gpu, gpu_uuid), enabled):
            return
        failure = _switch(gpu, enabled)
        current, pending = gpu.ask("nvmlDeviceGetMigMode")
        if bool(current) == enabled:
            return
        if bool(pending) == enabled:
            gpu.ask("nvmlDeviceSetMigMode", current)
        if is_one_of(api, failure, _RESET):
            raise needs_reset(gpu_uuid, enabled)
        gpu.asked = "nvmlDeviceSetMigMode"
        raise failure


def create_mig(api: Any, gpu_uuid: str, profile_id: int, placement: Placement) -> MigInstance:
    """Make a GPU instance at exactly this placement and the compute instance that fills it."""
    what = f"creating a MIG device at {placement}"
    with _opened(api, gpu_uuid, what) as gpu:
        profile = check_creation(gpu_uuid, _state(gpu, gpu_uuid), profile_id, placement)
        wanted = api.c_nvmlGpuInstancePlacement_t(placement.start, placement.size)
        gpu_instance = gpu.ask("nvmlDeviceCreateGpuInstanceWithPlacement", profile.id, ctypes.byref(wanted))
        try:
            return _filled(gpu, gpu_instance, profile, placement)
        except (api.NVMLError, GpuRefusedError, UnicodeDecodeError) as exc:
            error = _error(gpu, gpu_uuid, what, exc)
            raise type(error)(f"{error}; {_remains(gpu, gpu_instance, placement)}") from exc


def destroy_mig(api: Any, gpu_uuid: str, placement: Placement) -> bool:
    """Remove the GPU instance at exactly this placement; search GPU instances, as it may be bare (M1)."""
    with _opened(api, gpu_uuid, f"removing the MIG device at {placement}") as gpu:
        for gpu_instance, info in gpu_instances(gpu, offered(gpu)):
            if Placement(info.placement.start, info.placement.size) == placement:
                _remove(gpu, gpu_instance)
                return True
        return False


@contextlib.contextmanager
def _opened(api: Any, gpu_uuid: str, what: str) -> Iterator[GpuQuery]:
    gpu = GpuQuery(api, None)
    try:
        gpu.handle = gpu.call_or(None, "nvmlDeviceGetHandleByUUID", gpu_uuid, absent=(NOT_FOUND, INVALID_ARGUMENT))
        if gpu.handle is None:
            raise GpuLostError(f"{gpu_uuid}: there is no such GPU")
        yield gpu
    except (api.NVMLError, GpuRefusedError, UnicodeDecodeError) as exc:
        raise _error(gpu, gpu_uuid, what, exc) from exc


def _state(gpu: GpuQuery, gpu_uuid: str) -> MigState:
    state = mig_of(gpu)
    if state is None:
        raise MigError(f"{gpu_uuid}: the GPU has no MIG")
    return state


def _switch(gpu: GpuQuery, enabled: bool) -> Any:
    """Switch MIG mode; return NVML's error. It tells some by failing, others by the status of the activation."""
    try:
        return gpu.api.NVMLError(gpu.ask("nvmlDeviceSetMigMode", int(enabled)))
    except gpu.api.NVMLError as exc:
        return exc


def _filled(gpu: GpuQuery, gpu_instance: Any, profile: MigProfile, placement: Placement) -> MigInstance:
    info = gpu.call("nvmlGpuInstanceGetInfo", gpu_instance)
    chosen = _filling_profile(gpu, gpu_instance, profile)
    compute = gpu.call("nvmlGpuInstanceCreateComputeInstance", gpu_instance, chosen)
    filling = gpu.call("nvmlComputeInstanceGetInfo_v2", compute)
    number = filling.id
    return MigInstance(
        uuid=_uuid_of(gpu, filling.device) or _uuid(gpu, info.id, number),
        gpu_instance_id=info.id,
        compute_instance_id=number,
        profile=profile,
        placement=placement,
        compute_slices=profile.compute_slices,
    )


def _filling_profile(gpu: GpuQuery, gpu_instance: Any, profile: MigProfile) -> int:
    """Return the id of the compute instance profile that takes all compute slices, with the most multiprocessors."""
    whole = [one for one in compute_profiles(gpu, gpu_instance) if one.sliceCount == profile.compute_slices]
    if not whole:
        raise GpuRefusedError(f"{profile.name} has no compute instance profile of {profile.compute_slices} slices")
    return int(max(whole, key=lambda one: one.multiprocessorCount).id)


def _uuid_of(gpu: GpuQuery, device: Any) -> str:
    """Return the UUID of the device that a compute instance names; empty if it is no MIG device.

    By the API reference it is the parent, but drivers name the MIG device itself. That spares a walk over all MIG
    devices, which takes seconds on a node where many come and go.
    """
    uuid = str(gpu.call("nvmlDeviceGetUUID", device))
    return uuid if uuid.startswith("MIG-") else ""


def _uuid(gpu: GpuQuery, gpu_instance_id: int, compute_instance_id: int) -> str:
    for device in mig_devices(gpu):
        if (
            gpu.call("nvmlDeviceGetGpuInstanceId", device) == gpu_instance_id
            and gpu.call("nvmlDeviceGetComputeInstanceId", device) == compute_instance_id
        ):
            return str(gpu.call("nvmlDeviceGetUUID", device))
    raise GpuRefusedError(f"no MIG device has GPU instance {gpu_instance_id}, compute instance {compute_instance_id}")


def _remains(gpu: GpuQuery, gpu_instance: Any, placement: Placement) -> str:
    """Undo a creation that failed; say how that went."""
    try:
        _remove(gpu, gpu_instance)
    except gpu.api.NVMLError as exc:
        return f"and its GPU instance at {placement} could not be removed again: {gpu.asked}: {exc}"
    return "its GPU instance was removed again"


def _remove(gpu: GpuQuery, gpu_instance: Any) -> None:
    for compute in tuple(compute_instances(gpu, gpu_instance)):
        gpu.call("nvmlComputeInstanceDestroy", compute)
    gpu.call("nvmlGpuInstanceDestroy", gpu_instance)


def _error(gpu: GpuQuery, gpu_uuid: str, what: str, exc: Any) -> DriverError:
    message = f"{gpu_uuid}: {what} failed: {gpu.asked}: {exc}"
    if not isinstance(exc, gpu.api.NVMLError):
        return MigError(message)
    if ends_session(gpu.api, exc):
        return InventoryError(message)
    if is_one_of(gpu.api, exc, (_LOST,)):
        return GpuLostError(message)
    if is_one_of(gpu.api, exc, _PASSING):
        return DeviceNotReadyError(f"{message}; processes may use it, try again when they have ended")
    if is_one_of(gpu.api, exc, (NO_PERMISSION,)):
        return MigError(f"{message}; run as root with CAP_SYS_ADMIN")
    return MigError(message)
