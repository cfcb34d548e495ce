"""Hopper's performance counters (NVML's GPM): the only ones that tell a MIG device's load.

A figure is the difference of two samples; NVML owns their memory, so each is given back. GPUs before Hopper say that
they can't.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

_PERCENT, _MI = 0.01, 1 << 20
# What is asked: name here, NVML's constant, factor. Utilizations come in percent, traffic in MiB per second.
_METRICS: tuple[tuple[str, str, float], ...] = (
    ("graphics_active", "NVML_GPM_METRIC_GRAPHICS_UTIL", _PERCENT),
    ("sm_active", "NVML_GPM_METRIC_SM_UTIL", _PERCENT),
    ("tensor_active", "NVML_GPM_METRIC_ANY_TENSOR_UTIL", _PERCENT),
    ("dram_active", "NVML_GPM_METRIC_DRAM_BW_UTIL", _PERCENT),
    ("pcie_sent", "NVML_GPM_METRIC_PCIE_TX_PER_SEC", _MI),
    ("pcie_received", "NVML_GPM_METRIC_PCIE_RX_PER_SEC", _MI),
    ("nvlink_sent", "NVML_GPM_METRIC_NVLINK_TOTAL_TX_PER_SEC", _MI),
    ("nvlink_received", "NVML_GPM_METRIC_NVLINK_TOTAL_RX_PER_SEC", _MI),
)
_OF_THE_WHOLE = ("pcie_sent", "pcie_received", "nvlink_sent", "nvlink_received")


class GpmSamples:
    """The last sample of each GPU and GPU instance, by a key that says which. On the NVML thread only."""

    def __init__(self) -> None:
        self._last: dict[str, Any] = {}
        self._able: dict[str, bool] = {}

    def measure(self, query: Any, key: str, instance: int | None = None) -> dict[str, float]:
        """Return what there was since the sample before, of a whole GPU or a GPU instance; nothing the first time."""
        uuid = key.partition("/")[0]
        if uuid not in self._able:
            support = query.get("nvmlGpmQueryDeviceSupport")
            self._able[uuid] = bool(support is not None and support.isSupportedDevice)
        if not self._able[uuid]:
            return {}
        sample = self._sample(query, instance)
        before, self._last[key] = self._last.pop(key, None), sample
        try:
            return _difference(query, before, sample, whole=instance is None) if before and sample else {}
        finally:
            _free(query, before)

    def keep(self, query: Any, keys: AbstractSet[str]) -> None:
        """Give back the samples of a GPU's instances that are no more."""
        uuids = {key.partition("/")[0] for key in keys}
        for key in [one for one in self._last if one not in keys and one.partition("/")[0] in uuids]:
            _free(query, self._last.pop(key))

    def _sample(self, query: Any, instance: int | None) -> Any:
        sample = query.tried(lambda: query.call("nvmlGpmSampleAlloc"))
        if sample is None:
            return None
        where = () if instance is None else (instance,)
        function = "nvmlGpmSampleGet" if instance is None else "nvmlGpmMigSampleGet"
        if query.get(function, *where, sample) is None:
            _free(query, sample)
            return None
        return sample


def _free(query: Any, sample: Any) -> None:
    if sample is not None:
        query.tried(lambda: query.call("nvmlGpmSampleFree", sample))


def _difference(query: Any, before: Any, sample: Any, *, whole: bool) -> dict[str, float]:
    api = query.api
    wanted = [one for one in _METRICS if hasattr(api, one[1]) and (whole or one[0] not in _OF_THE_WHOLE)]
    ask = api.c_nvmlGpmMetricsGet_t(
        version=api.NVML_GPM_METRICS_GET_VERSION, numMetrics=len(wanted), sample1=before, sample2=sample
    )
    for slot, (_, constant, _) in zip(ask.metrics, wanted, strict=False):
        slot.metricId = getattr(api, constant)
    if query.tried(lambda: query.call("nvmlGpmMetricsGet", ask)) is None:
        return {}
    return {
        name: slot.value * by
        for slot, (name, _, by) in zip(ask.metrics, wanted, strict=False)
        if slot.nvmlReturn == api.NVML_SUCCESS and slot.value == slot.value  # NaN where nothing was counted
    }
