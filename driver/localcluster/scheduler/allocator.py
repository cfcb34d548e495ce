"""Allocates the devices of claims on one node: first fit with backtracking. Pure and deterministic.

Pools are tried by driver and name, their slices by name, devices in list order; requests in the order of the claim.
Devices of one request are interchangeable, so combinations are tried, not permutations. Held to the real scheduler's
answers in `recordings/allocation.json`.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from driver.localcluster.scheduler import requests
from driver.localcluster.scheduler.outcome import Allocation, Finding, InUse, SchedulerError, Unsatisfiable
from driver.localcluster.scheduler.results import result_of
from driver.localcluster.scheduler.usage import Pick, Usage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from driver.localcluster.scheduler.devices import Device, Pool
    from driver.localcluster.scheduler.outcome import Obstacle
    from driver.localcluster.scheduler.requests import Ask, Claim, Request
    from driver.localcluster.scheduler.state import AllocatedState

    Object = Mapping[str, Any]

_CHECKS_MAX = 10_000
"""How many checks of a device a search may make before it gives up; constraints can make it exponential."""
_ALTERNATIVES_MAX = 8


def allocate(
    claims: Sequence[Object],
    classes: Mapping[str, Object],
    pools: Iterable[Pool],
    state: AllocatedState,
    node: Object,
    *,
    new_id: Callable[[], str],
) -> Allocation | Unsatisfiable:
    """Find devices for all claims of a pod on one node; `new_id` gives the share ids of shared devices.

    :raises SchedulerError: if a selector has no value for a device that was tried.
    :raises InvalidValueError: if a claim has a quantity that is none.
    """
    wanted = [requests.read(claim) for claim in claims]
    if refusal := impossible(wanted, classes):
        return refusal
    search = _Search(wanted, classes, pools, state, node)
    if not search.run():
        return search.failure()
    by_claim: dict[str, dict[str, Any]] = {}
    for index, claim in enumerate(wanted):
        picks = [pick for pick in search.usage.picks if pick.claim == index]
        by_claim[claim.key] = result_of(claim, picks, classes, node, new_id)
    return Allocation(claims=by_claim, score=search.score)


def impossible(claims: Iterable[Claim], classes: Mapping[str, Object]) -> Unsatisfiable | None:
    """Return why no node can satisfy the claims, before any device is looked at."""
    for claim in claims:
        for request in claim.requests:
            for ask in request.alternatives:
                if ask.class_name not in classes:
                    note = f"request {ask.name}: device class {ask.class_name} does not exist"
                    return Unsatisfiable(claim=claim.key, request=ask.name, note=note, everywhere=True)
        least = sum(min(ask.count or 1 for ask in request.alternatives) for request in claim.requests)
        if least > requests.RESULTS_MAX:
            note = f"claim {claim.key} asks for {least} devices, a claim can hold {requests.RESULTS_MAX}"
            return Unsatisfiable(claim=claim.key, request="", note=note, everywhere=True)
    return None


class _GaveUpError(Exception):
    """The search takes too long."""


class _Search:
    """One search; `run` once, then read `usage.picks` or `failure()`."""

    def __init__(
        self,
        claims: Sequence[Claim],
        classes: Mapping[str, Object],
        pools: Iterable[Pool],
        state: AllocatedState,
        node: Object,
    ) -> None:
        self._claims = claims
        self._queue = [(index, request) for index, claim in enumerate(claims) for request in claim.requests]
        served = [(pool, [device for device in pool.devices if device.serves(node)]) for pool in pools]
        usable = [(pool, devices) for pool, devices in served if pool.problem is None]
        self._unusable = tuple(
            f"pool {pool.name}: {pool.problem}" for pool, devices in served if pool.problem and devices
        )
        self._devices = [device for _, devices in usable for device in devices]
        self.usage = Usage(claims, classes, [pool for pool, _ in usable], state)
        self.score = 0
        self._checks = 0
        self._deepest = -1
        self._failure: Unsatisfiable | None = None

    def run(self) -> bool:
        """Search; the picks are in `usage` if it succeeded."""
        try:
            return self._from(0)
        except _GaveUpError:
            return False

    def failure(self) -> Unsatisfiable:
        """Return the first dead end that was furthest into the claims."""
        assert self._failure is not None  # noqa: S101  # a failed search has met a dead end
        if self._checks < _CHECKS_MAX:
            return self._failure
        note = (
            f"gave up after {_CHECKS_MAX} checks: the constraints of claim {self._failure.claim} leave too many choices"
        )
        return replace(self._failure, note=note)

    def _from(self, position: int) -> bool:
        if position == len(self._queue):
            return True
        claim, request = self._queue[position]
        for preference, ask in enumerate(request.alternatives):
            if self._satisfy(position, claim, ask):
                if len(request.alternatives) > 1:
                    self.score += _ALTERNATIVES_MAX - preference
                return True
        self._note_dead_end(position, claim, request)
        return False

    def _satisfy(self, position: int, claim: int, ask: Ask) -> bool:
        if ask.count is None:
            matching = [device for device in self._devices if self.usage.not_selected(device, claim, ask) is None]
            return bool(matching) and self._take_all(position, claim, ask, matching)
        return self._take_some(position, claim, ask, 0, ask.count)

    def _take_all(self, position: int, claim: int, ask: Ask, devices: list[Device]) -> bool:
        taken: list[Pick] = []
        for device in devices:
            if self._room(claim, 1) and self._fits(device, claim, ask):
                taken.append(self.usage.take(device, claim, ask))
            else:
                break
        if len(taken) == len(devices) and self._from(position + 1):
            return True
        for pick in reversed(taken):
            self.usage.release(pick)
        return False

    def _take_some(self, position: int, claim: int, ask: Ask, start: int, missing: int) -> bool:
        if missing == 0:
            return self._from(position + 1)
        if not self._room(claim, missing):
            return False
        for index in range(start, len(self._devices)):
            device = self._devices[index]
            if not self._fits(device, claim, ask):
                continue
            pick = self.usage.take(device, claim, ask)
            if self._take_some(position, claim, ask, index + 1, missing - 1):
                return True
            if missing > 1:
                self._note_dead_end(position, claim, self._queue[position][1])
            self.usage.release(pick)
            if not self._enough(index + 1, claim, ask, missing):
                return False
        return False

    def _fits(self, device: Device, claim: int, ask: Ask) -> bool:
        self._checks += 1
        if self._checks >= _CHECKS_MAX and self._failure is not None:
            raise _GaveUpError
        return self.usage.obstacle(device, claim, ask) is None

    def _enough(self, start: int, claim: int, ask: Ask, missing: int) -> bool:
        """Say whether as many devices as are missing could follow; cheap where the failed try has seen them all."""
        left = missing
        for device in self._devices[start:]:
            if self._fits(device, claim, ask):
                left -= 1
                if left == 0:
                    return True
        return False

    def _room(self, claim: int, more: int) -> bool:
        held = sum(1 for pick in self.usage.picks if pick.claim == claim)
        return held + more <= requests.RESULTS_MAX

    def _note_dead_end(self, position: int, claim: int, request: Request) -> None:
        if position <= self._deepest:
            return
        self._deepest = position
        self._failure = Unsatisfiable(
            claim=self._claims[claim].key,
            request=request.name,
            findings=tuple(self._finding(claim, ask) for ask in request.alternatives),
            unusable=self._unusable,
        )

    def _finding(self, claim: int, ask: Ask) -> Finding:
        judged = [(device, self._relevant_obstacle(device, claim, ask)) for device in self._devices]
        own = [pick.device for pick in self.usage.picks if pick.claim == claim and pick.ask is ask]
        free = [device for device, obstacle in judged if obstacle is None]
        return Finding(
            ask=ask,
            fitting=(*own, *free),
            obstacles=tuple((device, why) for device, why in judged if why is not None and device not in own),
        )

    def _relevant_obstacle(self, device: Device, claim: int, ask: Ask) -> Obstacle | None:
        """Return the obstacle; of a device in use rather that it is not even selected, if that is so."""
        found = self.usage.obstacle(device, claim, ask)
        if isinstance(found, InUse):
            with suppress(SchedulerError):
                return self.usage.not_selected(device, claim, ask) or found
        return found
