"""Who offers each GPU: DRA, the device-plugin API, or nobody. Pure.

One rule keeps a GPU from being given twice (K6): it never goes from one owner to another directly. Its owner first
stops offering it (draining), then, once nobody holds it, it belongs to nobody, and only when holders that were asked
after that are still none does the other one get it. Whoever gives a GPU away checks the owner at that moment, so
whatever was under way during the first look is seen by the second.
"""

from __future__ import annotations

import enum
import fnmatch
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING

from driver.model.wording import counted

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from driver.model.device import Gpu


class Owner(enum.StrEnum):
    """Through which API a GPU is offered."""

    DRA = "dra"
    DEVICE_PLUGIN = "device-plugin"
    WITHHELD = "withheld"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """Gives GPUs to an owner: those that any selector names, or `count` of those that no other rule names.

    `products` are patterns with `*`, compared without regard to case.
    """

    owner: Owner
    indices: tuple[int, ...] = ()
    uuids: tuple[str, ...] = ()
    pci_ids: tuple[str, ...] = ()
    products: tuple[str, ...] = ()
    count: int = 0
    source: str = "ownership"  # as messages name it

    def names(self, gpu: Gpu) -> bool:
        """Say whether a selector names this GPU."""
        return (
            gpu.index in self.indices
            or gpu.uuid in self.uuids
            or (gpu.pci_bus_id is not None and gpu.pci_bus_id in self.pci_ids)
            or any(fnmatch.fnmatchcase(gpu.product.lower(), pattern.lower()) for pattern in self.products)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """All rules; what none names is `default`'s."""

    default: Owner = Owner.DRA
    rules: tuple[Rule, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Ownership:
    """One GPU: who has it, who shall have it, and what that waits for (empty if nothing)."""

    owner: Owner = Owner.DRA
    wanted: Owner = Owner.DRA
    waiting_for: str = ""

    def offers(self, owner: Owner) -> bool:
        """Say whether `owner` may offer the GPU to new pods: it has it, and keeps it."""
        return self.owner is owner and self.wanted is owner and not self.waiting_for


ALL_DRA = Ownership()


@dataclass(frozen=True, slots=True, kw_only=True)
class Holders:
    """Who uses GPUs, by UUID: claims, and pods by the device-plugin API (None: the kubelet can't tell)."""

    claims: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: MappingProxyType({}))
    pods: Mapping[str, tuple[str, ...]] | None = field(default_factory=lambda: MappingProxyType({}))


def wanted_owners(
    gpus: Sequence[Gpu], rules: Rules, before: Mapping[str, Ownership]
) -> tuple[dict[str, Owner], tuple[str, ...]]:
    """Return who shall have each GPU, and what is wrong with the rules on this node.

    A GPU that rules give to different owners is withheld: no guess could be right. `count` rules take those that their
    owner has already, then the first others, so that nothing moves without need.
    """
    wanted: dict[str, Owner] = {}
    problems: list[str] = []
    for gpu in gpus:
        naming = [rule for rule in rules.rules if rule.names(gpu)]
        if len({rule.owner for rule in naming}) > 1:
            both = " and ".join(f"{rule.source} ({rule.owner})" for rule in naming)
            problems.append(f"{gpu.name} ({gpu.uuid}) is withheld: {both} both name it; let only one do so")
            wanted[gpu.uuid] = Owner.WITHHELD
        elif naming:
            wanted[gpu.uuid] = naming[0].owner
    problems.extend(_unmatched(gpus, rules))
    for rule in rules.rules:
        problems.extend(_count(gpus, rule, wanted, before))
    return {gpu.uuid: wanted.get(gpu.uuid, rules.default) for gpu in gpus}, tuple(problems)


def _unmatched(gpus: Sequence[Gpu], rules: Rules) -> Iterable[str]:
    for rule in rules.rules:
        have = {gpu.index for gpu in gpus}, {gpu.uuid for gpu in gpus}, {gpu.pci_bus_id for gpu in gpus}
        missing = [
            *(f"index {index}" for index in rule.indices if index not in have[0]),
            *(uuid for uuid in rule.uuids if uuid not in have[1]),
            *(f"PCI id {pci}" for pci in rule.pci_ids if pci not in have[2]),
        ]
        if missing:
            yield f"{rule.source} names GPUs that this node does not have: {', '.join(missing)}"


def _count(gpus: Sequence[Gpu], rule: Rule, wanted: dict[str, Owner], before: Mapping[str, Ownership]) -> Iterable[str]:
    free = [gpu.uuid for gpu in gpus if gpu.uuid not in wanted]
    free.sort(key=lambda uuid: _distance(before.get(uuid), rule.owner))  # stable: else in the GPUs' order
    for uuid in free[: rule.count]:
        wanted[uuid] = rule.owner
    if len(free) < rule.count:
        yield f"{rule.source} wants {counted(rule.count, 'GPU')} for {rule.owner}, but only {len(free)} are left for it"


def _distance(before: Ownership | None, owner: Owner) -> int:
    if before is None:
        return 2
    return 0 if before.wanted is owner else 1 if before.owner is owner else 2


def assign(wanted: Mapping[str, Owner], before: Mapping[str, Ownership], holders: Holders) -> dict[str, Ownership]:
    """Move each GPU one step towards its wanted owner. To be called again, with holders asked anew, while any waits.

    `holders` must have been asked after `before` was in force.
    """
    return {uuid: _step(uuid, owner, before.get(uuid), holders) for uuid, owner in wanted.items()}


def _step(uuid: str, wanted: Owner, before: Ownership | None, holders: Holders) -> Ownership:
    claims = holders.claims.get(uuid, ())
    pods = holders.pods.get(uuid, ()) if holders.pods is not None else ()
    if claims and pods:
        return Ownership(owner=Owner.WITHHELD, wanted=wanted, waiting_for=_told((*claims, *pods)))
    owner = before.owner if before is not None else Owner.WITHHELD
    if claims or pods:
        return _held(owner, wanted, Owner.DRA if claims else Owner.DEVICE_PLUGIN, claims or pods)
    if owner is wanted:
        return Ownership(owner=owner, wanted=wanted)
    if holders.pods is None and before is not None:
        return Ownership(owner=owner, wanted=wanted, waiting_for="the kubelet to tell which pods hold GPUs")
    if Owner.WITHHELD in (owner, wanted):
        return Ownership(owner=wanted, wanted=wanted)
    return Ownership(owner=Owner.WITHHELD, wanted=wanted, waiting_for=HANDING_OVER)


HANDING_OVER = "a last look at who holds it"
"""What a GPU waits for that belongs to nobody between two owners."""


def _held(owner: Owner, wanted: Owner, holder: Owner, names: tuple[str, ...]) -> Ownership:
    """Decide on a GPU that one side uses: it stays with that side, or with nobody if another one had it."""
    if holder is wanted and owner in (wanted, Owner.WITHHELD):
        return Ownership(owner=wanted, wanted=wanted)
    if owner in (holder, Owner.WITHHELD):
        return Ownership(owner=holder, wanted=wanted, waiting_for=_told(names))
    return Ownership(owner=Owner.WITHHELD, wanted=wanted, waiting_for=_told(names))


def _told(names: tuple[str, ...]) -> str:
    shown = ", ".join(names[:4])
    return f"{shown} and {len(names) - 4} more" if len(names) > 4 else shown
