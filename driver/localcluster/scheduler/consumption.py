"""How much of a shared device's capacity one allocation takes. Pure.

Source: KEP-5075 and the API's description of `CapacityRequestPolicy`: a request is rounded up to what the policy
allows; without a request the policy's default is taken, without a policy the whole.
"""

from __future__ import annotations

from fractions import Fraction
from math import ceil
from typing import TYPE_CHECKING

from driver.localcluster.scheduler.celvalues import show
from driver.localcluster.scheduler.devices import Capacity, Device, Name, Policy, qualify

if TYPE_CHECKING:
    from collections.abc import Mapping


def unmet(device: Device, wanted: Mapping[str, Fraction]) -> str | None:
    """Say which requested capacity the device can't give even when nobody uses it; None if it can give all."""
    for name, amount in wanted.items():
        size = device.capacity.get(qualify(device.id.driver, name))
        if size is None:
            return f"it has no capacity {name}"
        taken = rounded(amount, size.policy) if device.multiple else amount
        if taken is None:
            return _beyond(name, amount, size.policy)
        if taken > size.value:
            return f"{name} {show(size.value)} is below {show(taken)} by {show(taken - size.value)}"
    return None


def _beyond(name: str, amount: Fraction, policy: Policy | None) -> str:
    most = max(policy.values, default=policy.high) if policy else None
    if most is None or amount <= most:  # rounding up has led beyond the range
        return f"{name} {show(amount)}, rounded up to a step, is more than its request policy allows"
    over = show(amount - most)
    return f"{name} {show(amount)} is above {show(most)}, the most that its request policy allows, by {over}"


def consumed(device: Device, wanted: Mapping[str, Fraction]) -> dict[Name, Fraction]:
    """Return what an allocation of a shared device takes of each of its capacities; `unmet` was asked before."""
    asked = {qualify(device.id.driver, name): amount for name, amount in wanted.items()}
    return {name: _taken(size, asked.get(name)) for name, size in device.capacity.items()}


def rounded(amount: Fraction, policy: Policy | None) -> Fraction | None:
    """Round a request up to what the policy allows; None if it is beyond all of it."""
    if policy is None:
        return amount
    if policy.values:
        return next((value for value in sorted(policy.values) if value >= amount), None)
    low = policy.low if policy.low is not None else Fraction(0)
    taken = max(amount, low)
    if policy.step:
        taken = low + ceil((taken - low) / policy.step) * policy.step
    return None if policy.high is not None and taken > policy.high else taken


def _taken(size: Capacity, asked: Fraction | None) -> Fraction:
    if asked is not None:
        return rounded(asked, size.policy) or Fraction(0)
    default = size.policy.default if size.policy else None
    return size.value if default is None else default
