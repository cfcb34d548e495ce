"""The order of devices in the slices, which is the order in which the scheduler tries them. Pure.

The scheduler takes the first device that fits, and the slices don't change while partitions come and go: nothing but
this order keeps room for what is asked for later. GPU by GPU in the order of their names, so that cut GPUs fill up
before whole ones are cut; of one GPU

- the smallest profile first, plain before special, the whole GPU last: who asks by memory gets the least that fits;
- of a profile, the placement first that takes least from the others: `1g` at the end that `4g` can't use.

`hack/bench --fragmentation` measures it against the order of the tables and against a scheduler that sees the state.
A search over other orders of the placements found none that is better on fresh arrivals, and it makes no difference
from which end whole GPUs are taken.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from driver.model.device import FullGpu, MigPartition

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from driver.model.device import Device
    from driver.model.mig import MigProfile, Placement


def arrange(devices: Iterable[Device]) -> list[Device]:
    """Return the devices in the order of the slices; those of one GPU stay together, existing MIG devices as given."""
    return sorted(devices, key=lambda device: (device.gpu.rank, _rank(device)))


@lru_cache(maxsize=64)  # GPUs of a product are alike
def _losses(profiles: tuple[MigProfile, ...]) -> Mapping[Placement, float]:
    """Say per placement what it takes from the others: of each profile its share of the placements, by their size."""
    places = {placement for profile in profiles for placement in profile.placements}
    return {place: sum(_loss(place, profile) for profile in profiles) for place in places}


def _loss(place: Placement, profile: MigProfile) -> float:
    blocked = [other.size for other in profile.placements if other.overlaps(place)]
    return sum(blocked) / len(profile.placements) if blocked else 0.0


def _rank(device: Device) -> tuple[float, ...]:
    if not isinstance(device, MigPartition):
        return (float(isinstance(device, FullGpu)) * 2,)
    profile, placement = device.profile, device.placement
    mig = device.gpu.mig
    loss = _losses(mig.profiles)[placement] if mig is not None else 0.0
    return 1, profile.memory, profile.compute_slices, _engines(profile), profile.id, loss, -placement.start


def _engines(profile: MigProfile) -> int:
    """Count what sets a profile apart from another of its size, as `+me` does: media engines."""
    return profile.decoders + profile.encoders + profile.jpeg_engines + profile.ofa_engines
