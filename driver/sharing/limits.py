"""From the parameters of a claim to what MPS takes: limits by UUID, in whole MiB. Pure.

MPS enforces its memory limit when a client allocates: it counts what the CUDA driver allocates for that process, its
context included. It is a limit for each process and no reservation: two processes of one container may allocate twice
as much, and together clients may run out of memory before one reaches its limit. The thread percentage limits on how
many multiprocessors a client's kernels run; it reserves none. A container can lower its own limits, by the variables
that `client_env` sets, and can't raise them above the daemon's.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from driver.errors import InvalidValueError
from driver.model import quantity
from driver.sharing.base import MpsSpec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from driver.config.parameters import Mps

MEMORY_LIMIT_VARIABLE = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
THREADS_VARIABLE = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"


def mps_spec(parameters: Mps, devices: Sequence[str], path: str = "mpsConfig") -> MpsSpec:
    """Return what a daemon for `devices` (UUIDs, in the claim's order) has to do; `path` is where the parameters are.

    :raises InvalidValueError: a limit names a device that is not among them, or one twice.
    """
    default = parameters.memory_limit
    limits = {} if default is None else dict.fromkeys(devices, default)
    named: dict[str, str] = {}
    for key, limit in parameters.memory_limit_by_device.items():
        field = f"{path}.defaultPerDevicePinnedMemoryLimit[{key}]"
        device = _device(key, devices, field)
        if device in named:
            raise InvalidValueError(
                field, key, f"names the same device as key {named[device]!r}; leave out one of them"
            )
        named[device] = key
        limits[device] = limit
    return MpsSpec(
        devices=tuple(devices),
        active_thread_percentage=parameters.active_thread_percentage,
        memory_limits=MappingProxyType({device: limits[device] for device in devices if device in limits}),
        multi_user=parameters.multi_user,
    )


def whole_mib(size: int) -> str:
    """Render a limit in bytes as MPS reads it, rounded down to whole MiB: `10240M`.

    :raises InvalidValueError: it is below 1 MiB, and 0 would be no limit at all.
    """
    if size < quantity.MI:
        raise InvalidValueError("memory limit", size, "at least 1Mi")
    return f"{size // quantity.MI}M"


def client_env(memory_limit: int | None, percentage: int | None = None) -> dict[str, str]:
    """Return the variables that limit the CUDA processes of a container that has a share; the limit in bytes.

    The daemon of shares serves one GPU, so to its clients that is device 0.
    """
    env: dict[str, str] = {}
    if memory_limit is not None:
        env[MEMORY_LIMIT_VARIABLE] = f"0={whole_mib(memory_limit)}"
    if percentage is not None:
        env[THREADS_VARIABLE] = str(percentage)
    return env


def control_commands(spec: MpsSpec) -> tuple[str, ...]:
    """Return what to tell a control daemon before its first client comes: later it would change nothing for that one.

    Devices are named by UUID: an index would depend on how the daemon counts.
    """
    commands = []
    if spec.active_thread_percentage is not None:
        commands.append(f"set_default_active_thread_percentage {spec.active_thread_percentage}")
    commands += [
        f"set_default_device_pinned_mem_limit {uuid} {whole_mib(size)}" for uuid, size in spec.memory_limits.items()
    ]
    return tuple(commands)


def _device(key: str, devices: Sequence[str], path: str) -> str:
    if key in devices:
        return key
    if key.isdecimal() and int(key) < len(devices):
        return devices[int(key)]
    raise InvalidValueError(path, key, f"an index below {len(devices)} or one of {', '.join(devices)}")
