"""Telling people what changed about the node's GPUs: log lines, and Events on the Node."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from driver.model.choice import NO_GPUS
from driver.model.health import HEALTHY
from driver.model.ownership import Owner
from driver.model.wording import counted

if TYPE_CHECKING:
    from driver.inventory.base import Xid
    from driver.model.choice import GpuChoice
    from driver.model.device import Gpu
    from driver.model.health import Health
    from driver.model.mig import MigState
    from driver.model.snapshot import Problem, Snapshot
    from driver.teller import Teller

log = logging.getLogger(__name__)

_LINES, _PERIOD = 10, 1.0  # XIDs that are logged in a period of seconds; of the others only the number
_EVENTS, _STORM = 16, 60.0  # distinct XIDs that get an Event in a time of seconds: other Events must not wait

_NO_PLACES = "no partitions: NVML does not say where they may lie; it takes CAP_SYS_ADMIN (overlays/mig-mps)"
_NO_MODE = (
    "no partitions: its MIG mode is off, and turning it on takes a reset, which is left to you: nvidia-smi -mig 1, "
    "then --gpu-reset"
)
_EMPTY = (
    "not offered: its MIG mode is on, and there is no MIG device on it: make some, choose it by dynamic_mig, or turn "
    "the mode off"
)


class Announcer:
    """Compares Snapshots, and tells what is news. `dynamic_mig` is named where it means no GPU."""

    def __init__(self, tell: Teller, dynamic_mig: GpuChoice = NO_GPUS) -> None:
        self._tell = tell
        self._dynamic_mig = dynamic_mig
        self._period_began = 0.0
        self._in_period = 0
        self._storm_began = 0.0
        self._in_storm: set[str] = set()  # messages

    def changed(self, before: Snapshot, found: Snapshot) -> None:
        """Tell what is different."""
        if not before.gpus:
            log.info("found %s: %s", counted(len(found.gpus), "GPU"), _products(found.gpus) or "none")
            self._choice(found)
        for problem in _without(found.problems, before.problems):
            self._warn("InventoryProblem", f"{problem.object}: {problem.message}")
        for problem in _without(before.problems, found.problems):
            if all(problem.object != other.object for other in found.problems):
                log.info("%s answers again", problem.object)
        for name in sorted(_empty(found) - _empty(before)):
            self._warn("InventoryProblem", f"{name}: {_EMPTY}")
        self._gpus(before, found)

    def xid(self, event: Xid, name: str, now: float) -> None:
        """Tell of an XID, at a moment in seconds; a storm of them is counted, not told one by one."""
        message = f"{name} ({event.gpu_uuid}) reports XID {event.xid}{_instances(event)}"
        if now - self._storm_began >= _STORM:
            self._storm_began, self._in_storm = now, set()
        if message in self._in_storm or len(self._in_storm) < _EVENTS:
            self._in_storm.add(message)
            self._tell.emit("XidError", message, warning=True)
        if now - self._period_began >= _PERIOD:
            if self._in_period > _LINES:
                log.warning("XidError: %d more", self._in_period - _LINES)
            self._period_began, self._in_period = now, 0
        self._in_period += 1
        if self._in_period <= _LINES:
            log.warning("XidError: %s", message)

    def _choice(self, found: Snapshot) -> None:
        chosen = [gpu for gpu in found.gpus if gpu.uuid in found.dynamic_mig]
        obstacles = {gpu.name: _obstacle(gpu.mig) for gpu in chosen if gpu.mig is not None}
        for name, obstacle in obstacles.items():
            if obstacle:
                self._warn("InventoryProblem", f"{name}: {obstacle}")
        if able := [name for name, obstacle in obstacles.items() if not obstacle]:
            log.info("partitioned for claims: %s", ", ".join(able))
        if len(obstacles) < len(chosen):
            log.info("without MIG: %s", ", ".join(gpu.name for gpu in chosen if gpu.mig is None))
        for word in self._dynamic_mig.unmatched(found.gpus) if found.gpus else ():
            log.warning("dynamic_mig: %r means no GPU of this node", word)

    def _gpus(self, before: Snapshot, found: Snapshot) -> None:
        known = {gpu.uuid for gpu in before.gpus}
        now = {gpu.uuid for gpu in found.gpus}
        for gpu in before.gpus:
            if gpu.uuid not in now:
                self._warn("GPUReplaced", f"{gpu.name} ({gpu.uuid}) is gone, another GPU has its name")
        for gpu in found.gpus:
            if known and gpu.uuid not in known:
                self._say("GPUAppeared", f"{gpu.name} ({gpu.uuid}, {gpu.product}) appeared")
            self._health(f"{gpu.name} ({gpu.uuid})", before.health_of(gpu.uuid), found.health_of(gpu.uuid))
        for name in sorted({*before.device_health, *found.device_health}):
            was, now_is = (one.device_health.get(name, HEALTHY) for one in (before, found))
            self._health(f"MIG device {name}", was, now_is)

    def _health(self, about: str, was: Health, now_is: Health) -> None:
        if not was.healthy and now_is.healthy:
            self._say("GPURecovered", f"{about} is healthy again")
        if now_is.reason == was.reason and now_is.healthy == was.healthy:
            return
        if not now_is.healthy:
            self._warn("GPUUnhealthy", f"{about}: {now_is.reason}")
        elif now_is.reason:
            self._say("GPUHealthNotice", f"{about}: {now_is.reason}")

    def _warn(self, reason: str, message: str) -> None:
        log.warning("%s: %s", reason, message)
        self._tell.emit(reason, message, warning=True)

    def _say(self, reason: str, message: str) -> None:
        log.info("%s: %s", reason, message)
        self._tell.emit(reason, message)


def _obstacle(mig: MigState) -> str:
    """Say why a GPU that is to be partitioned for claims can't be; empty if it can."""
    if not mig.memory_slices:
        return _NO_PLACES
    return "" if mig.enabled or mig.switches_at_once else _NO_MODE


def _empty(found: Snapshot) -> set[str]:
    """Return the names of the GPUs that nobody can have of DRA, as they wait for somebody to make MIG devices."""
    return {
        gpu.name
        for gpu in found.gpus
        if gpu.mig is not None
        and gpu.mig.enabled
        and not gpu.mig.instances
        and gpu.uuid not in found.dynamic_mig
        and found.ownership_of(gpu.uuid).offers(Owner.DRA)
    }


def _without(problems: tuple[Problem, ...], others: tuple[Problem, ...]) -> list[Problem]:
    return [problem for problem in problems if problem not in others]


def _instances(event: Xid) -> str:
    gi, ci = event.gpu_instance_id, event.compute_instance_id
    return f" in GPU instance {gi}, compute instance {ci}" if gi is not None else ""


def _products(gpus: tuple[Gpu, ...]) -> str:
    products = dict.fromkeys(gpu.product for gpu in gpus)
    return ", ".join(f"{sum(gpu.product == product for gpu in gpus)} {product}" for product in products)
