"""PCI facts that NVML does not have: NUMA node and PCIe root, from sysfs."""

from __future__ import annotations

import logging
import os
import re
from pathlib import Path

log = logging.getLogger(__name__)

_ROOT = re.compile(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}")
_BUS_ID = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")


class Sysfs:
    """Reads below one sysfs mount. Everything missing or unusual is None, never an error (A3)."""

    def __init__(self, root: Path = Path("/sys")) -> None:
        self._root = root
        self._warned: set[str] = set()

    def numa_node(self, bus_id: str) -> int | None:
        """Return the NUMA node of a PCI device (`0000:65:00.0`); the kernel's -1 is 'none'."""
        try:
            node = int((self._device(bus_id) / "numa_node").read_text())
        except (OSError, ValueError):
            return None
        return node if node >= 0 else None

    def pcie_root(self, bus_id: str) -> str | None:
        """Return the PCIe root complex above a PCI device, `pci0000:64`: the first such part of its device path."""
        device = self._device(bus_id)
        try:
            parts = Path(os.path.realpath(device, strict=True)).parts  # Path.resolve: RuntimeError where links loop
        except OSError as exc:
            self._warn(bus_id, f"can't be followed: {exc.strerror or exc}")
            return None
        root = next((part for part in parts if _ROOT.fullmatch(part)), None)
        if root is None:
            self._warn(bus_id, f"leads to {Path(*parts)}, where no part is a PCI root (pci<domain>:<bus>)")
        return root

    def _device(self, bus_id: str) -> Path:
        return self._root / "bus/pci/devices" / (bus_id if _BUS_ID.fullmatch(bus_id) else "no-such-device")

    def _warn(self, bus_id: str, what: str) -> None:
        if bus_id not in self._warned:
            self._warned.add(bus_id)
            log.warning("PCI device %s: %s %s; pcieRoot is left out", bus_id, self._device(bus_id), what)
