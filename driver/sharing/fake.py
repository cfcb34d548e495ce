"""Sharing on fake GPUs: nothing runs, everything is remembered, in one file, so that a new agent finds it again."""

from __future__ import annotations

import json
import os
import shutil
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from driver import files
from driver.errors import SettingNotSupportedError
from driver.file_watch import stamp
from driver.model import names
from driver.model.json_object import parse_json
from driver.sharing.base import COMPUTE_MODES, DEFAULT_TIME_SLICE, ClientEdits, MpsSpec, client_edits

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection
    from pathlib import Path

    from driver.sharing.base import OnDeath


class FakeState:
    """What real GPUs and processes would hold until the node's next boot. Unreadable is the same as none.

    Several agents may share the file, as they share real GPUs (rolling update): each sees what the others did.
    """

    def __init__(self, file: Path, boot_id: str = "") -> None:
        self._file = file
        self._boot_id = boot_id
        self._stamp: tuple[int, ...] | None = None
        self._values: dict[str, Any] = {"boot": boot_id}
        self._refresh()

    def get(self, kind: str, name: str) -> Any:
        """Return a value, None if there is none."""
        self._refresh()
        return self._values.get(kind, {}).get(name)

    def set(self, kind: str, name: str, value: object) -> None:
        """Change a value; None removes it.

        :raises StorageError: the file can't be written.
        """
        with files.locked(self._file.with_name(f"{self._file.name}.lock")):
            self._refresh(anew=True)
            values = {**self._values, kind: {**self._values.get(kind, {}), name: value}}
            if value is None:
                del values[kind][name]
            files.write_atomic(self._file, json.dumps(values).encode(), durable=False)
            self._values = values

    def _refresh(self, *, anew: bool = False) -> None:
        """Read the file again if it is another than the last time; `anew`: even if it looks the same."""
        found = stamp(self._file)
        if found is not None and found == self._stamp and not anew:
            return
        self._values, self._stamp = {"boot": self._boot_id}, found
        with suppress(OSError, ValueError, TypeError):
            values = dict(parse_json(self._file.read_bytes()))
            if values.get("boot") == self._boot_id:
                self._values = values

    def names(self, kind: str) -> frozenset[str]:
        """Return the names of one kind."""
        self._refresh()
        return frozenset(self._values.get(kind, {}))


class FakeTimeSlices:
    """Time slices of fake GPUs; those in `unsupported` have none."""

    def __init__(self, state: FakeState, *, unsupported: Collection[str] = ()) -> None:
        self._state = state
        self._unsupported = unsupported

    async def get(self, gpu_uuid: str) -> int | None:
        """Return the level, as `TimeSlicePolicy.get`."""
        self._check(gpu_uuid)
        level = self._state.get("timeSlice", gpu_uuid)
        return DEFAULT_TIME_SLICE if level is None else int(level)

    async def set(self, gpu_uuid: str, level: int) -> None:
        """Set the level, as `TimeSlicePolicy.set`."""
        self._check(gpu_uuid)
        self._state.set("timeSlice", gpu_uuid, level)

    def _check(self, gpu_uuid: str) -> None:
        if gpu_uuid in self._unsupported:
            raise SettingNotSupportedError(f"GPU {gpu_uuid} does not support setting a time slice")


class FakeComputeModes:
    """Compute modes of fake GPUs."""

    def __init__(self, state: FakeState) -> None:
        self._state = state

    async def get(self, gpu_uuid: str) -> str:
        """Return the mode, as `ComputeModePolicy.get`."""
        return str(self._state.get("computeMode", gpu_uuid) or COMPUTE_MODES[0])

    async def set(self, gpu_uuid: str, mode: str) -> None:
        """Set the mode, as `ComputeModePolicy.set`."""
        self._state.set("computeMode", gpu_uuid, mode)


class FakeMps:
    """Control daemons that don't run. Their directories exist, since a container runtime mounts them."""

    def __init__(self, root: Path, state: FakeState) -> None:
        self.on_death: OnDeath | None = None
        self._root = root
        self._state = state
        self._running: dict[str, MpsSpec] = {}

    async def start(self, daemon_id: str, spec: MpsSpec) -> None:
        """Note the daemon, as `MpsControl.start`."""
        names.check_uid(daemon_id, "MPS daemon")
        for name in ("pipe", "shm"):
            os.makedirs(self._root / daemon_id / name, exist_ok=True)  # noqa: PTH103
        self._state.set("mps", daemon_id, spec.encode())
        self._running[daemon_id] = spec

    async def stop(self, daemon_id: str) -> None:
        """Forget the daemon, as `MpsControl.stop`."""
        names.check_uid(daemon_id, "MPS daemon")
        shutil.rmtree(self._root / daemon_id, ignore_errors=True)
        self._running.pop(daemon_id, None)
        if daemon_id in self._state.names("mps"):
            self._state.set("mps", daemon_id, None)

    async def adopt(self, daemon_id: str, spec: MpsSpec) -> bool:
        """Say whether it was started so, as `MpsControl.adopt`."""
        found: bool = self._state.get("mps", daemon_id) == spec.encode()
        if found:
            self._running[daemon_id] = spec
        return found

    def running(self) -> frozenset[str]:
        """Return the ids, as `MpsControl.running`."""
        return self._state.names("mps") & self._running.keys()

    async def sweep(self, keep: Callable[[], Awaitable[Collection[str]]]) -> frozenset[str]:
        """Forget all others, as `MpsControl.sweep`."""
        gone = self._state.names("mps") - frozenset(await keep())
        for daemon_id in gone:
            await self.stop(daemon_id)
        return gone

    def edits(self, daemon_id: str) -> ClientEdits:
        """Return the mounts, as `MpsControl.edits`."""
        directory = self._root / daemon_id
        return client_edits(str(directory / "pipe"), str(directory / "shm"))

    async def aclose(self) -> None:
        """Do nothing, as there are no processes."""

    def die(self, daemon_id: str) -> None:
        """Let a daemon end by itself."""
        self._state.set("mps", daemon_id, None)
        del self._running[daemon_id]
        if self.on_death is not None:
            self.on_death(daemon_id, f"MPS control daemon {daemon_id} ended: as asked by a test")
