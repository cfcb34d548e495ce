"""Checking the GPUs' health by NVML: an unsupported query costs its fact, a failing one leaves it as it was known."""

from __future__ import annotations

import ctypes
import logging
from typing import TYPE_CHECKING, Any

from driver.errors import InventoryError
from driver.inventory.nvml_links import NO_FABRIC, NO_LINK
from driver.inventory.nvml_query import ABSENT, INVALID_ARGUMENT, GpuQuery, ends_session, is_one_of
from driver.model.health_facts import Fabric, HealthReport, Recovery

if TYPE_CHECKING:
    from collections.abc import Callable

log = logging.getLogger(__name__)

_NO_FIELD = (*ABSENT, INVALID_ARGUMENT)  # drivers say either of a field that they don't know
_RESET_REQUIRED = "NVML_ERROR_RESET_REQUIRED"
_ACTIONS = {
    "NVML_GPU_RECOVERY_ACTION_NONE": Recovery.NONE,
    "NVML_GPU_RECOVERY_ACTION_GPU_RESET": Recovery.RESET,
    "NVML_GPU_RECOVERY_ACTION_NODE_REBOOT": Recovery.REBOOT,
    "NVML_GPU_RECOVERY_ACTION_DRAIN_P2P": Recovery.DRAIN_P2P,
    "NVML_GPU_RECOVERY_ACTION_DRAIN_AND_RESET": Recovery.DRAIN_AND_RESET,
    "NVML_GPU_RECOVERY_ACTION_RECOVER_IMEX_DOMAIN": Recovery.RECOVER_IMEX,
    "NVML_GPU_RECOVERY_ACTION_BUS_RESET": Recovery.BUS_RESET,
    "NVML_GPU_RECOVERY_ACTION_SYSTEM_REBOOT": Recovery.SYSTEM_REBOOT,
}
# Of the fabric's health mask (`nvmlGpuFabricInfo_v2_t`): name, its value for 'there is a problem', what it makes of it.
_MASKS = (
    ("ROUTE_UNHEALTHY", Fabric.FAILED),
    ("ROUTE_RECOVERY", Fabric.FAILED),
    ("ACCESS_TIMEOUT_RECOVERY", Fabric.FAILED),
    ("DEGRADED_BW", Fabric.DEGRADED),
)


def read_health(api: Any) -> dict[str, HealthReport]:
    """Check every GPU that answers; return the reports by UUID.

    :raises InventoryError: NVML's session is over (`__cause__` is the NVMLError).
    """
    reports = {}
    try:
        count = api.nvmlDeviceGetCount()
    except api.NVMLError as exc:
        raise InventoryError(f"NVML can't count the GPUs: {exc}") from exc
    for index in range(count):
        query = GpuQuery(api, None)
        try:
            query.handle = query.call("nvmlDeviceGetHandleByIndex", index)
            uuid = query.ask("nvmlDeviceGetUUID")
        except (api.NVMLError, UnicodeDecodeError):
            continue  # the reading says that it does not answer, and why
        reports[uuid] = _Check(query).report(uuid)
    return reports


