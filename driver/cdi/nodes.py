"""Device nodes: those of a GPU, of a MIG device, and those that all containers share."""

from __future__ import annotations

import logging
import os
import stat
from typing import TYPE_CHECKING

from driver.cdi.spec import DeviceNode
from driver.errors import ClaimRefusedError, DeviceNotReadyError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from driver.model.device import Gpu, MigDevice
    from driver.root import Root

CONTROL_NODE = "/dev/nvidiactl"
_OPTIONAL_NODES = ("/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset")
_UVM_MINORS = {"/dev/nvidia-uvm": 0, "/dev/nvidia-uvm-tools": 1}

log = logging.getLogger(__name__)


class DeviceNodes:
    """Looks for device nodes under a root, at every call anew: they come and go with the driver (C2).

    `stat_node` is the lowest seam, `os.stat` by default.
    """

    def __init__(
        self, root: Root, proc: Path, sys: Path, *, stat_node: Callable[[Path], os.stat_result] = os.stat
    ) -> None:
        self._root = root
        self._proc = proc
        self._sys = sys
        self._stat = stat_node

    def common(self) -> tuple[DeviceNode, ...]:
        """Return the nodes that every container needs.

        The UVM nodes are made late, by whoever uses CUDA first: where the module is loaded they are given by number.

        :raises DeviceNotReadyError: the driver has not made its control node.
        """
        nodes = [self.required(CONTROL_NODE)]
        for path in _OPTIONAL_NODES:
            node = self.optional(path) or self._uvm_by_number(path)
            if node is not None:
                nodes.append(node)
        return tuple(nodes)

    def gpu(self, gpu: Gpu) -> tuple[DeviceNode, ...]:
        """Return a full GPU's own node, and its display nodes where it has them.

        :raises DeviceNotReadyError: `/dev/nvidia<minor>` is not there.
        :raises ClaimRefusedError: the GPU has no minor number (WSL), so there is no node to hand out.
        """
        own = self.required(_node_of(gpu))
        display = (self.optional(path) for path in self._display_paths(gpu.pci_bus_id))
        return (own, *(node for node in display if node is not None))

    def mig(self, device: MigDevice) -> tuple[DeviceNode, ...]:
        """Return the parent's node and the capability nodes of the GPU instance and the compute instance.

        :raises DeviceNotReadyError: the parent's node or the capabilities are not there.
        :raises ClaimRefusedError: the parent has no minor number.
        """
        gpu, instance = device.gpu, device.instance
        parent = self.required(_node_of(gpu))
        gpu_instance = f"gpu{gpu.minor}/gi{instance.gpu_instance_id}"
        compute_instance = f"{gpu_instance}/ci{instance.compute_instance_id}"
        return (parent, self._capability(f"{gpu_instance}/access"), self._capability(f"{compute_instance}/access"))

    def required(self, path: str) -> DeviceNode:
        """Return a node that must be there.

        :raises DeviceNotReadyError: it is not, or is no character device.
        """
        node = self.optional(path)
        if node is None:
            raise DeviceNotReadyError(
                f"the device node {self._root.host_path(path)} is not there (yet); is the GPU driver loaded,"
                " and is the device root the right one?"
            )
        return node

    def optional(self, path: str) -> DeviceNode | None:
        """Return a node, or None where it is not there."""
        try:
            status = self._stat(self._root.seen_path(path))
        except OSError:
            return None
        if not stat.S_ISCHR(status.st_mode):
            log.warning("%s is no character device: left out", self._root.host_path(path))
            return None
        return DeviceNode(
            path=path,
            host_path=self._root.host_path(path),
            type="c",
            major=os.major(status.st_rdev),
            minor=os.minor(status.st_rdev),
            file_mode=stat.S_IMODE(status.st_mode),
            gid=status.st_gid or None,
        )

    def _display_paths(self, pci_bus_id: str | None) -> list[str]:
        if pci_bus_id is None:
            return []
        try:
            folder = self._sys / "bus/pci/devices" / pci_bus_id / "drm"
            names = sorted(path.name for path in folder.iterdir())
        except OSError:
            return self._display_paths_by_link(pci_bus_id)
        return [f"/dev/dri/{name}" for name in names if name.startswith(("card", "renderD"))]

    def _display_paths_by_link(self, pci_bus_id: str) -> list[str]:
        links = (f"/dev/dri/by-path/pci-{pci_bus_id}-{kind}" for kind in ("card", "render"))
        return [path for link in links if (path := self._root.resolve(link)) is not None]

    def _capability(self, name: str) -> DeviceNode:
        minor = _find_minor(self._read("driver/nvidia-caps/mig-minors"), name)
        if minor is None:
            raise DeviceNotReadyError(f"{self._proc}/driver/nvidia-caps/mig-minors does not list {name} (yet)")
        path = f"/dev/nvidia-caps/nvidia-cap{minor}"
        node = self.optional(path) or self._by_number(path, "nvidia-caps", minor, 0o444)
        if node is None:
            raise DeviceNotReadyError(
                f"the device node {self._root.host_path(path)} is not there (yet), and {self._proc}/devices"
                " does not list nvidia-caps"
            )
        return node

    def _uvm_by_number(self, path: str) -> DeviceNode | None:
        minor = _UVM_MINORS.get(path)
        return None if minor is None else self._by_number(path, "nvidia-uvm", minor, 0o666)

    def _by_number(self, path: str, driver: str, minor: int, mode: int) -> DeviceNode | None:
        """Return a node that is not there but can be made: the runtime makes it by its numbers."""
        major = _find_major(self._read("devices"), driver)
        if major is None:
            return None
        return DeviceNode(path=path, type="c", major=major, minor=minor, file_mode=mode)

    def _read(self, name: str) -> str:
        try:
            return (self._proc / name).read_text(errors="replace")
        except OSError:
            return ""


def _node_of(gpu: Gpu) -> str:
    if gpu.minor is None:
        raise ClaimRefusedError(f"{gpu.name} has no minor number, so it has no device node to hand out")
    return f"/dev/nvidia{gpu.minor}"


def _find_minor(text: str, name: str) -> int | None:
    """Find a line such as `gpu0/gi1/ci0/access 13`."""
    for line in text.splitlines():
        key, _, value = line.partition(" ")
        if key == name and value.strip().isdigit():
            return int(value)
    return None


def _find_major(text: str, driver: str) -> int | None:
    """Find a character device's major in /proc/devices, lines such as `506 nvidia-caps`."""
    characters = text.partition("Block devices:")[0]
    for line in characters.splitlines():
        major, _, name = line.strip().partition(" ")
        if name == driver and major.isdigit():
            return int(major)
    return None
