"""What an API server left out of a slice that it took: it drops silently the fields of features that are off. Pure."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any

from driver.slices.normal import normal

if TYPE_CHECKING:
    from collections.abc import Mapping


class Feature(enum.StrEnum):
    """A part of the API without which slices are built differently."""

    TAINTS = "device taints"
    NOTICES = "device taints without effect"
    PARTITIONS = "shared counters"
    SHARES = "multiple allocations of a device"


_FEATURE_OF = {
    "taints": Feature.TAINTS,
    "sharedCounters": Feature.PARTITIONS,
    "consumesCounters": Feature.PARTITIONS,
    "allowMultipleAllocations": Feature.SHARES,
}


def dropped_fields(asked: Mapping[str, Any], stored: Mapping[str, Any]) -> frozenset[str]:
    """Return the names of fields, of the spec or of a device, that were asked for and are not stored."""
    left, right = normal(asked), normal(stored)
    missing = {key for key, value in left.items() if value and not right.get(key)}
    kept = {device.get("name"): device for device in right["devices"]}
    for device in left["devices"]:
        missing |= device.keys() - kept.get(device.get("name"), device).keys()
    return frozenset(missing)


def features_of(fields: frozenset[str]) -> frozenset[Feature]:
    """Return the features that the loss of these fields shows to be off."""
    return frozenset(_FEATURE_OF[field] for field in fields if field in _FEATURE_OF)
