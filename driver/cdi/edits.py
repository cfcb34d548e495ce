"""What a device needs in a container: the seam between real driver roots and fake GPUs; and the real one."""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol

from driver.cdi import hooks, libraries
from driver.cdi.nodes import DeviceNodes
from driver.cdi.spec import READ_ONLY_BIND, ContainerEdits, Mount
from driver.errors import DeviceNotReadyError
from driver.model.device import FullGpu, MigDevice
from driver.root import Root

if TYPE_CHECKING:
    from collections.abc import Iterable

    from driver.cdi.libraries import DriverFiles
    from driver.cdi.spec import Hook
    from driver.model.device import Device

_ENV = MappingProxyType({"NVIDIA_VISIBLE_DEVICES": "void"})  # NVIDIA's runtime, if it is there, adds nothing of its own
_SOCKETS = ("/run/nvidia-persistenced/socket", "/run/nvidia-fabricmanager/socket")
_SOCKET_OPTIONS = (*READ_ONLY_BIND, "noexec")
_SETTLED_NS = 2_000_000_000  # longer than a search takes and than a file system's clock ticks

log = logging.getLogger(__name__)


class EditsSource(Protocol):
    """Answers what containers get. Looks at the node as it is now; an answer that is not whole is never given (C2)."""

    def common(self) -> ContainerEdits:
        """Return what every container with any of the devices gets, once.

        :raises DeviceNotReadyError: the driver's files or device nodes are not there (yet).
        """
        ...

    def device(self, device: Device) -> ContainerEdits:
        """Return what one device adds; never empty.

        :raises DeviceNotReadyError: its device nodes are not there (yet).
        :raises ClaimRefusedError: a device of this kind can't be handed out.
        """
        ...


class NvidiaEdits:
    """The edits of real GPUs, from a driver root and a device root.

    `driver_root` and `dev_root` (by default the same) are as this process sees them, `host_driver_root` and
    `host_dev_root` as the host names them where that differs. `hook` is the host's path of nvidia-cdi-hook or
    nvidia-ctk where it is not under the driver root.

    Device nodes are looked at for each answer. Files are searched again only when one of their directories or the
    loaded driver changed: that costs a stat for each directory.
    """

    def __init__(
        self,
        driver_root: Path = Path("/"),
        dev_root: Path | None = None,
        *,
        host_driver_root: Path | None = None,
        host_dev_root: Path | None = None,
        proc_root: Path = Path("/proc"),
        sys_root: Path = Path("/sys"),
        hook: Path | None = None,
    ) -> None:
        self._root = Root(driver_root, host_driver_root)
        dev = Root(dev_root or driver_root, host_dev_root or (host_driver_root if dev_root is None else None))
        self._nodes = DeviceNodes(dev, proc_root, sys_root)
        self._proc = proc_root
        self._hook = hook
        self._cache: _Found | None = None

    def common(self) -> ContainerEdits:
        """Return what every container with a GPU gets.

        :raises DeviceNotReadyError: the driver's files or device nodes are not there (yet).
        """
        nodes = self._nodes.common()
        found = self._found()
        return ContainerEdits(env=_ENV, device_nodes=nodes, mounts=(*found.mounts, *self._sockets()), hooks=found.hooks)

    def device(self, device: Device) -> ContainerEdits:
        """Return a device's nodes.

        :raises DeviceNotReadyError: they are not there (yet).
        :raises ClaimRefusedError: the GPU can't have any.
        """
        if isinstance(device, FullGpu):
            return ContainerEdits(device_nodes=self._nodes.gpu(device.gpu))
        if isinstance(device, MigDevice):
            return ContainerEdits(device_nodes=self._nodes.mig(device))
        raise DeviceNotReadyError(f"{device.name}: the MIG device was not made yet")

    def _sockets(self) -> tuple[Mount, ...]:
        return tuple(
            Mount(host_path=self._root.host_path(path), container_path=path, options=_SOCKET_OPTIONS)
            for path in _SOCKETS
            if self._root.seen_path(path).exists()
        )

    def _found(self) -> _Found:
        loaded = libraries.loaded_version(self._proc)
        if self._cache is None or not self._cache.holds(loaded):
            self._cache = None
            self._cache = self._search(loaded)
        return self._cache

    def _search(self, loaded: str | None) -> _Found:
        files = libraries.find_driver_files(self._root, loaded)
        program = hooks.find_program(self._root, self._hook)
        log.info(
            "found GPU driver %s under %s: %d files, hooks by %s",
            files.version,
            self._root,
            len(files.mounts),
            program.host_path if program else "nobody",
        )
        watched = (*files.watched, *hooks.watched(self._root))
        if program is None:
            return _Found(loaded, watched, (*files.mounts, *_link_mounts(files)), ())
        return _Found(loaded, watched, files.mounts, hooks.hooks_for(program, files))


class _Found:
    """What a search found, and by what to tell that it still holds."""

    def __init__(
        self,
        loaded: str | None,
        watched: Iterable[Path],
        mounts: tuple[Mount, ...],
        found_hooks: tuple[Hook, ...],
    ) -> None:
        self.mounts = mounts
        self.hooks = found_hooks
        self._loaded = loaded
        self._stamps = {path: _stamp(path) for path in map(str, watched)}
        newest = max((stamp[1] for stamp in self._stamps.values() if stamp), default=0)
        self._settled = time.time_ns() - newest > _SETTLED_NS

    def holds(self, loaded: str | None) -> bool:
        """Say whether a new search would find the same. What changed just now may still be changing: never cached."""
        return (
            self._settled
            and self._loaded == loaded
            and all(_stamp(path) == stamp for path, stamp in self._stamps.items())
        )


def _stamp(path: str) -> tuple[int, int] | None:
    try:
        status = os.stat(path)  # noqa: PTH116 (some thirty of them for each claim)
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns


def _link_mounts(files: DriverFiles) -> tuple[Mount, ...]:
    """Mount the libraries under their further names too: without hooks, nobody makes links in the container."""
    sources = {mount.container_path: mount.host_path for mount in files.mounts}
    return tuple(Mount(host_path=sources[target], container_path=link) for link, target in files.links)
