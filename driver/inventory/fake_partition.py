"""Changing MIG on fake GPUs: one operation at a time, as on NVML's thread, with faults and a time limit.

An operation that is given up goes on, as a call into a real driver would: its effect may come later.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, TypeVar

from driver.errors import DeviceNotReadyError, GpuLostError, InventoryError, MigError
from driver.inventory.mig_rules import check_mode

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable

    from driver.inventory.fake_mig import Board
    from driver.inventory.fake_mig_file import FakeMigFile
    from driver.inventory.faults import Faults
    from driver.model.device import Gpu
    from driver.model.mig import MigInstance, MigState, Placement

log = logging.getLogger(__name__)
T = TypeVar("T")


class FakePartitioner:
    """The MIG operations of fake GPUs. `faults` returns what is wrong now; `timeout` in seconds."""

    def __init__(self, gpus: Iterable[Gpu], file: FakeMigFile, faults: Callable[[], Faults], timeout: float) -> None:
        self._uuids = frozenset(gpu.uuid for gpu in gpus)
        self._file = file
        self._faults = faults
        self._timeout = timeout
        self._turn = asyncio.Lock()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._spent: tuple[Faults | None, set[str]] = (None, set())

    async def mig_state(self, gpu_uuid: str) -> MigState:
        """See `Partitioner`."""

        async def observe() -> MigState:
            await self._pause(gpu_uuid)
            return self._board(gpu_uuid).state()

        return await self._run(observe, f"reading MIG of {gpu_uuid}")

    async def set_mig_mode(self, gpu_uuid: str, enabled: bool) -> None:
        """See `Partitioner`."""

        async def switch() -> None:
            await self._pause(gpu_uuid)
            if check_mode(gpu_uuid, self._board(gpu_uuid).state(), enabled):
                self._meet(gpu_uuid, "mode", "switching MIG mode")
                self._file.change(gpu_uuid, lambda board: board.with_mode(enabled))
            await self._pause(gpu_uuid)

        await self._run(switch, f"switching MIG mode of {gpu_uuid}")

    async def create_mig(self, gpu_uuid: str, profile_id: int, placement: Placement) -> MigInstance:
        """See `Partitioner`."""
        what = f"creating a MIG device at {placement} of {gpu_uuid}"
        return await self._run(lambda: self._create(gpu_uuid, profile_id, placement), what)

    async def destroy_mig(self, gpu_uuid: str, placement: Placement) -> bool:
        """See `Partitioner`."""

        async def destroy() -> bool:
            await self._pause(gpu_uuid)
            self._check_there(gpu_uuid)
            before = self._file.boards().get(gpu_uuid)
            if before is None or all(one.placement != placement for one in before.instances):
                return False
            self._meet(gpu_uuid, "destroy", f"removing the MIG device at {placement}")
            self._file.change(gpu_uuid, lambda board: board.without(placement))
            await self._pause(gpu_uuid)
            return True

        return await self._run(destroy, f"removing the MIG device at {placement} of {gpu_uuid}")

    async def aclose(self) -> None:
        """Drop the operations under way, where they are."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _create(self, gpu_uuid: str, profile_id: int, placement: Placement) -> MigInstance:
        await self._pause(gpu_uuid)
        self._board(gpu_uuid)
        self._meet(gpu_uuid, "create_gi", "creating the GPU instance")
        self._file.change(gpu_uuid, lambda board: board.with_gpu_instance(profile_id, placement))
        await self._pause(gpu_uuid)
        try:
            self._meet(gpu_uuid, "create_ci", "creating the compute instance")
            board = self._file.change(gpu_uuid, lambda board: board.with_compute_instance(placement))
        except MigError as exc:
            raise self._rolled_back(gpu_uuid, placement, exc) from exc
        await self._pause(gpu_uuid)
        return board.device(placement)

    def _rolled_back(self, gpu_uuid: str, placement: Placement, cause: MigError) -> MigError:
        if self._faults().of(gpu_uuid).mig.create_ci == "fail-bare":
            return MigError(f"{cause}; and its GPU instance at {placement} could not be removed again: unknown error")
        self._file.change(gpu_uuid, lambda board: board.without(placement))
        return MigError(f"{cause}; its GPU instance was removed again")

    def _check_there(self, gpu_uuid: str) -> None:
        if gpu_uuid not in self._uuids:
            raise GpuLostError(f"{gpu_uuid}: there is no such GPU")
        if self._faults().of(gpu_uuid).lost:
            raise GpuLostError(f"{gpu_uuid}: the GPU is lost")

    def _board(self, gpu_uuid: str) -> Board:
        self._check_there(gpu_uuid)
        board = self._file.boards().get(gpu_uuid)
        if board is None or "mig" in self._faults().of(gpu_uuid).not_supported:
            raise MigError(f"{gpu_uuid}: the GPU has no MIG")
        return board

    def _meet(self, gpu_uuid: str, step: str, what: str) -> None:
        """Fail as the faults say; `-once` is spent until the faults file changes."""
        faults = self._faults()
        if self._spent[0] is not faults:
            self._spent = (faults, set())
        fault: str = getattr(faults.of(gpu_uuid).mig, step)
        kind = fault.removesuffix("-once")
        key = f"{gpu_uuid} {step}"
        if not fault or key in self._spent[1]:
            return
        if kind != fault:
            self._spent[1].add(key)
        if kind == "in-use":
            raise DeviceNotReadyError(f"{gpu_uuid}: {what}: processes use it; try again when they have ended")
        raise MigError(f"{gpu_uuid}: {what} failed: unknown error")

    async def _pause(self, gpu_uuid: str) -> None:
        faults = self._faults()
        mine = faults.of(gpu_uuid)
        seconds = faults.nvml_slow + mine.slow + mine.mig.slow
        if seconds:
            await asyncio.sleep(min(seconds, self._timeout))

    async def _run(self, job: Callable[[], Coroutine[Any, Any, T]], what: str) -> T:
        if self._faults().nvml_down:
            raise InventoryError(f"NVML does not answer (the faults file says so): {what}")
        task = asyncio.create_task(self._in_turn(job))
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        done, _ = await asyncio.wait((task,), timeout=self._timeout)
        if not done:
            raise InventoryError(f"an NVML call did not return within {self._timeout:g} s: {what}")
        if task.cancelled():
            raise InventoryError(f"the inventory was closed: {what}")
        return task.result()

    async def _in_turn(self, job: Callable[[], Coroutine[Any, Any, T]]) -> T:
        async with self._turn:
            return await job()

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.debug("an operation on a fake GPU failed: %s", task.exception())
