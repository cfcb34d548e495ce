"""Waiting for NVML's events on a thread of its own, which does nothing but wait.

The set of events is made and filled on the NVML thread. GPUs that support no events are not monitored,
which is no fault of theirs (H4).
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any

from driver.inventory.base import WHOLE_GPU, Changed, InventoryEvent, Xid
from driver.inventory.nvml_query import address, is_one_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

log = logging.getLogger(__name__)

_SLICE_MS = 250  # how long one wait lasts, and so how long it takes to end
_WANTED = (
    "nvmlEventTypeXidCriticalError",
    "nvmlEventMigConfigChange",
    "nvmlEventTypeGpuUnavailableError",
    "nvmlEventTypeGpuRecoveryAction",
)


class EventListener:
    """One set of events and the thread that waits on it. `post` is called on that thread.

    `tried` are the UUIDs of all GPUs that it knows, `monitored` those in the set. `dead` is set when waiting failed.
    """

    def __init__(self, api: Any, handles: Mapping[str, Any], post: Callable[[InventoryEvent], None]) -> None:
        self._api = api
        self._post = post
        self._stopping = threading.Event()
        self._set = api.nvmlEventSetCreate()
        self._uuids = {address(handle): uuid for uuid, handle in handles.items()}
        self.tried = frozenset(handles)
        self.monitored = frozenset(uuid for uuid, handle in handles.items() if self._register(uuid, handle))
        self.dead = False
        self._thread = threading.Thread(target=self._run, name="nvml-events", daemon=True)
        if self.monitored:
            self._thread.start()

    def stop(self, limit: float) -> bool:
        """End the thread and free the set; False if it did not end within `limit` seconds and must be left alone."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join(limit)
            if self._thread.is_alive():
                return False
        self._free()
        return True

    def _register(self, uuid: str, handle: Any) -> bool:
        wanted = sum(getattr(self._api, name, 0) for name in _WANTED)
        try:
            types = wanted & self._api.nvmlDeviceGetSupportedEventTypes(handle)
            if types:
                self._api.nvmlDeviceRegisterEvents(handle, types, self._set)
        except self._api.NVMLError as exc:
            log.info("GPU %s is not monitored for events: %s", uuid, exc)
            return False
        return bool(types)

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                data = self._api.nvmlEventSetWait_v2(self._set, _SLICE_MS)
            except self._api.NVMLError as exc:
                if is_one_of(self._api, exc, ("NVML_ERROR_TIMEOUT",)):
                    continue
                self._die(str(exc))
                return
            self._post(self._event(data))

    def _die(self, why: str) -> None:
        """Stop at the first error: NVML repeats it at once, for ever, where a GPU is lost (H8)."""
        self.dead = True
        if not self._stopping.is_set():
            log.warning("NVML events ended: %s", why)
            self._post(Changed(why=f"NVML events ended: {why}"))

    def _event(self, data: Any) -> InventoryEvent:
        uuid = self._uuids.get(address(data.device))
        if uuid is None:
            return Changed(why=f"NVML event {data.eventType:#x} ({data.eventData}) on an unknown GPU")
        if data.eventType != self._api.nvmlEventTypeXidCriticalError:
            return Changed(why=f"NVML event {data.eventType:#x} ({data.eventData}) on GPU {uuid}")
        return Xid(
            gpu_uuid=uuid,
            xid=data.eventData,
            gpu_instance_id=_instance(data.gpuInstanceId),
            compute_instance_id=_instance(data.computeInstanceId),
        )

    def _free(self) -> None:
        try:
            self._api.nvmlEventSetFree(self._set)
        except self._api.NVMLError as exc:
            log.debug("nvmlEventSetFree: %s", exc)


def _instance(number: int) -> int | None:
    return None if number == WHOLE_GPU else int(number)
