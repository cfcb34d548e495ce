"""What a reading of the GPUs, or its failure, makes of what was known before. Pure."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from driver.model.choice import NO_GPUS
from driver.model.health import LOST
from driver.model.snapshot import WHOLE_INVENTORY, Problem, Snapshot

if TYPE_CHECKING:
    from collections.abc import Iterable

    from driver.inventory.base import Reading
    from driver.model.choice import GpuChoice
    from driver.model.device import Gpu
    from driver.model.health import Health


def advance(before: Snapshot | None, reading: Reading, dynamic_mig: GpuChoice = NO_GPUS) -> Snapshot:
    """Return what is known after a reading. Pure.

    A known GPU that is missing is lost; it is given up only when another GPU has taken its name.
    """
    taken = {gpu.uuid for gpu in reading.gpus} | {gpu.name for gpu in reading.gpus}
    known = before.gpus if before is not None else ()
    lost = [gpu for gpu in known if gpu.uuid not in taken and gpu.name not in taken]
    chosen = partitioned(before, (*reading.gpus, *lost), dynamic_mig)
    found = (steady(gpu, before) if gpu.uuid in chosen else gpu for gpu in reading.gpus)
    gpus = tuple(sorted((*found, *lost), key=lambda gpu: gpu.rank))
    return Snapshot(
        versions=reading.versions,
        gpus=gpus,
        health=MappingProxyType({gpu.uuid: _lost(gpu, reading.problems) for gpu in lost}),
        problems=reading.problems,
        dynamic_mig=chosen,
    )


def partitioned(before: Snapshot | None, gpus: Iterable[Gpu], choice: GpuChoice) -> frozenset[str]:
    """Return the UUIDs of the GPUs that are partitioned for claims. Pure.

    A GPU is chosen when it is first seen: if another is lost, NVML renumbers the rest, and an index means a neighbour.
    """
    known = {gpu.uuid for gpu in before.gpus} if before is not None else set()
    kept = before.dynamic_mig if before is not None else frozenset()
    return frozenset(gpu.uuid for gpu in gpus if gpu.uuid in kept or (gpu.uuid not in known and choice.names(gpu)))


def steady(gpu: Gpu, before: Snapshot | None) -> Gpu:
    """Return a GPU without the changes that MIG mode makes to what it tells of itself. Pure.

    With the mode on, a GPU has no NVLink and another addressing mode. Where partitions come and go with claims, these
    would change the slices, and its neighbours', each time.
    """
    known = next((one for one in before.gpus if one.uuid == gpu.uuid), None) if before is not None else None
    if known is None or gpu.mig is None or not gpu.mig.enabled:
        return gpu
    return replace(
        gpu, memory=known.memory, addressing_mode=known.addressing_mode, nvlink=known.nvlink, fabric=known.fabric
    )


def unavailable(before: Snapshot | None, why: str) -> Snapshot:
    """Return what is known when the inventory as a whole can't be read. Pure.

    What was known is lost; where nothing was known, nothing is offered (H6).
    """
    known = before or Snapshot()
    health = {gpu.uuid: replace(LOST, reason=why) for gpu in known.gpus}
    return replace(known, health=MappingProxyType(health), problems=(Problem(object=WHOLE_INVENTORY, message=why),))


def _lost(gpu: Gpu, problems: Iterable[Problem]) -> Health:
    why = next((problem.message for problem in problems if problem.object in (gpu.uuid, gpu.name)), LOST.reason)
    return replace(LOST, reason=why)


def is_worse(before: Snapshot, found: Snapshot) -> bool:
    """Say whether something fails that did not fail before."""
    failing = {problem.object for problem in before.problems}
    return any(problem.object not in failing for problem in found.problems) or bool(
        found.health.keys() - before.health.keys()
    )
