"""Reading from NVML what GPUs and MIG devices do. What isn't supported, or fails, costs that figure only.

Throughputs and Hopper's performance counters (GPM) are differences: a reader remembers the look before. PCIe traffic
is never asked by `nvmlDeviceGetPcieThroughput`, which measures for 20 ms a direction while all other calls wait.
"""

from __future__ import annotations

import time
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from driver.errors import InventoryError
from driver.inventory.nvml_gpm import GpmSamples
from driver.inventory.nvml_mig import mig_devices
from driver.inventory.nvml_query import GpuQuery, ends_session
from driver.inventory.nvml_read import gpu_handles
from driver.model.usage import GpuUsage, Usage

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_KI = 1024
_ALL_LINKS = 0xFFFFFFFF  # the scope of a field value that adds up all NVLinks
_PERCENT = 100.0

# Fields of one batched call: name here, NVML's constant, scope, factor.
_FIELDS: tuple[tuple[str, str, int, int], ...] = (
    ("energy", "NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION", 0, 1),
    ("memory_temperature", "NVML_FI_DEV_MEMORY_TEMP", 0, 1),
    ("ecc_corrected", "NVML_FI_DEV_ECC_SBE_VOL_TOTAL", 0, 1),
    ("ecc_uncorrected", "NVML_FI_DEV_ECC_DBE_VOL_TOTAL", 0, 1),
    ("ecc_corrected_ever", "NVML_FI_DEV_ECC_SBE_AGG_TOTAL", 0, 1),
    ("ecc_uncorrected_ever", "NVML_FI_DEV_ECC_DBE_AGG_TOTAL", 0, 1),
    ("pcie_sent", "NVML_FI_DEV_PCIE_COUNT_TX_BYTES", 0, 1),
    ("pcie_received", "NVML_FI_DEV_PCIE_COUNT_RX_BYTES", 0, 1),
    ("nvlink_sent", "NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX", _ALL_LINKS, _KI),
    ("nvlink_received", "NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX", _ALL_LINKS, _KI),
)
_RATES = ("pcie_sent", "pcie_received", "nvlink_sent", "nvlink_received")


class UsageReader:
    """Reads GPUs one at a time; all calls on the NVML thread. `clock` is in seconds and never goes back.

    What one session of NVML said means nothing to the next, and its samples are not for another library to free.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._library: Any = None
        self._counters: dict[str, tuple[float, dict[str, int]]] = {}
        self._gpm = GpmSamples()

    def gpus(self, api: Any) -> tuple[str, ...]:
        """Return the UUIDs of the GPUs that answer.

        :raises InventoryError: NVML can't say.
        """
        self._begin(api)
        try:
            found = tuple(gpu_handles(api))
        except api.NVMLError as exc:
            raise InventoryError(f"NVML can't count the GPUs: {exc}") from exc
        self._counters = {uuid: one for uuid, one in self._counters.items() if uuid in found}
        return found

    def read(self, api: Any, uuid: str) -> GpuUsage | None:
        """Return what a GPU and its MIG devices do; None if it does not answer.

        :raises InventoryError: NVML's session is over.
        """
        self._begin(api)
        query = _Asked(api)
        try:
            query.handle = api.nvmlDeviceGetHandleByUUID(uuid)
        except api.NVMLError as exc:
            if ends_session(api, exc):
                raise InventoryError(f"NVML ended while {uuid} was looked at: {exc}") from exc
            return None
        whole = self._whole(query, uuid)
        mig, kept = self._mig(query, uuid)
        self._gpm.keep(query, {uuid, *kept})
        return GpuUsage(whole=whole, mig=mig)

    def _begin(self, api: Any) -> None:
        if api.nvmlLib is not self._library:
            self._library, self._counters, self._gpm = api.nvmlLib, {}, GpmSamples()

    def _whole(self, query: _Asked, uuid: str) -> Usage:
        values: dict[str, Any] = {**_memory(query), **_rates_of_use(query), **_state(query), **_rows(query)}
        fields = _fields(query)
        rates = self._rates(uuid, {name: int(fields.pop(name)) for name in _RATES if name in fields})
        gpm = self._gpm.measure(query, uuid)
        return Usage(**{**values, **fields, **gpm, **rates})

    def _mig(self, query: _Asked, uuid: str) -> tuple[Mapping[str, Usage], set[str]]:
        """Return the use of the MIG devices by UUID, and the keys of their GPU instances' samples.

        Compute instances of one GPU instance share its memory, and have one measurement.
        """
        found: dict[str, Usage] = {}
        measured: dict[str, dict[str, float]] = {}
        for device in query.tried(lambda: list(mig_devices(query))) or ():
            name = query.tried(partial(query.call, "nvmlDeviceGetUUID", device))
            instance = query.tried(partial(query.call, "nvmlDeviceGetGpuInstanceId", device))
            if name is None or instance is None:
                continue
            key = f"{uuid}/{instance}"
            if key not in measured:
                measured[key] = self._gpm.measure(query, key, instance)
            found[name] = _of_instance(_memory(query, device), measured[key])
        return MappingProxyType(found), set(measured)

    def _rates(self, uuid: str, counters: dict[str, int]) -> dict[str, float]:
        """Return bytes per second since the look before; a counter that went back says nothing this time."""
        now = self._clock()
        before, was = self._counters.get(uuid, (now, {}))
        self._counters[uuid] = (now, counters)
        seconds = now - before
        if seconds <= 0:
            return {}
        return {
            name: (count - was[name]) / seconds
            for name, count in counters.items()
            if name in was and count >= was[name]
        }


class _Asked(GpuQuery):
    """A GPU whose every failing query means 'not known', but for the end of the session."""

    def __init__(self, api: Any) -> None:
        super().__init__(api, None)

    def tried(self, ask: Callable[[], Any]) -> Any:
        """Return what `ask` does; `None` where NVML fails or its text is no UTF-8.

        :raises InventoryError: the failure ends the session.
        """
        try:
            return ask()
        except self.api.NVMLError as exc:
            if ends_session(self.api, exc):
                raise InventoryError(f"NVML ended while use was read: {self.asked}: {exc}") from exc
        except UnicodeDecodeError:
            pass
        return None

    def get(self, function: str, *arguments: Any) -> Any:
        """Call a function of NVML with the GPU's handle, as `tried`."""
        return self.tried(lambda: self.ask(function, *arguments))


