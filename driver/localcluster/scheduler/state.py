"""Who holds which device: the sum of all allocated claims. Changed claim by claim; reads nothing else."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from driver.localcluster.scheduler.devices import DeviceId, Name, qualify
from driver.localcluster.scheduler.requests import key_of
from driver.model import quantity

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from fractions import Fraction

    Object = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """One claim's hold of a device; `shared` if it came with a share id, then `consumed` says how much it takes."""

    claim: str
    shared: bool
    consumed: Mapping[Name, Fraction]


class AllocatedState:
    """The holds of all claims. Those with admin access hold nothing."""

    def __init__(self, claims: Iterable[Object] = ()) -> None:
        self._by_device: dict[DeviceId, list[tuple[str, Use]]] = {}
        self._by_claim: dict[str, frozenset[DeviceId]] = {}
        for claim in claims:
            self.put(claim)

    def put(self, claim: Object) -> bool:
        """Take over what a claim's status says now; return whether that freed a device."""
        uid = claim["metadata"]["uid"]
        before = self._by_claim.get(uid, frozenset())
        self.drop(uid)
        uses = list(_uses(claim))
        for device, use in uses:
            self._by_device.setdefault(device, []).append((uid, use))
        held = frozenset(device for device, _ in uses)
        if held:
            self._by_claim[uid] = held
        return bool(before - held)

    def drop(self, uid: str) -> bool:
        """Forget a claim; return whether that freed a device."""
        held = self._by_claim.pop(uid, frozenset())
        for device in held:
            left = [item for item in self._by_device[device] if item[0] != uid]
            if left:
                self._by_device[device] = left
            else:
                del self._by_device[device]
        return bool(held)

    def uses(self, device: DeviceId) -> list[Use]:
        """Return all holds of a device."""
        return [use for _, use in self._by_device.get(device, ())]


def _uses(claim: Object) -> Iterable[tuple[DeviceId, Use]]:
    key = key_of(claim)
    allocation = (claim.get("status") or {}).get("allocation") or {}
    for result in (allocation.get("devices") or {}).get("results") or ():
        if result.get("adminAccess"):
            continue
        consumed = {
            qualify(result["driver"], name): quantity.parse(str(value))
            for name, value in (result.get("consumedCapacity") or {}).items()
        }
        use = Use(claim=key, shared=result.get("shareID") is not None, consumed=consumed)
        yield DeviceId(result["driver"], result["pool"], result["device"]), use
