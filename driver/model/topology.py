"""NVLink domains: the sets of GPUs on one node that reach each other over NVLink or NVSwitch."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from driver.model.device import Gpu


@dataclass(frozen=True, slots=True, kw_only=True)
class NvLinkDomain:
    """A set of connected GPUs; alone, `id` is the GPU's own UUID, so that `matchAttribute` stays right."""

    id: str
    members: tuple[str, ...]  # UUIDs, sorted

    @property
    def size(self) -> int:
        """How many GPUs reach each other."""
        return len(self.members)


def nvlink_domains(gpus: Sequence[Gpu]) -> dict[str, NvLinkDomain]:
    """Return each GPU's domain, by UUID. The id depends on the members alone, not on their order."""
    known = {gpu.uuid for gpu in gpus}
    groups = {gpu.uuid: {gpu.uuid} for gpu in gpus}
    for gpu in gpus:
        for peer, links in gpu.nvlink.peers:
            if links > 0 and peer in known:
                _join(groups, gpu.uuid, peer)
    switched = [gpu.uuid for gpu in gpus if gpu.nvlink.switched]
    for other in switched[1:]:
        _join(groups, switched[0], other)
    return {uuid: _domain(members) for uuid, members in groups.items()}


def _join(groups: dict[str, set[str]], left: str, right: str) -> None:
    if groups[left] is groups[right]:
        return
    merged = groups[left] | groups[right]
    for member in merged:
        groups[member] = merged


def _domain(members: Iterable[str]) -> NvLinkDomain:
    ordered = tuple(sorted(members))
    if len(ordered) == 1:
        return NvLinkDomain(id=ordered[0], members=ordered)
    digest = hashlib.sha256("\n".join(ordered).encode()).hexdigest()[:16]
    return NvLinkDomain(id=f"nvlink-{digest}", members=ordered)
