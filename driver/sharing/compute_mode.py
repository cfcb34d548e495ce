"""Compute mode: how many processes may use a GPU at once. MPS wants EXCLUSIVE_PROCESS, so that its server is the one.

The mode is the whole GPU's: on a GPU with MIG devices it is every neighbour's too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from driver.errors import GpuToolError, InvalidValueError, SettingNotSupportedError
from driver.sharing.base import COMPUTE_MODES

if TYPE_CHECKING:
    from driver.sharing.nvidia_smi import NvidiaSmi

_KNOWN = (*COMPUTE_MODES, "EXCLUSIVE_THREAD")  # the last one only in drivers of old
_NONE = ("[N/A]", "N/A")


class ComputeModes:
    """Gets and sets compute modes by nvidia-smi; a `ComputeModePolicy`."""

    def __init__(self, run: NvidiaSmi) -> None:
        self._run = run

    async def get(self, gpu_uuid: str) -> str:
        """Return the mode in force, as `ComputeModePolicy.get`."""
        query = ("--query-gpu=compute_mode", "--format=csv,noheader")
        text = (await self._run(gpu_uuid, "-i", gpu_uuid, *query)).strip()
        if text in _NONE:
            raise SettingNotSupportedError(f"GPU {gpu_uuid}: has no compute mode")
        mode = text.upper()
        if mode not in _KNOWN:
            raise GpuToolError(f"GPU {gpu_uuid}: nvidia-smi {query[0]} gave {text[:80]!r}, no compute mode")
        return mode

    async def set(self, gpu_uuid: str, mode: str) -> None:
        """Set the mode, as `ComputeModePolicy.set`."""
        if mode not in _KNOWN:
            raise InvalidValueError(f"compute mode of GPU {gpu_uuid}", mode, f"one of {', '.join(COMPUTE_MODES)}")
        await self._run(gpu_uuid, "-i", gpu_uuid, "-c", mode)
