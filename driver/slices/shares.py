"""Devices that several claims share: what of them can be asked for, and what a claim gets by default. Pure.

Names, steps and defaults are those of NVIDIA's driver. Beyond it, every other capacity of a MIG device gets a policy
that takes none of it by default: without one, the first claim takes the whole (KEP-5075), and nothing is left to share.
Whole GPUs, MIG devices and partitions are shared alike, as with NVIDIA's driver; the scheduler takes the counters of a
shared partition once, for as long as anybody holds a share of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from driver.model.quantity import MI, binary_si, parse_bytes
from driver.model.shares import ShareMode

if TYPE_CHECKING:
    from driver.model.json_object import JsonObject
    from driver.model.shares import Shares


def shared(item: JsonObject, shares: Shares) -> JsonObject:
    """Return a device of a slice as one that claims share; as it is where the mode says so, or can't be kept to."""
    if not shares:
        return item
    memory = _whole_mib(item)
    if shares.mode is ShareMode.MEMORY and not memory:
        return item  # nothing says how much there is to share
    capacity = {name: _free(value) for name, value in item.get("capacity", {}).items()}
    if "memory" in capacity:
        capacity["memory"] = _memory(memory, by_default=memory if shares.mode is ShareMode.MEMORY else 0)
    if shares.mode is ShareMode.COUNTED:
        capacity["shares"] = _limited(shares.count, least=1, by_default=1, step=1)
    return {**item, "allowMultipleAllocations": True, **({"capacity": capacity} if capacity else {})}


def _whole_mib(item: JsonObject) -> int:
    """Return the bytes of memory in whole MiB: a range must end at a multiple of its step."""
    value = item.get("capacity", {}).get("memory", {}).get("value", "0")
    return parse_bytes(value) // MI * MI


def _memory(total: int, *, by_default: int) -> JsonObject:
    if not total:
        return {"value": "0"}
    return _limited(total, least=min(by_default, MI), by_default=by_default, step=MI)


def _free(capacity: JsonObject) -> JsonObject:
    """Let claims ask for a capacity, and take none unasked."""
    amount = parse_bytes(capacity["value"])
    return _limited(amount, least=0, by_default=0, step=1) if amount else capacity


def _limited(total: int, *, least: int, by_default: int, step: int) -> JsonObject:
    bounds = {"min": binary_si(least), "max": binary_si(total), "step": binary_si(step)}
    return {"value": binary_si(total), "requestPolicy": {"default": binary_si(by_default), "validRange": bounds}}
