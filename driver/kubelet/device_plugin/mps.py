"""MPS for replicas: one control daemon per shared GPU, as long as it is offered so or a pod uses it.

Each replica gets its part of threads and memory, as with the peer. The GPU's compute mode is exclusive meanwhile; what
it was before is kept in a file and restored (M8), by another agent too. A GPU with a daemon counts as held, so it does
not change owners before it is as it was.
"""

from __future__ import annotations

import asyncio
import json
import logging
from types import MappingProxyType
from typing import TYPE_CHECKING

from driver import files
from driver.errors import DriverError
from driver.model.device import FullGpu
from driver.model.json_object import parse_json
from driver.sharing.base import MpsSpec

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping
    from pathlib import Path

    from driver.deviceplugin.resources import Resource
    from driver.sharing.base import ClientEdits, ComputeModePolicy, MpsControl

log = logging.getLogger(__name__)

HOLDER = "the MPS daemon of its replicas"
"""What holds a GPU that has a daemon, as people are told."""

_EXCLUSIVE = "EXCLUSIVE_PROCESS"
_PREFIX = "plugin-"


class MpsReplicas:
    """The daemons. `pods` tells which devices pods hold; `file` keeps the compute modes that were found."""

    def __init__(
        self,
        control: MpsControl,
        modes: ComputeModePolicy,
        file: Path,
        pods: Callable[[], Awaitable[Mapping[str, tuple[str, ...]] | None]],
    ) -> None:
        self._control = control
        self._modes = modes
        self._file = file
        self._pods = pods
        self._found = _load(file)
        self._specs: dict[str, MpsSpec] = {}
        self.errors: dict[str, str] = {}
        """Why a GPU's replicas can't be used, by UUID."""

    def daemons(self) -> frozenset[str]:
        """Return the ids of the daemons that are, or may be, there: nobody else is to stop them."""
        return frozenset(f"{_PREFIX}{uuid}" for uuid in self._found)

    def held(self) -> frozenset[str]:
        """Return the UUIDs of the GPUs that are not as they were."""
        return frozenset(self._found)

    async def keep(self, wanted: Mapping[str, MpsSpec]) -> bool:
        """Have the daemons that are wanted, by GPU, and no others; say whether some can't be stopped yet.

        Daemons whose clients still run stay as they are. Errors are in `errors`.
        """
        changed = {uuid for uuid, spec in self._specs.items() if wanted.get(uuid, spec) != spec}
        surplus = self._found.keys() - wanted.keys()
        pods = await self._pods() if changed or surplus else {}
        busy = {uuid for uuid in changed | surplus if pods is None or uuid in pods}
        await asyncio.gather(*(self._start(uuid, spec) for uuid, spec in wanted.items() if uuid not in busy))
        await asyncio.gather(*(self._stop(uuid) for uuid in surplus - busy))
        self.errors = {uuid: why for uuid, why in self.errors.items() if uuid in wanted or uuid in self._found}
        return bool(busy) or bool(self.errors)

    def edits(self, gpu_uuid: str) -> ClientEdits | None:
        """Return what a client's container needs; None if the GPU has no daemon."""
        return self._control.edits(f"{_PREFIX}{gpu_uuid}") if gpu_uuid in self._specs else None

    async def _start(self, uuid: str, spec: MpsSpec) -> None:
        daemon = f"{_PREFIX}{uuid}"
        if self._specs.get(uuid) == spec and daemon in self._control.running():
            return
        try:
            if uuid not in self._found:
                mode = await self._modes.get(uuid)
                self._save({**self._found, uuid: mode})  # before anything is changed
            await self._modes.set(uuid, _EXCLUSIVE)
            await self._control.start(daemon, spec)
        except DriverError as exc:
            self._failed(uuid, f"MPS can't be started: {exc}")
            return
        self._specs[uuid] = spec
        self.errors.pop(uuid, None)
        log.info("MPS daemon %s serves the replicas of GPU %s", daemon, uuid)

    async def _stop(self, uuid: str) -> None:
        try:
            await self._control.stop(f"{_PREFIX}{uuid}")
            await self._modes.set(uuid, self._found[uuid])
            self._save({known: mode for known, mode in self._found.items() if known != uuid})
        except DriverError as exc:
            self._failed(uuid, f"MPS can't be stopped: {exc}")
            return
        self._specs.pop(uuid, None)
        self.errors.pop(uuid, None)

    def _failed(self, uuid: str, why: str) -> None:
        if self.errors.get(uuid) != why:
            log.warning("GPU %s: %s", uuid, why)
        self.errors[uuid] = why

    def _save(self, found: dict[str, str]) -> None:
        if found:
            files.write_atomic(self._file, json.dumps(found).encode())
        else:
            files.remove(self._file)
        self._found = found


def specs(resources: Iterable[Resource]) -> dict[str, MpsSpec]:
    """Return the daemon that each GPU needs: a replica's part of its threads and memory for each client."""
    found: dict[str, MpsSpec] = {}
    for resource in resources:
        for one in resource.devices:
            if resource.sharing != "mps" or one.replicas < 2 or not isinstance(one.device, FullGpu):
                continue
            memory = one.device.gpu.memory
            limits = {} if memory is None else {one.uuid: memory // one.replicas}
            found[one.uuid] = MpsSpec(
                devices=(one.uuid,),
                active_thread_percentage=max(100 // one.replicas, 1),
                memory_limits=MappingProxyType(limits),
            )
    return found


def _load(file: Path) -> dict[str, str]:
    try:
        return {str(uuid): str(mode) for uuid, mode in parse_json(file.read_bytes()).items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, AttributeError) as exc:
        log.warning("%s tells which compute modes GPUs had before MPS, and can't be read: they stay: %s", file, exc)
        return {}
