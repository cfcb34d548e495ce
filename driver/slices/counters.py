"""Shared counters (KEP-4815): what a GPU has, and what each of its MIG partitions takes of it. Pure.

A scheduler that keeps within the counters must reach every combination of partitions that the hardware can make, and
no other. What the hardware asks of a combination, and which counter says so:

================================== =========================================================================
placements are disjoint            `memory-slice-N`, one each
engines suffice                    `copy-engines` … `ofa-engines`: those of the profile that fills the GPU
at most `max_instances` of each    mostly follows; where not, `profile-<id>-instances` (not one of NVIDIA's)
================================== =========================================================================

`memory` and `multiprocessors` follow from the slices and are rounded per profile, so they must never be what forbids a
combination: there is as much of them as the fullest combination takes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from driver.model import names
from driver.model.quantity import binary_si

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from driver.model.device import Gpu
    from driver.model.json_object import JsonObject
    from driver.model.mig import MigProfile, MigState, Placement

COUNTERS_LIMIT = 32  # of a set, and of what a device consumes of one

_SIZES = {"memory": "memory", "multiprocessors": "multiprocessors"}
_ENGINES = {
    "copy-engines": "copy_engines",
    "decoders": "decoders",
    "encoders": "encoders",
    "jpeg-engines": "jpeg_engines",
    "ofa-engines": "ofa_engines",
}
_AMOUNTS = {**_SIZES, **_ENGINES}


@dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    """The counters of one kind of GPU."""

    totals: Mapping[str, int]
    profiles: frozenset[int]  # ids of the profiles that can be offered
    limited: Mapping[int, str]  # by profile id, the counter of its instances where nothing else limits them

    def taken_by(self, profile: MigProfile, placement: Placement) -> dict[str, int]:
        """Return what a partition takes; what it takes nothing of is left out."""
        taken = {name: amount for name, amount in _amounts(profile).items() if amount}
        taken |= {_slice(index): 1 for index in placement.slices}
        if profile.id in self.limited:
            taken[self.limited[profile.id]] = 1
        return taken


def set_name(gpu: Gpu) -> str:
    """Name a GPU's counter set, as NVIDIA's driver does; a DNS label even where the UUID names the GPU (P1)."""
    return names.to_dns_label(f"{gpu.name}-counter-set")


def counters_of(mig: MigState) -> Counters | None:
    """Return the counters of a GPU; None if it can't be partitioned, or not within the API's limit of counters."""
    return _counters(mig.profiles, mig.memory_slices)


def render_set(gpu: Gpu, counters: Counters) -> JsonObject:
    """Return the set as `spec.sharedCounters[]`."""
    return {"name": set_name(gpu), "counters": _quantities(counters.totals)}


def render_whole(gpu: Gpu, counters: Counters) -> list[JsonObject]:
    """Return `consumesCounters` of the whole GPU: everything."""
    return [{"counterSet": set_name(gpu), "counters": _quantities(counters.totals)}]


def render_part(gpu: Gpu, counters: Counters, profile: MigProfile, placement: Placement) -> list[JsonObject]:
    """Return `consumesCounters` of a partition."""
    return [{"counterSet": set_name(gpu), "counters": _quantities(counters.taken_by(profile, placement))}]


@lru_cache(maxsize=64)  # GPUs of a product are alike, and stay so
def _counters(profiles: tuple[MigProfile, ...], memory_slices: int) -> Counters | None:
    usable = [one for one in profiles if one.max_instances > 0 and _within(one, memory_slices)]
    room = COUNTERS_LIMIT - len(_AMOUNTS) - memory_slices
    if not usable or room < 0:
        return None
    totals = {name: _total(name, usable, memory_slices) for name in _AMOUNTS}
    unlimited = [one for one in usable if _most_instances(one, totals) > one.max_instances]
    limited, beyond = unlimited[:room], unlimited[room:]  # what can't be limited can't be offered
    limits = {one.id: f"profile-{one.id}-instances" for one in limited}
    return Counters(
        totals={
            **totals,
            **{_slice(index): 1 for index in range(memory_slices)},
            **{limits[one.id]: one.max_instances for one in limited},
        },
        profiles=frozenset(one.id for one in usable) - {one.id for one in beyond},
        limited=limits,
    )


def _within(profile: MigProfile, memory_slices: int) -> bool:
    ends = [one.start + one.size for one in profile.placements]
    return bool(ends) and max(ends) <= memory_slices


def _total(name: str, profiles: Iterable[MigProfile], memory_slices: int) -> int:
    """Return how much a GPU has.

    The largest profile has all engines. Where no profile fills the GPU, nobody tells how many there are: there is then
    as much as the fullest combination takes, and the slices and limits decide alone.
    """
    profiles = list(profiles)
    attribute = _AMOUNTS[name]
    largest: int = max(getattr(one, attribute) for one in profiles)
    fills = any(placement.size == memory_slices for one in profiles for placement in one.placements)
    if name in _ENGINES and fills:
        return largest
    return max(largest, _fullest(profiles, memory_slices, lambda one: int(getattr(one, attribute))))


def _fullest(profiles: Iterable[MigProfile], memory_slices: int, weight: Callable[[MigProfile], int]) -> int:
    """Return the most that disjoint placements weigh together."""
    places = [(placement, weight(one)) for one in profiles for placement in one.placements]
    best = [0] * (memory_slices + 1)  # of the slices before each
    for end in range(1, memory_slices + 1):
        ending = [best[place.start] + amount for place, amount in places if place.start + place.size == end]
        best[end] = max([best[end - 1], *ending])
    return best[memory_slices]


def _most_instances(profile: MigProfile, totals: Mapping[str, int]) -> int:
    """Return how many instances of one profile the other counters admit."""
    disjoint, end = 0, 0
    for placement in sorted(profile.placements, key=lambda one: one.start + one.size):
        if placement.start >= end:
            disjoint, end = disjoint + 1, placement.start + placement.size
    return min([disjoint, *(totals[name] // amount for name, amount in _amounts(profile).items() if amount)])


def _amounts(profile: MigProfile) -> dict[str, int]:
    return {name: getattr(profile, attribute) for name, attribute in _AMOUNTS.items()}


def _slice(index: int) -> str:
    return f"memory-slice-{index}"


def _quantities(amounts: Mapping[str, int]) -> JsonObject:
    return {name: {"value": binary_si(amount)} for name, amount in amounts.items()}
