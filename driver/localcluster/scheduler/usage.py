"""What a search has taken so far on top of what is allocated, and what stands in a device's way. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from driver.localcluster.scheduler import consumption, taints
from driver.localcluster.scheduler.celvalues import show
from driver.localcluster.scheduler.outcome import (
    CapacityShort,
    Constrained,
    CounterShort,
    InUse,
    NotSelected,
    Obstacle,
    Tainted,
)
from driver.localcluster.scheduler.selecting import failed_selector

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from driver.localcluster.scheduler.devices import Counter, Device, DeviceId, Name, Pool
    from driver.localcluster.scheduler.requests import Ask, Claim, Constraint
    from driver.localcluster.scheduler.state import AllocatedState


@dataclass(frozen=True, slots=True, kw_only=True)
class Pick:
    """One device for one request; `consumed` of a shared device, empty for others and with admin access."""

    claim: int
    ask: Ask
    device: Device
    consumed: Mapping[Name, Fraction]
    draws: bool
    """Does it use up the device's counters (the first hold of a device does)?"""


class Usage:
    """The picks of a search in order; `take` and `release` must nest."""

    def __init__(
        self,
        claims: Sequence[Claim],
        classes: Mapping[str, Any],
        pools: Iterable[Pool],
        state: AllocatedState,
    ) -> None:
        self._claims, self._classes, self._state = claims, classes, state
        self.picks: list[Pick] = []
        self._holds: dict[DeviceId, list[Pick]] = {}
        self._left = {(pool.driver, pool.name): self._left_in(pool) for pool in pools if pool.counters}

    def take(self, device: Device, claim: int, ask: Ask) -> Pick:
        """Take a device that nothing stands in the way of."""
        shares = device.multiple and not ask.admin
        pick = Pick(
            claim=claim,
            ask=ask,
            device=device,
            consumed=consumption.consumed(device, ask.capacity) if shares else {},
            draws=not ask.admin and not self._held(device),
        )
        self.picks.append(pick)
        if not ask.admin:
            self._holds.setdefault(device.id, []).append(pick)
        self._draw(pick, -1)
        return pick

    def release(self, pick: Pick) -> None:
        """Give back the pick that was taken last."""
        self.picks.remove(pick)
        if not pick.ask.admin:
            self._holds[pick.device.id].remove(pick)
        self._draw(pick, +1)

    def not_selected(self, device: Device, claim: int, ask: Ask) -> NotSelected | None:
        """Return the selector that leaves the device out, free or not; None if it is chosen.

        :raises SchedulerError: if a selector has no value for it.
        """
        return failed_selector(device, ask, self._classes[ask.class_name], self._claims[claim].key)

    def obstacle(self, device: Device, claim: int, ask: Ask) -> Obstacle | None:
        """Return the first thing that keeps a request from the device; cheap checks come first.

        :raises SchedulerError: if a selector has no value for it.
        """
        for check in (self._in_use, self.not_selected, _tainted, self._short, self._constrained):
            if found := check(device, claim, ask):
                return found
        return None

    def _in_use(self, device: Device, claim: int, ask: Ask) -> InUse | None:
        if any(pick.claim == claim and pick.device.id == device.id for pick in self.picks):
            return InUse(holder="this claim")
        if ask.admin:
            return None
        for use in self._state.uses(device.id):
            if not (device.multiple and use.shared):
                return InUse(holder=f"claim {use.claim}")
        if not device.multiple and (held := self._holds.get(device.id)):
            return InUse(holder=f"claim {self._claims[held[0].claim].key}")
        return None

    def _short(self, device: Device, claim: int, ask: Ask) -> CounterShort | CapacityShort | None:
        if why := consumption.unmet(device, ask.capacity):
            return CapacityShort(why=why)
        if ask.admin:
            return None
        return self._counter_short(device) or self._capacity_short(device, ask)

    def _counter_short(self, device: Device) -> CounterShort | None:
        if not device.consumes or self._held(device):
            return None
        left = self._left[device.id.driver, device.id.pool]
        for counter, need in device.consumes.items():
            if need > left[counter]:
                return CounterShort(counter=counter, need=need, left=left[counter])
        return None

    def _capacity_short(self, device: Device, ask: Ask) -> CapacityShort | None:
        if not device.multiple:
            return None
        for name, amount in consumption.consumed(device, ask.capacity).items():
            size = device.capacity[name]
            left = size.value - sum(taken.get(name, Fraction(0)) for taken in self._consumed(device))
            if amount > left:
                why = f"{size.name}: {show(left)} of {show(size.value)} is left, {show(amount)} is needed"
                return CapacityShort(why=why)
        return None

    def _consumed(self, device: Device) -> Iterator[Mapping[Name, Fraction]]:
        for use in self._state.uses(device.id):
            yield use.consumed
        for pick in self._holds.get(device.id, ()):
            yield pick.consumed

    def _constrained(self, device: Device, claim: int, ask: Ask) -> Constrained | None:
        for constraint in self._claims[claim].constraints:
            if constraint.covers(ask) and (found := self._conflict(device, claim, constraint)):
                return found
        return None

    def _conflict(self, device: Device, claim: int, constraint: Constraint) -> Constrained | None:
        value = device.attributes.get(constraint.attribute)
        if value is None:
            return Constrained(constraint=constraint, value=None, wanted=None, other="")
        for pick in self.picks:
            if pick.claim != claim or not constraint.covers(pick.ask):
                continue
            other = pick.device.attributes.get(constraint.attribute)
            if (other == value) is constraint.distinct:
                return Constrained(constraint=constraint, value=value, wanted=other, other=pick.device.name)
            if not constraint.distinct:
                return None  # the others agree with this one
        return None

    def _held(self, device: Device) -> bool:
        return bool(self._holds.get(device.id) or self._state.uses(device.id))

    def _draw(self, pick: Pick, sign: int) -> None:
        if pick.draws and pick.device.consumes:
            left = self._left[pick.device.id.driver, pick.device.id.pool]
            for counter, need in pick.device.consumes.items():
                left[counter] += sign * need

    def _left_in(self, pool: Pool) -> dict[Counter, Fraction]:
        left = dict(pool.counters)
        for device in pool.devices:
            if device.consumes and self._state.uses(device.id):
                for counter, need in device.consumes.items():
                    left[counter] -= need
        return left


def _tainted(device: Device, claim: int, ask: Ask) -> Tainted | None:
    taint = taints.untolerated(device.taints, ask.tolerations)
    return Tainted(taint=taint) if taint else None
