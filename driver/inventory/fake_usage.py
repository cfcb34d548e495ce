"""What fake GPUs do: idle, unless a usage file beside the faults file says otherwise.

```yaml
gpus:
  gpu-3:            # by name, index or UUID; or all
    load: 80        # percent of time; power, temperature, clocks and traffic follow
    memory: 60      # percent of the memory in use; as much as the load if left out
    devices:        # MIG devices, by the device's name without the GPU's (or its UUID)
      mig-1g10gb-19-0: {load: 30, memory: 90}
```
"""

from __future__ import annotations

import logging
import time
import zlib
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from driver.errors import DriverError, InvalidValueError
from driver.file_watch import stamp
from driver.inventory.faults import find_gpu
from driver.model import names
from driver.model.decode import Fields, integer
from driver.model.usage import GpuUsage, Usage
from driver.yaml_file import load_yaml, read_text

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from driver.inventory.faults import GpuFaults
    from driver.model.device import Gpu
    from driver.model.mig import MigInstance, MigState

log = logging.getLogger(__name__)

_ALL = "all"
_QUERIES = {
    "memory": ("memory_total", "memory_used", "memory_free", "memory_reserved"),
    "temperature": ("temperature",),
    "ecc": ("ecc_uncorrected",),
    "row_remap": ("rows_corrected", "rows_uncorrected", "remap_failed"),
    "nvlink": ("nvlink_sent", "nvlink_received"),
}  # of a faults file, and what they cost
_MI = 1 << 20
_RESERVED = 512 * _MI
_IDLE_WATTS, _MOST_WATTS = 70.0, 700.0
_COOL, _WARMTH = 32, 45  # degrees, at rest and at most above
_SM_IDLE, _SM_MOST, _MEMORY_CLOCK = 345, 1980, 2619  # MHz
_TRAFFIC = 20e9  # bytes per second and way at full load


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """How busy a GPU or MIG device is, in percent."""

    load: int = 0
    memory: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuLoad:
    """How busy a GPU is, and MIG devices of it by name or UUID; one that is not named is as busy as the GPU."""

    whole: Load = field(default_factory=Load)
    devices: Mapping[str, Load] = field(default_factory=lambda: MappingProxyType({}))


IDLE = GpuLoad()


