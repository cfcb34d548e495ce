"""What effects act on, in memory: MIG, compute modes, time slices, MPS daemons. Fails on demand, once or always."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from driver.errors import DriverError, GpuLostError, MigError
from driver.model.device import Gpu
from driver.model.mig import MigInstance, MigState, Placement
from driver.sharing.base import client_edits
from tests.unit.claims.helpers import PROFILE

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable, Callable, Collection

    from driver.sharing.base import ClientEdits, MpsSpec, OnDeath


def dynamic_gpu(minor: int, *, enabled: bool = False, switches_at_once: bool = True) -> Gpu:
    mig = MigState(
        enabled=enabled,
        pending=enabled,
        switches_at_once=switches_at_once,
        memory_slices=8,
        profiles=(PROFILE,),
    )
    return Gpu(uuid=f"GPU-{minor}", index=minor, minor=minor, mig=mig)


class Hardware:
    """GPUs whose state survives the driver, as real ones do. `log` has what was asked, `fails` what goes wrong."""

    def __init__(self) -> None:
        self.enabled: dict[str, bool] = {}
        self.instances: dict[str, dict[Placement, MigInstance]] = {}
        self.bare: dict[str, set[Placement]] = {}
        self.modes: dict[str, str] = {}
        self.slices: dict[str, int] = {}
        self.daemons: dict[str, MpsSpec] = {}
        self.log: list[str] = []
        self.fails: dict[str, int] = {}
        self.lost: set[str] = set()
        self.gates: dict[str, tuple[asyncio.Event, asyncio.Event]] = {}  # says that it arrived, waits to go on
        self._numbers = itertools.count(1)

    async def wait(self, operation: str) -> None:
        """Stop at a gate, if there is one."""
        if operation in self.gates:
            arrived, go = self.gates[operation]
            arrived.set()
            await go.wait()

    def picture(self) -> object:
        """All of the state, to compare."""
        instances = {gpu: sorted(found) for gpu, found in self.instances.items() if found}
        bare = {gpu: sorted(found) for gpu, found in self.bare.items() if found}
        on = sorted(gpu for gpu, enabled in self.enabled.items() if enabled)
        modes = {gpu: mode for gpu, mode in self.modes.items() if mode != "DEFAULT"}
        slices = {gpu: level for gpu, level in self.slices.items() if level}
        return instances, bare, on, modes, slices, sorted(self.daemons)

    def _enter(self, what: str) -> None:
        self.log.append(what)
        self.check(*what.split()[1:2])
        operation = what.split()[0]
        left = self.fails.get(operation, 0)
        if left:
            self.fails[operation] = left - 1
            raise MigError(f"{operation} failed on demand")

    def check(self, *gpus: str) -> None:
        """Fail for a GPU that has fallen off the bus."""
        if self.lost & set(gpus):
            raise GpuLostError("it has fallen off the bus")

    # Partitioner

    async def mig_state(self, gpu_uuid: str) -> MigState:
        self.check(gpu_uuid)
        enabled = self.enabled.get(gpu_uuid, False)
        return MigState(
            enabled=enabled,
            pending=enabled,
            switches_at_once=True,
            memory_slices=8,
            profiles=(PROFILE,),
            instances=tuple(self.instances.get(gpu_uuid, {}).values()),
        )

    async def set_mig_mode(self, gpu_uuid: str, enabled: bool) -> None:
        if self.enabled.get(gpu_uuid, False) != enabled:
            self._enter(f"mode {gpu_uuid} {enabled}")
            if self.instances.get(gpu_uuid):
                raise MigError("instances exist")
            self.enabled[gpu_uuid] = enabled

    async def create_mig(self, gpu_uuid: str, profile_id: int, placement: Placement) -> MigInstance:
        self._enter(f"create {gpu_uuid} {placement.start}")
        taken = [*self.instances.get(gpu_uuid, {}), *self.bare.get(gpu_uuid, ())]
        if not self.enabled.get(gpu_uuid) or any(one.overlaps(placement) for one in taken):
            raise MigError("insufficient resources")
        self.bare.setdefault(gpu_uuid, set()).add(placement)
        self._enter(f"create-ci {gpu_uuid} {placement.start}")  # a failure leaves the GPU instance bare (M1)
        self.bare[gpu_uuid].discard(placement)
        number = next(self._numbers)
        instance = MigInstance(
            uuid=f"MIG-{number}",
            gpu_instance_id=number,
            compute_instance_id=0,
            profile=PROFILE,
            placement=placement,
            compute_slices=1,
        )
        self.instances.setdefault(gpu_uuid, {})[placement] = instance
        return instance

    async def destroy_mig(self, gpu_uuid: str, placement: Placement) -> bool:
        self._enter(f"destroy {gpu_uuid} {placement.start}")
        await self.wait("destroy")
        bare = placement in self.bare.get(gpu_uuid, set())
        self.bare.get(gpu_uuid, set()).discard(placement)
        return self.instances.get(gpu_uuid, {}).pop(placement, None) is not None or bare


class Slices:
    """Time slices of a `Hardware`."""

    def __init__(self, hardware: Hardware) -> None:
        self._hardware = hardware

    async def get(self, gpu_uuid: str) -> int | None:
        return self._hardware.slices.get(gpu_uuid, 0)

    async def set(self, gpu_uuid: str, level: int) -> None:
        self._hardware._enter(f"slice {gpu_uuid} {level}")
        self._hardware.slices[gpu_uuid] = level


class Modes:
    """Compute modes of a `Hardware`."""

    def __init__(self, hardware: Hardware) -> None:
        self._hardware = hardware

    async def get(self, gpu_uuid: str) -> str:
        return self._hardware.modes.get(gpu_uuid, "DEFAULT")

    async def set(self, gpu_uuid: str, mode: str) -> None:
        self._hardware._enter(f"compute {gpu_uuid} {mode}")
        self._hardware.modes[gpu_uuid] = mode


class Daemons:
    """MPS daemons of a `Hardware`."""

    on_death: OnDeath | None = None

    def __init__(self, hardware: Hardware) -> None:
        self._hardware = hardware

    async def start(self, daemon_id: str, spec: MpsSpec) -> None:
        self._hardware._enter(f"start {daemon_id}")
        await self._hardware.wait("start")
        self._hardware.daemons[daemon_id] = spec

    async def adopt(self, daemon_id: str, spec: MpsSpec) -> bool:
        return self._hardware.daemons.get(daemon_id) == spec

    async def sweep(self, keep: Callable[[], Awaitable[Collection[str]]]) -> frozenset[str]:
        there = set(self._hardware.daemons)
        await self._hardware.wait("sweep")
        strays = there - set(await keep())
        for stray in strays:
            await self.stop(stray)
        return frozenset(strays)

    def edits(self, daemon_id: str) -> ClientEdits:
        return client_edits(f"/mps/{daemon_id}/pipe", f"/mps/{daemon_id}/shm")

    def running(self) -> frozenset[str]:
        return frozenset(self._hardware.daemons)

    async def aclose(self) -> None:
        pass

    async def stop(self, daemon_id: str) -> None:
        self._hardware._enter(f"stop {daemon_id}")
        self._hardware.daemons.pop(daemon_id, None)


__all__ = ["Daemons", "DriverError", "Hardware", "Modes", "Slices", "dynamic_gpu"]