class _Check:
    """One GPU's check. What fails is noted under the report's field that it would have filled."""

    def __init__(self, query: GpuQuery) -> None:
        self._query = query
        self._api = query.api
        self._failed: list[str] = []
        self._reset_required = False
        self._numbers: list[int] = []  # of the NVLinks that there are

    def report(self, uuid: str) -> HealthReport:
        """Ask everything."""
        pending, failed = self._try(("remap_pending", "remap_failed"), self._remap) or (None, None)
        temperature, margin = self._try(("temperature", "margin"), self._heat) or (None, None)
        ecc = self._try(("ecc_uncorrected",), self._ecc)
        fabric = self._try(("fabric",), self._fabric)
        active = self._try(("nvlink_active",), self._links)
        errors = self._try(("nvlink_errors",), self._link_errors)
        recovery = self._try(("recovery",), self._recovery)
        if self._failed:
            log.info("GPU %s: health queries failed: %s", uuid, ", ".join(self._failed))
        return HealthReport(
            recovery=Recovery.RESET if self._reset_required and recovery in (None, Recovery.NONE) else recovery,
            remap_pending=pending,
            remap_failed=failed,
            ecc_uncorrected=ecc,
            fabric=fabric,
            nvlink_active=active,
            nvlink_errors=errors,
            temperature=temperature,
            margin=margin,
            failed=tuple(name for name in self._failed if name != "recovery" or not self._reset_required),
        )

    def _try(self, fields: tuple[str, ...], ask: Callable[[], Any]) -> Any:
        try:
            return ask()
        except self._api.NVMLError as exc:
            if ends_session(self._api, exc):
                raise InventoryError(f"NVML ended in a health check: {self._query.asked}: {exc}") from exc
            self._reset_required |= exc.value == getattr(self._api, _RESET_REQUIRED, None)
            log.debug("%s: %s", self._query.asked, exc)
            self._failed += fields
            return None

    def _remap(self) -> tuple[bool, bool] | None:
        """Ask for remapped rows; boards before Ampere retire pages instead."""
        rows = self._query.ask_or(None, "nvmlDeviceGetRemappedRows")
        if rows is not None:
            return bool(rows[2]), bool(rows[3])
        pending = self._query.ask_or(None, "nvmlDeviceGetRetiredPagesPendingStatus")
        return None if pending is None else (pending == self._api.NVML_FEATURE_ENABLED, False)

    def _ecc(self) -> int | None:
        kinds = (self._api.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, self._api.NVML_VOLATILE_ECC)
        count = self._query.ask_or(None, "nvmlDeviceGetTotalEccErrors", *kinds)
        return None if count is None else int(count)

    def _heat(self) -> tuple[int | None, int | None]:
        """Ask how hot it is, and how far from where it slows down: newer boards tell that distance themselves."""
        sensor = self._api.NVML_TEMPERATURE_GPU
        heat = self._query.ask_or(None, "nvmlDeviceGetTemperatureV", sensor)
        if heat is None:
            heat = self._query.ask_or(None, "nvmlDeviceGetTemperature", sensor)
        margin = self._query.ask_or(None, "nvmlDeviceGetMarginTemperature")
        if margin is None and heat is not None:
            slowdown = self._api.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN
            limit = self._query.ask_or(None, "nvmlDeviceGetTemperatureThreshold", slowdown)
            margin = limit - heat if limit else None
        return heat, margin

    def _links(self) -> int | None:
        states = {
            number: self._query.ask_or(None, "nvmlDeviceGetNvLinkState", number, absent=NO_LINK)
            for number in range(self._api.NVML_NVLINK_MAX_LINKS)
        }
        self._numbers = [number for number, state in states.items() if state is not None]
        active = [*states.values()].count(self._api.NVML_FEATURE_ENABLED)
        return active if self._numbers else None

    def _link_errors(self) -> int | None:
        """Add up what links had to recover from and to repeat."""
        counters = (self._api.NVML_NVLINK_ERROR_DL_RECOVERY, self._api.NVML_NVLINK_ERROR_DL_REPLAY)
        found = [
            self._query.ask_or(None, "nvmlDeviceGetNvLinkErrorCounter", number, counter, absent=NO_LINK)
            for number in self._numbers
            for counter in counters
        ]
        known = [int(count) for count in found if count is not None]
        return sum(known) if known else None

    def _fabric(self) -> Fabric | None:
        api = self._api
        info = api.c_nvmlGpuFabricInfo_v2_t()
        if self._query.ask_or(None, "nvmlDeviceGetGpuFabricInfoV", ctypes.byref(info), absent=NO_FABRIC) is None:
            return None
        if info.state == api.NVML_GPU_FABRIC_STATE_NOT_SUPPORTED:
            return None
        if info.state != api.NVML_GPU_FABRIC_STATE_COMPLETED:
            return Fabric.NOT_READY
        return Fabric.FAILED if info.status != api.NVML_SUCCESS else self._routes(info.healthMask)

    def _routes(self, mask: int) -> Fabric:
        prefix = "NVML_GPU_FABRIC_HEALTH_MASK"
        for name, state in _MASKS:
            shift = getattr(self._api, f"{prefix}_SHIFT_{name}", None)
            if shift is None:
                continue
            value = mask >> shift & getattr(self._api, f"{prefix}_WIDTH_{name}")
            if value == getattr(self._api, f"{prefix}_{name}_TRUE"):
                return state
        return Fabric.READY

    def _recovery(self) -> Recovery | None:
        """Ask what the GPU needs; a value that is not known here is taken for a reset."""
        field = getattr(self._api, "NVML_FI_DEV_GET_GPU_RECOVERY_ACTION", None)
        values = None if field is None else self._query.ask_or(None, "nvmlDeviceGetFieldValues", [field])
        if values is None:
            return None
        if values[0].nvmlReturn != self._api.NVML_SUCCESS:
            error = self._api.NVMLError(values[0].nvmlReturn)
            if is_one_of(self._api, error, _NO_FIELD):
                return None
            raise error
        number = int(values[0].value.uiVal)
        known = {getattr(self._api, name, None): action for name, action in _ACTIONS.items()}
        return known.get(number, Recovery.RESET)
