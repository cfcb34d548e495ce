"""What containers get beside GPUs where the device plugin's config asks for it: GPUDirect Storage, RDMA, GDRCopy, IMEX.

NVIDIA's runtime adds these itself where it is told the devices by a variable; with CDI they are ours to add.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from driver.cdi.spec import READ_ONLY_BIND, ContainerEdits, DeviceNode, Mount
from driver.errors import DeviceNotReadyError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from driver.root import Root

GDS, MOFED, GDRCOPY, IMEX = "gds", "mofed", "gdrcopy", "imex"
_NODES = MappingProxyType(
    {
        GDS: (("/dev", "nvidia-fs"),),
        MOFED: (("/dev/infiniband", "uverbs"), ("/dev/infiniband", "rdma_cm")),
        GDRCOPY: (("/dev", "gdrdrv"),),
    }
)
"""Directories, and how the names of the nodes in them begin."""
_FILES = MappingProxyType({GDS: ("/etc/cufile.json", "/run/udev")})
_CHANNELS = "/dev/nvidia-caps-imex-channels"


class Extras:
    """Looks at a node, at every call anew: kernel modules come and go. What is not there is left out."""

    def __init__(self, root: Root, dev: Root) -> None:
        self._root = root
        self._dev = dev

    def find(
        self, switches: Collection[str], channels: Collection[int] = (), *, required: bool = False
    ) -> ContainerEdits:
        """Return what the switches (`gds`, `mofed`, `gdrcopy`) and IMEX channels add.

        :raises DeviceNotReadyError: a channel is not there, but `required`.
        """
        paths = [path for switch in sorted(switches) for path in self._nodes(switch)]
        paths += self._channels(channels, required=required)
        files = [file for switch in sorted(switches) for file in _FILES.get(switch, ())]
        return ContainerEdits(
            device_nodes=tuple(DeviceNode(path=path, host_path=self._dev.host_path(path)) for path in paths),
            mounts=tuple(
                Mount(host_path=self._root.host_path(file), container_path=file, options=READ_ONLY_BIND)
                for file in files
                if self._root.seen_path(file).exists()
            ),
        )

    def _nodes(self, switch: str) -> Iterator[str]:
        for directory, stem in _NODES[switch]:
            yield from (f"{directory}/{name}" for name in self._dev.names(directory) if name.startswith(stem))

    def _channels(self, channels: Collection[int], *, required: bool) -> Iterator[str]:
        for channel in channels:
            path = f"{_CHANNELS}/channel{channel}"
            if self._dev.seen_path(path).exists():
                yield path
            elif required:
                raise DeviceNotReadyError(
                    f"IMEX channel {channel} is required (imex.required), but {self._dev.host_path(path)} is not there"
                )
