"""What GPUs and MIG devices do at a moment: load, memory, power, temperature, traffic. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """One GPU's or MIG device's use. `None` is 'the hardware or driver can't tell', and costs that figure only.

    Utilizations are percents of time, memory is in bytes, traffic in bytes per second since the look before. The
    `…_active` ratios, 0 to 1, come from Hopper's performance counters (GPM), which know MIG devices, too.
    """

    utilization: float | None = None
    copy_utilization: float | None = None  # of the memory bus
    encoder: float | None = None
    decoder: float | None = None
    memory_total: int | None = None
    memory_used: int | None = None
    memory_free: int | None = None
    memory_reserved: int | None = None  # by the driver; part of neither used nor free
    power: float | None = None  # W
    energy: int | None = None  # mJ since the driver was loaded
    temperature: int | None = None  # degrees Celsius
    memory_temperature: int | None = None
    sm_clock: int | None = None  # MHz
    memory_clock: int | None = None
    pcie_sent: float | None = None
    pcie_received: float | None = None
    pcie_replays: int | None = None
    nvlink_sent: float | None = None
    nvlink_received: float | None = None
    ecc_corrected: int | None = None  # since the last reset
    ecc_uncorrected: int | None = None
    ecc_corrected_ever: int | None = None
    ecc_uncorrected_ever: int | None = None
    rows_corrected: int | None = None  # remapped after corrected errors
    rows_uncorrected: int | None = None
    remap_failed: bool | None = None
    graphics_active: float | None = None
    sm_active: float | None = None
    tensor_active: float | None = None
    dram_active: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuUsage:
    """A GPU's use as a whole, and that of each MIG device on it, by the device's UUID."""

    whole: Usage = field(default_factory=Usage)
    mig: Mapping[str, Usage] = field(default_factory=lambda: MappingProxyType({}))
