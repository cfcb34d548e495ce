"""Opaque parameters of claims and classes, `resource.nvidia.com/v1beta1`: the peer's schema, decoded strictly. Pure.

`GpuConfig` is for whole GPUs, `MigDeviceConfig` for MIG devices. Decoding normalizes and validates at once: what comes
out is complete and consistent. What is left out stays None: nothing is set on a GPU that nobody asked for (M7).
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from driver.errors import InvalidValueError
from driver.model import names, quantity
from driver.model.decode import Fields

if TYPE_CHECKING:
    from collections.abc import Mapping

MIN_MEMORY_LIMIT: Final = quantity.MI
"""The smallest memory limit that MPS takes, in bytes."""

_DEVICE_KEY: Final = re.compile(r"\d{1,2}|(GPU|MIG)-[0-9a-f-]{36}", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpaqueConfig:
    """Parameters for this driver as a claim carries them, in its order: class configs first; the later wins."""

    path: str
    from_class: bool
    requests: tuple[str, ...]  # none: all
    parameters: Mapping[str, Any]


class Interval(enum.StrEnum):
    """How long a process keeps the GPU before another has its turn."""

    DEFAULT = "Default"
    SHORT = "Short"
    MEDIUM = "Medium"
    LONG = "Long"

    @property
    def level(self) -> int:
        """The argument of `nvidia-smi compute-policy --set-timeslice`."""
        return list(Interval).index(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeSlicing:
    """Processes take turns. On a MIG device there is no interval to set."""

    interval: Interval | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Mps:
    """Processes run at once under CUDA's Multi-Process Service; limits in bytes."""

    active_thread_percentage: int | None = None
    memory_limit: int | None = None
    memory_limit_by_device: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    multi_user: bool = False


Sharing = TimeSlicing | Mps


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuConfig:
    """Parameters for whole GPUs."""

    sharing: Sharing | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MigDeviceConfig:
    """Parameters for MIG devices."""

    sharing: Sharing | None = None


DeviceConfig = GpuConfig | MigDeviceConfig


def decode(parameters: Mapping[str, Any], path: str) -> DeviceConfig:
    """Return the parameters at `path`, normalized.

    :raises InvalidValueError: names the field, its value, and what is allowed.
    """
    fields = Fields(dict(parameters), path)
    version = fields.take("apiVersion", None)
    if version != names.PARAMETERS_API_VERSION:
        raise InvalidValueError(fields.at("apiVersion"), version, f"must be {names.PARAMETERS_API_VERSION}")
    kind = fields.choice("kind", ("GpuConfig", "MigDeviceConfig"), None)
    whole = kind == "GpuConfig"
    value = fields.take("sharing", None)
    sharing = None if value is None else _sharing(Fields(value, fields.at("sharing")), whole=whole)
    fields.done()
    return GpuConfig(sharing=sharing) if whole else MigDeviceConfig(sharing=sharing)


def _sharing(fields: Fields, *, whole: bool) -> Sharing:
    strategy = fields.choice("strategy", ("TimeSlicing", "MPS"), None)
    slicing = fields.take("timeSlicingConfig", None) if whole else None
    mps = fields.take("mpsConfig", None)
    fields.done()
    if strategy == "MPS":
        _refuse(slicing, fields.at("timeSlicingConfig"), "only allowed with strategy TimeSlicing")
        return Mps() if mps is None else _mps(Fields(mps, fields.at("mpsConfig")))
    _refuse(mps, fields.at("mpsConfig"), "only allowed with strategy MPS")
    if not whole:
        return TimeSlicing()
    return _time_slicing(Fields({} if slicing is None else slicing, fields.at("timeSlicingConfig")))


def _time_slicing(fields: Fields) -> TimeSlicing:
    interval = fields.choice("interval", list(Interval), Interval.DEFAULT)
    fields.done()
    return TimeSlicing(interval=Interval(interval))


def _mps(fields: Fields) -> Mps:
    percentage = fields.take("defaultActiveThreadPercentage", None)
    limit = fields.take("defaultPinnedDeviceMemoryLimit", None)
    by_device = fields.take("defaultPerDevicePinnedMemoryLimit", None)
    multi_user = fields.take("multiUser", False)
    fields.done()
    if percentage is not None and (
        isinstance(percentage, bool) or not isinstance(percentage, int) or not 0 <= percentage <= 100
    ):
        raise InvalidValueError(fields.at("defaultActiveThreadPercentage"), percentage, "a whole number from 0 to 100")
    if not isinstance(multi_user, bool):
        raise InvalidValueError(fields.at("multiUser"), multi_user, "true or false")
    return Mps(
        active_thread_percentage=percentage,
        memory_limit=None if limit is None else _memory(limit, fields.at("defaultPinnedDeviceMemoryLimit")),
        memory_limit_by_device=_by_device(by_device, fields.at("defaultPerDevicePinnedMemoryLimit")),
        multi_user=multi_user,
    )


def _by_device(value: object, path: str) -> Mapping[str, int]:
    if value is None:
        return MappingProxyType({})
    if not isinstance(value, dict):
        raise InvalidValueError(path, value, "a map from the device's index or UUID to a quantity")
    for key in value:
        if not isinstance(key, str) or not _DEVICE_KEY.fullmatch(key):
            raise InvalidValueError(f"{path}[{key}]", key, "a key is a device's index (0) or its UUID (GPU-… or MIG-…)")
    return MappingProxyType({key: _memory(limit, f"{path}[{key}]") for key, limit in value.items()})


def _memory(value: object, path: str) -> int:
    if not isinstance(value, str | int) or isinstance(value, bool):
        raise InvalidValueError(path, value, "a quantity such as 10Gi")
    amount = quantity.parse_bytes(str(value), path)
    if amount < MIN_MEMORY_LIMIT:
        raise InvalidValueError(path, value, "at least 1Mi")
    return amount


def _refuse(value: object, path: str, rule: str) -> None:
    if value is not None:
        raise InvalidValueError(path, value, rule)