class FakeUsage:
    """The use of fake GPUs. The file is read again whenever it is another; a bad one is told and changes nothing."""

    def __init__(
        self, gpus: Sequence[Gpu], file: Path | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._gpus = gpus
        self._file = file
        self._clock = clock
        self._began = clock()
        self._stamp: tuple[int, ...] | None = None
        self._loads: Mapping[str, GpuLoad] = {}

    def of(self, gpu: Gpu, mig: MigState | None) -> GpuUsage:
        """Return what a GPU does now, with the MIG devices that it has at the moment."""
        self._refresh()
        load = self._loads.get(gpu.uuid) or self._loads.get(_ALL) or IDLE
        instances = mig.instances if mig is not None and mig.enabled else ()
        whole = _whole(gpu, load.whole, self._clock() - self._began, partitioned=bool(mig and mig.enabled))
        return GpuUsage(
            whole=whole, mig=MappingProxyType({one.uuid: _of_instance(one, _load_of(one, load)) for one in instances})
        )

    def _refresh(self) -> None:
        found = stamp(self._file) if self._file is not None else None
        if self._file is None or found == self._stamp:
            return
        self._stamp = found
        try:
            self._loads = decode_loads(read_text(self._file), self._gpus, str(self._file)) if found else {}
        except DriverError as exc:
            log.error("ignoring a bad usage file, fake GPUs stay as busy as they were: %s", exc)  # noqa: TRY400


def with_faults(usage: GpuUsage, faults: GpuFaults) -> GpuUsage:
    """Return the use as a GPU with these faults tells it: as hot as its checks say, and without what it can't tell."""
    ills = faults.health
    changes: dict[str, Any] = {"ecc_uncorrected": ills.ecc, "remap_failed": ills.row_remap == "failed"}
    if ills.temperature is not None:
        changes["temperature"] = ills.temperature
    for query in (*faults.not_supported, faults.fails):
        changes.update(dict.fromkeys(_QUERIES.get(query, ())))
    return replace(usage, whole=replace(usage.whole, **changes))


def decode_loads(data: str, gpus: Sequence[Gpu], path: str) -> Mapping[str, GpuLoad]:
    """Decode a usage file; return the loads by UUID.

    :raises InvalidValueError: naming the field.
    """
    value = load_yaml(data, path)
    if value is None:
        return {}
    fields = Fields(value, path, separator=": ")
    table = fields.take("gpus", {})
    fields.done()
    if not isinstance(table, dict):
        raise InvalidValueError(fields.at("gpus"), table, "must be a mapping from a GPU's name, index or UUID")
    at = fields.at("gpus")
    return {_uuid_of(str(key), gpus, at): _gpu_load(Fields(entry, f"{at}.{key}")) for key, entry in table.items()}


def _uuid_of(key: str, gpus: Sequence[Gpu], path: str) -> str:
    return key if key == _ALL else find_gpu(key, gpus, f"{path}.{key}").uuid


def _gpu_load(fields: Fields) -> GpuLoad:
    devices = fields.take("devices", {})
    if not isinstance(devices, dict):
        raise InvalidValueError(fields.at("devices"), devices, "must be a mapping from MIG devices")
    at = fields.at("devices")
    loads = {str(key): _load(Fields(entry, f"{at}.{key}")) for key, entry in devices.items()}
    return GpuLoad(whole=_load(fields), devices=MappingProxyType(loads))


def _load(fields: Fields) -> Load:
    load = integer(fields.take("load", 0), fields.at("load"), 0, 100)
    memory = integer(fields.take("memory", load), fields.at("memory"), 0, 100)
    fields.done()
    return Load(load=load, memory=memory)


def _load_of(instance: MigInstance, load: GpuLoad) -> Load:
    name = names.mig_name("", instance.name, instance.profile.id, instance.placement.start).lstrip("-")
    return load.devices.get(instance.uuid) or load.devices.get(name) or load.whole


def _whole(gpu: Gpu, load: Load, seconds: float, *, partitioned: bool) -> Usage:
    """Return the use of a whole GPU; a partitioned one tells no load, as by NVML."""
    share = load.load / 100
    spread = zlib.crc32(gpu.uuid.encode()) % 7  # no two GPUs are quite the same
    watts = _IDLE_WATTS + (_MOST_WATTS - _IDLE_WATTS) * share + spread
    links = gpu.nvlink.active_links
    active = None if partitioned else share
    return Usage(
        utilization=None if partitioned else load.load,
        copy_utilization=None if partitioned else load.load // 2,
        encoder=0,
        decoder=0,
        **_memory(gpu.memory, load.memory),
        power=watts,
        energy=int(watts * max(0.0, seconds) * 1000),
        temperature=_COOL + spread + round(_WARMTH * share),
        memory_temperature=_COOL + spread + round((_WARMTH + 5) * share),
        sm_clock=_SM_MOST if load.load else _SM_IDLE,
        memory_clock=_MEMORY_CLOCK,
        pcie_sent=_TRAFFIC * share,
        pcie_received=_TRAFFIC * share / 2,
        pcie_replays=0,
        nvlink_sent=_TRAFFIC * share * links if links else None,
        nvlink_received=_TRAFFIC * share * links if links else None,
        ecc_corrected=0,
        ecc_uncorrected=0,
        ecc_corrected_ever=0,
        ecc_uncorrected_ever=0,
        rows_corrected=0,
        rows_uncorrected=0,
        remap_failed=False,
        graphics_active=active,
        sm_active=active,
        tensor_active=None if active is None else active / 2,
        dram_active=None if active is None else active / 2,
    )


def _of_instance(instance: MigInstance, load: Load) -> Usage:
    share = load.load / 100
    return Usage(
        utilization=load.load,
        **_memory(instance.profile.memory, load.memory),
        graphics_active=share,
        sm_active=share,
        tensor_active=share / 2,
        dram_active=share / 2,
    )


def _memory(total: int | None, percent: int) -> dict[str, Any]:
    if total is None:
        return {}
    reserved = min(_RESERVED, total // 16)
    used = (total - reserved) * percent // 100
    return {
        "memory_total": total,
        "memory_used": used,
        "memory_free": total - reserved - used,
        "memory_reserved": reserved,
    }
