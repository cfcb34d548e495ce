"""What is told, under DCGM's names and in its units, which dashboards and alerts for GPUs are written for. Pure.

Names, types and units follow the counters file and the renderer of NVIDIA's dcgm-exporter (`etc/default-counters.csv`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from driver.model.usage import Usage

_MI, _KI = 1 << 20, 1 << 10


@dataclass(frozen=True, slots=True)
class Series:
    """One metric. `of_part` is told of each MIG device rather than of the GPU that it is a part of."""

    name: str
    kind: str
    help: str
    value: Callable[[Usage], float | None]
    of_part: bool = False


def _over(number: float | None, by: int) -> float | None:
    return None if number is None else number // by


SERIES: Final[tuple[Series, ...]] = (
    Series("DCGM_FI_DEV_GPU_UTIL", "gauge", "GPU utilization (in %).", lambda one: one.utilization, of_part=True),
    Series("DCGM_FI_DEV_MEM_COPY_UTIL", "gauge", "Memory utilization (in %).", lambda one: one.copy_utilization),
    Series("DCGM_FI_DEV_ENC_UTIL", "gauge", "Encoder utilization (in %).", lambda one: one.encoder),
    Series("DCGM_FI_DEV_DEC_UTIL", "gauge", "Decoder utilization (in %).", lambda one: one.decoder),
    Series(
        "DCGM_FI_DEV_FB_TOTAL",
        "gauge",
        "Framebuffer memory (in MiB).",
        lambda one: _over(one.memory_total, _MI),
        of_part=True,
    ),
    Series(
        "DCGM_FI_DEV_FB_USED",
        "gauge",
        "Framebuffer memory used (in MiB).",
        lambda one: _over(one.memory_used, _MI),
        of_part=True,
    ),
    Series(
        "DCGM_FI_DEV_FB_FREE",
        "gauge",
        "Framebuffer memory free (in MiB).",
        lambda one: _over(one.memory_free, _MI),
        of_part=True,
    ),
    Series(
        "DCGM_FI_DEV_FB_RESERVED",
        "gauge",
        "Framebuffer memory that the driver reserves (in MiB).",
        lambda one: _over(one.memory_reserved, _MI),
        of_part=True,
    ),
    Series("DCGM_FI_DEV_POWER_USAGE", "gauge", "Power draw (in W).", lambda one: one.power),
    Series(
        "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION",
        "counter",
        "Energy since the driver was loaded (in mJ).",
        lambda one: one.energy,
    ),
    Series("DCGM_FI_DEV_GPU_TEMP", "gauge", "GPU temperature (in C).", lambda one: one.temperature),
    Series("DCGM_FI_DEV_MEMORY_TEMP", "gauge", "Memory temperature (in C).", lambda one: one.memory_temperature),
    Series("DCGM_FI_DEV_SM_CLOCK", "gauge", "SM clock frequency (in MHz).", lambda one: one.sm_clock),
    Series("DCGM_FI_DEV_MEM_CLOCK", "gauge", "Memory clock frequency (in MHz).", lambda one: one.memory_clock),
    Series(
        "DCGM_FI_DEV_PCIE_TX_THROUGHPUT",
        "gauge",
        "PCIe traffic sent (in KB/s).",
        lambda one: _over(one.pcie_sent, _KI),
    ),
    Series(
        "DCGM_FI_DEV_PCIE_RX_THROUGHPUT",
        "gauge",
        "PCIe traffic received (in KB/s).",
        lambda one: _over(one.pcie_received, _KI),
    ),
    Series("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", "counter", "PCIe retries.", lambda one: one.pcie_replays),
    Series(
        "DCGM_FI_PROF_PCIE_TX_BYTES", "gauge", "PCIe traffic sent (in bytes per second).", lambda one: one.pcie_sent
    ),
    Series(
        "DCGM_FI_PROF_PCIE_RX_BYTES",
        "gauge",
        "PCIe traffic received (in bytes per second).",
        lambda one: one.pcie_received,
    ),
    Series(
        "DCGM_FI_PROF_NVLINK_TX_BYTES",
        "gauge",
        "NVLink traffic sent (in bytes per second).",
        lambda one: one.nvlink_sent,
    ),
    Series(
        "DCGM_FI_PROF_NVLINK_RX_BYTES",
        "gauge",
        "NVLink traffic received (in bytes per second).",
        lambda one: one.nvlink_received,
    ),
    Series(
        "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL",
        "counter",
        "Corrected ECC errors since the last reset.",
        lambda one: one.ecc_corrected,
    ),
    Series(
        "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL",
        "counter",
        "Uncorrected ECC errors since the last reset.",
        lambda one: one.ecc_uncorrected,
    ),
    Series(
        "DCGM_FI_DEV_ECC_SBE_AGG_TOTAL", "counter", "Corrected ECC errors ever.", lambda one: one.ecc_corrected_ever
    ),
    Series(
        "DCGM_FI_DEV_ECC_DBE_AGG_TOTAL", "counter", "Uncorrected ECC errors ever.", lambda one: one.ecc_uncorrected_ever
    ),
    Series(
        "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS",
        "counter",
        "Rows remapped after corrected errors.",
        lambda one: one.rows_corrected,
    ),
    Series(
        "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS",
        "counter",
        "Rows remapped after uncorrected errors.",
        lambda one: one.rows_uncorrected,
    ),
    Series(
        "DCGM_FI_DEV_ROW_REMAP_FAILURE", "gauge", "Whether remapping of rows has failed.", lambda one: one.remap_failed
    ),
    Series(
        "DCGM_FI_PROF_GR_ENGINE_ACTIVE",
        "gauge",
        "Part of time in which the compute or graphics engine was active.",
        lambda one: one.graphics_active,
        of_part=True,
    ),
    Series(
        "DCGM_FI_PROF_SM_ACTIVE",
        "gauge",
        "Part of time in which multiprocessors had work, averaged over all.",
        lambda one: one.sm_active,
        of_part=True,
    ),
    Series(
        "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE",
        "gauge",
        "Part of time in which tensor cores were active.",
        lambda one: one.tensor_active,
        of_part=True,
    ),
    Series(
        "DCGM_FI_PROF_DRAM_ACTIVE",
        "gauge",
        "Part of time in which the memory was read or written.",
        lambda one: one.dram_active,
        of_part=True,
    ),
)
