"""Opaque parameters of claims and classes, `resource.nvidia.com/v1beta1`: the peer's schema, decoded strictly. Pure.

`GpuConfig` is for whole GPUs, `MigDeviceConfig` for MIG devices. Decoding normalizes and validates at once: what comes
out is complete and consistent. What is left out stays None: nothing is set on a GPU that nobody asked for (M7).
"""

# ruff: noqa: RUF009 - `parameter` makes a `dataclasses.field`, and is called once

from __future__ import annotations

import enum
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from driver.config import fields as parameters
from driver.config.fields import FLAG, MEMORY, MEMORY_BY_DEVICE, choice, parameter, whole_number
from driver.errors import InvalidValueError
from driver.model import names
from driver.model.decode import Fields

if TYPE_CHECKING:
    from collections.abc import Mapping

KINDS: Final = ("GpuConfig", "MigDeviceConfig")
TIME_SLICING, MPS = STRATEGIES = ("TimeSlicing", "MPS")


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

    interval: Interval | None = parameter(
        "interval",
        choice(Interval),
        "How long a process keeps the GPU before another has its turn; Default if left out.",
        default=None,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Mps:
    """Processes run at once under CUDA's Multi-Process Service; limits in bytes."""

    active_thread_percentage: int | None = parameter(
        "defaultActiveThreadPercentage",
        whole_number(0, 100),
        "The share of the GPU's multiprocessors that each process may use at once.",
        default=None,
    )
    memory_limit: int | None = parameter(
        "defaultPinnedDeviceMemoryLimit",
        MEMORY,
        "What each process may allocate on each device; at least 1Mi.",
        default=None,
    )
    memory_limit_by_device: Mapping[str, int] = parameter(
        "defaultPerDevicePinnedMemoryLimit",
        MEMORY_BY_DEVICE,
        "The same for single devices, by their index in the claim or their UUID; goes before the limit for all.",
        default_factory=lambda: MappingProxyType({}),
    )
    multi_user: bool = parameter(
        "multiUser",
        FLAG,
        "Serve the processes of all users with one MPS server, which then runs them all as its own user.",
        default=False,
    )


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


def decode(content: Mapping[str, Any], path: str) -> DeviceConfig:
    """Return the parameters at `path`, normalized.

    :raises InvalidValueError: names the field, its value, and what is allowed.
    """
    fields = Fields(dict(content), path)
    version = fields.take("apiVersion", None)
    if version != names.PARAMETERS_API_VERSION:
        raise InvalidValueError(fields.at("apiVersion"), version, f"must be {names.PARAMETERS_API_VERSION}")
    whole = fields.choice("kind", KINDS, None) == GpuConfig.__name__
    value = fields.take("sharing", None)
    sharing = None if value is None else _sharing(Fields(value, fields.at("sharing")), whole=whole)
    fields.done()
    return GpuConfig(sharing=sharing) if whole else MigDeviceConfig(sharing=sharing)


def _sharing(fields: Fields, *, whole: bool) -> Sharing:
    strategy = fields.choice("strategy", STRATEGIES, None)
    slicing = fields.take("timeSlicingConfig", None) if whole else None
    mps = fields.take("mpsConfig", None)
    fields.done()
    if strategy == MPS:
        _refuse(slicing, fields.at("timeSlicingConfig"), "only allowed with strategy TimeSlicing")
        return parameters.decode(Mps, Fields({} if mps is None else mps, fields.at("mpsConfig")))
    _refuse(mps, fields.at("mpsConfig"), "only allowed with strategy MPS")
    if not whole:
        return TimeSlicing()
    found = parameters.decode(TimeSlicing, Fields({} if slicing is None else slicing, fields.at("timeSlicingConfig")))
    return found if found.interval is not None else TimeSlicing(interval=Interval.DEFAULT)


def _refuse(value: object, path: str, rule: str) -> None:
    if value is not None:
        raise InvalidValueError(path, value, rule)
