"""A node's files, where the suite can look at them: what the driver leaves there."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

from asyncinotify import Inotify, Mask

from tests.conformance.herald import announced

if TYPE_CHECKING:
    from collections.abc import Iterable
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

_CHANGES = Mask.CREATE | Mask.MOVED_TO | Mask.MOVED_FROM | Mask.DELETE


class NodeFiles:
    """The driver's CDI files and records on one node."""

    def __init__(self, kubelet_root: Path, cdi_dir: Path) -> None:
        self._cdi_dir = cdi_dir
        self._kubelet_root = kubelet_root
        self._state = kubelet_root / "plugins/gpu.nvidia.com"

    @property
    def sockets(self) -> Path:
        """The directory of the driver's service socket."""
        return self._state

    def announced(self, name: str, patience: float) -> AbstractAsyncContextManager[None]:
        """Have the driver's service registered with the kubelet by somebody else (see herald.py)."""
        return announced(self._kubelet_root, name, patience)

    async def service_socket_comes_back(self, patience: float) -> None:
        """Delete the driver's service socket; return when there is one again."""
        socket = self._state / "dra.sock"
        with Inotify() as watch:
            watch.add_watch(self._state, _CHANGES)
            socket.unlink()
            try:
                async with asyncio.timeout(patience):
                    while not socket.is_socket():
                        await watch.get()
            except TimeoutError:
                raise AssertionError(f"there is no socket {socket} again after {patience:g} s") from None

    def left_of(self, claim_uid: str) -> list[str]:
        """Return the files that there are for a claim."""
        records = self._state.glob(f"claims/**/*{claim_uid}*")
        return sorted(str(path) for path in [*self._cdi_dir.glob(f"*{claim_uid}*"), *records])

    def mig_devices(self) -> set[str]:
        """Return the UUIDs of the MIG devices that fake GPUs have, but for those that they have from their start."""
        gpus = self._fake("fake-mig.json").get("gpus", {})
        instances = [one for gpu in gpus.values() for one in gpu["instances"]]
        return {made["uuid"] for one in instances for made in one["compute"]}

    def sharing(self, kind: str) -> dict[str, Any]:
        """Return what was set of fake GPUs, by UUID: `timeSlice`, `computeMode`; or the daemons, by id: `mps`."""
        found = self._fake("fake-sharing.json").get(kind, {})
        return {name: value for name, value in found.items() if value not in (0, "DEFAULT")}

    def _fake(self, name: str) -> dict[str, Any]:
        file = self._state / name
        return json.loads(file.read_bytes()) if file.exists() else {}

    async def until_nothing_is_left(self, claim_uid: str, patience: float) -> None:
        """Wait until the claim is unprepared."""
        with Inotify() as watch:
            for directory in self._watched():
                watch.add_watch(directory, _CHANGES)
            try:
                async with asyncio.timeout(patience):
                    while self.left_of(claim_uid):
                        await watch.get()
            except TimeoutError:
                left = ", ".join(self.left_of(claim_uid))
                raise AssertionError(f"claim {claim_uid} is not unprepared after {patience:g} s: {left}") from None

    def _watched(self) -> Iterable[Path]:
        return [path for path in (self._cdi_dir, self._state / "claims") if path.is_dir()]
