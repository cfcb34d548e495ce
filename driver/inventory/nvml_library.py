"""nvidia-ml-py, bound to the library file we want, and to another one later. For the NVML thread only.

nvidia-ml-py loads `libnvidia-ml.so.1` by its bare name, once per process, and caches function pointers. The file under
the driver root is loaded here by path and put in its place.
"""

from __future__ import annotations

import ctypes
import logging
from typing import TYPE_CHECKING, Any

from driver.errors import InventoryError

if TYPE_CHECKING:
    from driver.inventory.driver_root import LibraryFile

log = logging.getLogger(__name__)

_loads = 0  # of this process


class NvmlLibrary:
    """An open NVML: `api` is the module `pynvml`, whose functions call the library at `file`."""

    def __init__(self, api: Any, file: LibraryFile) -> None:
        self.api = api
        self.file = file

    @classmethod
    def open(cls, file: LibraryFile) -> NvmlLibrary:
        """Load `file` and initialise NVML.

        :raises InventoryError: it can't be loaded, or the driver refuses.
        """
        import pynvml  # not before NVML is wanted: it costs 4 MiB

        _bind(pynvml, file)
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as exc:
            raise InventoryError(f"NVML ({file.path}) can't be initialised: {exc}{_hint(pynvml, exc)}") from exc
        return cls(pynvml, file)

    def close(self) -> None:
        """Shut NVML down; a failure is logged only, as nothing could be done about it."""
        try:
            self.api.nvmlShutdown()
        except self.api.NVMLError as exc:
            log.warning("NVML (%s) did not shut down: %s", self.file.path, exc)


def _bind(pynvml: Any, file: LibraryFile) -> None:
    """Make nvidia-ml-py call `file`.

    The dynamic linker knows loaded files by path and by inode. A file replaced at the same path has a new inode, but
    the path would still name the old file: each load spells it anew (`/usr/lib/./././libnvidia-ml.so.1`). The old
    library stays mapped, as a thread may still be inside.
    """
    global _loads  # noqa: PLW0603 - nvidia-ml-py's own state is global, too
    _loads += 1
    path = f"{file.path.parent}{'/.' * _loads}/{file.path.name}"
    try:
        library = ctypes.CDLL(path)
    except OSError as exc:
        raise InventoryError(f"{file.path} can't be loaded: {exc}") from exc
    with pynvml.libLoadLock:
        pynvml.nvmlLib = library
        pynvml._nvmlGetFunctionPointer_cache.clear()  # it has no other way
        pynvml._nvmlLib_refcount = 0


def _hint(pynvml: Any, exc: Any) -> str:
    hints = {
        pynvml.NVML_ERROR_DRIVER_NOT_LOADED: "load the nvidia kernel module, and let this process see /dev/nvidiactl",
        pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: "the kernel module is of another version: reload it, or reboot",
        pynvml.NVML_ERROR_NO_PERMISSION: "this process may not open /dev/nvidiactl and /dev/nvidia<minor>",
    }
    hint = hints.get(exc.value)
    return f"; {hint}" if hint else ""
