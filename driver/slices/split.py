"""Devices and counter sets spread over slices within the API's limits. Pure.

A slice has shared counters or devices, never both (Kubernetes 1.35 and later).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from driver.model.json_object import JsonObject

PLAIN_LIMIT = 128  # devices of a slice
RICH_LIMIT = 64  # of one in which any device has a taint or consumes counters
COUNTER_SETS_LIMIT = 8


def split(
    groups: Sequence[Sequence[JsonObject]], *, counter_sets: Sequence[JsonObject] = (), may_taint: bool
) -> tuple[JsonObject, ...]:
    """Return what distinguishes the slices of a pool: `sharedCounters` or `devices`; at least one, even if empty.

    A group is what changes together, the devices of one GPU: it stays in one slice if it fits into one at all. Where
    devices may get taints, slices hold 64 from the start. So a GPU that falls ill changes one slice in place; changes
    of several would raise the generation, and leave the pool incomplete, and so unusable, until all are written.
    """
    features = ("taints", "consumesCounters")
    rich = may_taint or any(feature in device for group in groups for device in group for feature in features)
    bodies = [{"sharedCounters": part} for part in _parts(counter_sets, COUNTER_SETS_LIMIT)]
    bodies += [{"devices": part} for part in _packed(groups, RICH_LIMIT if rich else PLAIN_LIMIT)]
    return tuple(bodies) or ({"devices": []},)


def _packed(groups: Sequence[Sequence[JsonObject]], limit: int) -> list[list[JsonObject]]:
    packed: list[list[JsonObject]] = []
    for group in groups:
        for part in _parts(group, limit):
            if packed and len(packed[-1]) + len(part) <= limit:
                packed[-1] += part
            else:
                packed.append(part)
    return packed


def _parts(items: Sequence[JsonObject], limit: int) -> Iterator[list[JsonObject]]:
    for start in range(0, len(items), limit):
        yield list(items[start : start + limit])
