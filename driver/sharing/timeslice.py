"""Time slices: how long a process keeps a GPU before another has its turn.

`nvidia-smi compute-policy` sets and lists them, since driver 455 on GPUs that can preempt compute work; a Tesla P4
can't (M7). The setting is the GPU's, lasts until the next reboot, and isolates nothing: all processes share memory and
faults.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from driver.errors import InvalidValueError
from driver.sharing.base import TIME_SLICES

if TYPE_CHECKING:
    from driver.sharing.nvidia_smi import NvidiaSmi

# The list is a table for people (`|   0     Timeslice     Default |`), not guaranteed to stay as it is.
_LEVEL = re.compile(rf"time[- ]?slice\b.*?\b({'|'.join(TIME_SLICES)}|[0-3])\b", re.IGNORECASE)


class TimeSlices:
    """Gets and sets time slices by nvidia-smi; a `TimeSlicePolicy`."""

    def __init__(self, run: NvidiaSmi) -> None:
        self._run = run

    async def get(self, gpu_uuid: str) -> int | None:
        """Return the level in force, as `TimeSlicePolicy.get`; None if the list can't be read."""
        return parse_level(await self._run(gpu_uuid, "compute-policy", "-i", gpu_uuid, "--list"))

    async def set(self, gpu_uuid: str, level: int) -> None:
        """Set the level, as `TimeSlicePolicy.set`."""
        if level not in range(len(TIME_SLICES)):
            raise InvalidValueError(f"time slice of GPU {gpu_uuid}", level, f"0 to {len(TIME_SLICES) - 1}")
        await self._run(gpu_uuid, "compute-policy", "-i", gpu_uuid, "--set-timeslice", str(level))


def parse_level(text: str) -> int | None:
    """Return the level that a list of compute policies shows; None if it shows none, or different ones."""
    found = {match[1].upper() for match in _LEVEL.finditer(text)}
    if len(found) != 1:
        return None
    value = found.pop()
    return int(value) if value.isdecimal() else TIME_SLICES.index(value)