def _of_instance(memory: dict[str, Any], gpm: dict[str, float]) -> Usage:
    active = gpm.get("graphics_active")
    facts: dict[str, Any] = {**memory, **gpm, "utilization": None if active is None else active * _PERCENT}
    return Usage(**facts)


def _memory(query: _Asked, device: Any = None) -> dict[str, Any]:
    """Return the memory of the GPU, or of a MIG device; older libraries count what the driver reserves as used."""
    handle = query.handle if device is None else device
    for version in ((query.api.nvmlMemory_v2,), ()):
        found = query.tried(partial(query.call, "nvmlDeviceGetMemoryInfo", handle, *version))
        if found is not None and found.total:
            facts = {"memory_total": found.total, "memory_used": found.used, "memory_free": found.free}
            return {**facts, "memory_reserved": found.reserved} if version else facts
    return {}


def _rates_of_use(query: _Asked) -> dict[str, float]:
    found: dict[str, float] = {}
    rates = query.get("nvmlDeviceGetUtilizationRates")
    if rates is not None:
        found.update(utilization=rates.gpu, copy_utilization=rates.memory)
    for name, function in (
        ("encoder", "nvmlDeviceGetEncoderUtilization"),
        ("decoder", "nvmlDeviceGetDecoderUtilization"),
    ):
        value = query.get(function)
        if value is not None:
            found[name] = value[0]
    return found


def _state(query: _Asked) -> dict[str, float]:
    api = query.api
    power = query.get("nvmlDeviceGetPowerUsage")
    heat = query.get("nvmlDeviceGetTemperatureV", api.NVML_TEMPERATURE_GPU)
    if heat is None:
        heat = query.get("nvmlDeviceGetTemperature", api.NVML_TEMPERATURE_GPU)
    asked = {
        "power": power / 1000 if power is not None else None,
        "temperature": heat,
        "sm_clock": query.get("nvmlDeviceGetClockInfo", api.NVML_CLOCK_SM),
        "memory_clock": query.get("nvmlDeviceGetClockInfo", api.NVML_CLOCK_MEM),
        "pcie_replays": query.get("nvmlDeviceGetPcieReplayCounter"),
    }
    return {name: value for name, value in asked.items() if value is not None}


def _rows(query: _Asked) -> dict[str, Any]:
    rows = query.get("nvmlDeviceGetRemappedRows")
    if rows is None:
        return {}
    return {"rows_corrected": rows[0], "rows_uncorrected": rows[1], "remap_failed": bool(rows[3])}


def _fields(query: _Asked) -> dict[str, float]:
    """Ask for all field values in one call; each has a result of its own."""
    api = query.api
    wanted = [
        (name, getattr(api, constant), scope, by) for name, constant, scope, by in _FIELDS if hasattr(api, constant)
    ]
    values = query.get("nvmlDeviceGetFieldValues", [(number, scope) for _, number, scope, _ in wanted])
    if values is None:
        return {}
    return {
        name: _number(api, value) * by
        for (name, _, _, by), value in zip(wanted, values, strict=True)
        if value.nvmlReturn == api.NVML_SUCCESS
    }


def _number(api: Any, value: Any) -> Any:
    kinds = {
        api.NVML_VALUE_TYPE_DOUBLE: "dVal",
        api.NVML_VALUE_TYPE_UNSIGNED_INT: "uiVal",
        api.NVML_VALUE_TYPE_UNSIGNED_LONG: "ulVal",
        api.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG: "ullVal",
        api.NVML_VALUE_TYPE_SIGNED_LONG_LONG: "sllVal",
    }
    return getattr(value.value, kinds.get(value.valueType, "ullVal"))
