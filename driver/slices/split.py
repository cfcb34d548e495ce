"""Devices and counter sets spread over slices within the API's limits. Pure.

A slice has shared counters or devices, never both (Kubernetes 1.35 and later).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

JsonObject = dict[str, Any]

PLAIN_LIMIT = 128  # devices of a slice
RICH_LIMIT = 64  # of one in which any device has a taint or consumes counters
COUNTER_SETS_LIMIT = 8


def split(
    devices: Sequence[JsonObject], *, counter_sets: Sequence[JsonObject] = (), may_taint: bool
) -> tuple[JsonObject, ...]:
    """Return what distinguishes the slices of a pool: `sharedCounters` or `devices`; at least one, even if empty.

    Where devices may get taints, slices hold 64 from the start: a GPU that falls ill then changes one slice in place.
    Slices split anew at that moment would leave the pool incomplete, and so unusable, until all of them are written.
    """
    rich = may_taint or any("taints" in device or "consumesCounters" in device for device in devices)
    bodies = [{"sharedCounters": part} for part in _parts(counter_sets, COUNTER_SETS_LIMIT)]
    bodies += [{"devices": part} for part in _parts(devices, RICH_LIMIT if rich else PLAIN_LIMIT)]
    return tuple(bodies) or ({"devices": []},)


def _parts(items: Sequence[JsonObject], limit: int) -> Iterator[list[JsonObject]]:
    for start in range(0, len(items), limit):
        yield list(items[start : start + limit])
