"""What labels say of the machine around the GPUs: its model, and whether a GPU is made for display. From sysfs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from driver.labels.options import COMPUTE, GRAPHICS, UNKNOWN_MACHINE, UNKNOWN_MODE
from driver.labels.vgpu import host_driver

if TYPE_CHECKING:
    from collections.abc import Iterable

    from driver.labels.vgpu import HostDriver
    from driver.model.device import Gpu

_MODES = {"0x030000": GRAPHICS, "0x030200": COMPUTE}
"""PCI classes: a VGA controller, and a 3D controller (which drives no display)."""


class Host:
    """Reads below one sysfs mount. What is missing or unusual is unknown, never an error.

    Fake GPUs are on no PCI bus; they are compute GPUs, as every profile's board is.
    """

    def __init__(self, sys_root: Path = Path("/sys"), *, fake: bool = False) -> None:
        self._root = sys_root
        self._fake = fake

    def machine(self, file: str = "") -> str:
        """Return the machine's model from a file, by default DMI's `product_name`."""
        path = Path(file) if file else self._root / "class/dmi/id/product_name"
        return _read(path) or UNKNOWN_MACHINE

    def modes(self, gpus: Iterable[Gpu]) -> dict[str, str]:
        """Return what GPUs are for, by UUID."""
        return {gpu.uuid: COMPUTE if self._fake else self._mode(gpu) for gpu in gpus}

    def hypervisor_driver(self, gpus: Iterable[Gpu]) -> HostDriver | None:
        """Return what the first virtual GPU tells of the hypervisor's driver; None without one, or without the rights.

        Only a privileged process sees that far into a device's PCI configuration.
        """
        paths = (self._device(gpu) / "config" for gpu in gpus if not self._fake and _is_pci(gpu))
        return next((found for path in paths if (found := host_driver(_read_bytes(path)))), None)

    def _device(self, gpu: Gpu) -> Path:
        return self._root / "bus/pci/devices" / str(gpu.pci_bus_id)

    def _mode(self, gpu: Gpu) -> str:
        if not _is_pci(gpu):
            return UNKNOWN_MODE
        return _MODES.get(_read(self._device(gpu) / "class"), UNKNOWN_MODE)


def _is_pci(gpu: Gpu) -> bool:
    return bool(gpu.pci_bus_id) and "/" not in str(gpu.pci_bus_id)


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except (OSError, ValueError):
        return ""


def _read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except (OSError, ValueError):
        return b""
