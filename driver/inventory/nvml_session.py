"""NVML's state within the process: which library is open, who listens to events. Lives on the NVML thread."""

from __future__ import annotations

import logging
import platform
import time
from typing import TYPE_CHECKING, Any

from driver.errors import InventoryError
from driver.inventory.driver_root import LIBRARY, DriverRoot, LibraryFile
from driver.inventory.nvml_events import EventListener
from driver.inventory.nvml_library import NvmlLibrary
from driver.inventory.nvml_query import ends_session
from driver.inventory.nvml_read import gpu_handles, read_gpus

if TYPE_CHECKING:
    from collections.abc import Callable

    from driver.inventory.base import InventoryEvent, Reading
    from driver.inventory.sysfs import Sysfs

log = logging.getLogger(__name__)

_STOP_LIMIT = 2.0  # seconds; several times what a wait for events takes


class NvmlSession:
    """Opens the library when it is first needed, and again when its file changed. All methods on the NVML thread only.

    `post` takes events, on any thread. `listen_pause`, in seconds, lies between two tries to listen to events.
    """

    def __init__(
        self, root: DriverRoot, sysfs: Sysfs, post: Callable[[InventoryEvent], None], *, listen_pause: float
    ) -> None:
        self._root = root
        self._sysfs = sysfs
        self._post = post
        self._library: NvmlLibrary | None = None
        self._known: dict[int, str] = {}
        self._listener: EventListener | None = None
        self._listen_pause = listen_pause
        self._wants_events = False
        self._listened_at = 0.0

    @property
    def is_open(self) -> bool:
        """Whether NVML is initialised."""
        return self._library is not None

    @property
    def monitored(self) -> frozenset[str] | None:
        """The UUIDs of the GPUs whose events arrive; None before it was tried to listen to them."""
        listener = self._listener
        if listener is None and not self._listened_at:
            return None
        return frozenset() if listener is None or listener.dead else listener.monitored

    def read(self) -> Reading:
        """Observe all GPUs, with the library that is there now.

        :raises InventoryError: there is none, it can't be opened, or NVML says nothing.
        """
        library = self._opened(self._root.library())
        try:
            reading = read_gpus(library.api, self._sysfs, self._known)
        except InventoryError:
            self.close()  # to begin anew, rather than to go on with half of it (H6)
            raise
        self._keep_listening(frozenset(gpu.uuid for gpu in reading.gpus))
        return reading

    def use(self, job: Callable[[Any], Any]) -> Any:
        """Call `job(pynvml)`; its NVMLErrors pass through.

        :raises InventoryError: NVML can't be opened, or the job says that it ended: it is closed then, to begin anew.
        """
        library = self._opened(self._root.library())
        try:
            return job(library.api)
        except InventoryError:
            self.close()
            raise
        except library.api.NVMLError as exc:
            if ends_session(library.api, exc):
                self.close()
            raise

    def check(self) -> str | None:
        """Say what changed about the library, and listen to events again where that ended."""
        self._wants_events = True
        file = self._root.library()
        if self._library is not None and (file is None or file != self._library.file):
            return f"the NVML library {'was replaced' if file else 'has gone'}"
        if file is None:
            return None
        was_open = self.is_open
        try:
            self._opened(file)
        except InventoryError as exc:
            log.debug("%s", exc)
            return None
        self._keep_listening(frozenset())
        return None if was_open else "NVML can be used now"

    def close(self) -> None:
        """Shut NVML down."""
        library, self._library = self._library, None
        listener, self._listener = self._listener, None
        self._known.clear()
        if listener is not None and not listener.stop(_STOP_LIMIT):
            log.warning("NVML's event thread does not end; the library is left open beside the next one")
            return
        if library is not None:
            library.close()

    def _opened(self, file: LibraryFile | None) -> NvmlLibrary:
        if self._library is not None and self._library.file == file:
            return self._library
        self.close()
        if file is None:
            raise InventoryError(_why_none(self._root))
        self._library = NvmlLibrary.open(file)
        self._listened_at = 0.0
        log.info("NVML opened: %s", file.path)
        return self._library

    def _keep_listening(self, uuids: frozenset[str]) -> None:
        """Listen to the events of `uuids` at least; again where that ended, but not in a tight loop (H8)."""
        if not self._wants_events or self._library is None:
            return
        listener = self._listener
        if listener is not None and not listener.dead and uuids <= listener.tried:
            return
        now = time.monotonic()
        if self._listened_at and now - self._listened_at < self._listen_pause:
            return
        level = logging.DEBUG if self._listened_at else logging.INFO  # told once per library
        self._listened_at = now
        if self._listener is not None:
            self._listener.stop(_STOP_LIMIT)
        api = self._library.api
        try:
            self._listener = EventListener(api, gpu_handles(api), self._post)
        except api.NVMLError as exc:
            self._listener = None
            log.log(level, "NVML has no events: %s", exc)


def _why_none(root: DriverRoot) -> str:
    unfit = root.unfit_library()
    if unfit is not None:
        return (
            f"{unfit} is no whole library for {platform.machine()} that this process can read: wait if the GPU driver "
            "is being installed, else install it anew"
        )
    return (
        f"{LIBRARY} is not below the driver root {root.path}: is the GPU driver installed? If it is "
        "elsewhere, say so by --driver-root; without GPUs, try fake ones: --gpus h100:8"
    )
