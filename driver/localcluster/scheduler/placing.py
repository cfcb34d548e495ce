"""Chooses the node for one pod, with the devices of its claims there. Pure: reads the view, changes nothing."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from driver.errors import InvalidValueError
from driver.localcluster.scheduler import allocator, diagnosis, extended, fit, nodes
from driver.localcluster.scheduler.outcome import Allocation, SchedulerError, Unsatisfiable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from driver.localcluster.scheduler.extended import SpecialClaim
    from driver.localcluster.scheduler.view import ClusterView

    Object = Mapping[str, Any]

_ALL_NODES = 100
"""Up to so many nodes all are tried, as the real scheduler does."""
_ENOUGH = 3
"""In larger clusters, so many nodes that fit are enough to choose from."""
_DETAILS_MAX = 3
_MESSAGE_MAX = 900


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Where a pod goes; `allocations` by the key of the claim, for those that were not allocated yet."""

    node: str
    allocations: Mapping[str, dict[str, Any]]
    special: SpecialClaim | None
    score: tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why a pod stays pending; `reason` is Unschedulable or SchedulerError."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Misfit:
    """Why one node is not it."""

    reasons: tuple[str, ...]
    detail: Unsatisfiable | None = None


class Placer:
    """Places pods on the nodes of a view; takes turns among the nodes of a large cluster."""

    def __init__(self, view: ClusterView, new_id: Callable[[], str]) -> None:
        self._view, self._new_id = view, new_id
        self._next = 0

    def place(self, pod: Object, claims: Sequence[Object]) -> Placement | Refusal:
        """Find the best node: the best alternatives of its claims first, then the fewest pods."""
        misfits: dict[str, _Misfit] = {}
        best: Placement | None = None
        found = 0
        try:
            for node in self._candidates():
                judged = self._try(pod, claims, node)
                if isinstance(judged, _Misfit):
                    misfits[nodes.name_of(node)] = judged
                    if judged.detail and judged.detail.everywhere:
                        return self._hopeless(judged.detail)
                    continue
                found += 1
                best = judged if best is None or judged.score > best.score else best
                if found >= _ENOUGH and len(self._view.nodes) > _ALL_NODES:
                    break
        except (SchedulerError, InvalidValueError) as exc:
            where = f" ({exc.where})" if isinstance(exc, SchedulerError) and exc.where else ""
            return Refusal(reason="SchedulerError", message=f'running "DynamicResources" filter plugin: {exc}{where}')
        return best or self._refusal(misfits)

    def _candidates(self) -> Iterator[Object]:
        names = sorted(self._view.nodes)
        if len(names) > _ALL_NODES:
            start = self._next % len(names)
            names = names[start:] + names[:start]
        for name in names:
            self._next += 1
            yield self._view.nodes[name]

    def _try(self, pod: Object, claims: Sequence[Object], node: Object) -> Placement | _Misfit:
        name = nodes.name_of(node)
        if why := fit.why_not_node(pod["spec"], node):
            return _Misfit(reasons=(why,))
        backed, short = self._shortages(pod, name)
        if short:
            return _Misfit(reasons=tuple(short))
        for claim in claims:
            selector = _allocation(claim).get("nodeSelector")
            if selector and not nodes.selector_matches(selector, node):
                return _Misfit(reasons=("node(s) can't use a claim that is allocated elsewhere",))
        special = extended.special_claim(pod, backed, self._view.classes) if backed else None
        wanted = [claim for claim in claims if not _allocation(claim)] + ([special.claim] if special else [])
        return self._allocate(wanted, special, node)

    def _allocate(self, wanted: Sequence[Object], special: SpecialClaim | None, node: Object) -> Placement | _Misfit:
        name = nodes.name_of(node)
        outcome = (
            allocator.allocate(
                wanted,
                self._view.classes,
                self._view.pools.for_node(name),
                self._view.state,
                node,
                new_id=self._new_id,
            )
            if wanted
            else Allocation(claims={})
        )
        if isinstance(outcome, Unsatisfiable):
            outcome = special.in_pods_words(outcome) if special else outcome
            return _Misfit(reasons=("cannot allocate all claims",), detail=outcome)
        score = (outcome.score, -self._view.pods_on(name))
        return Placement(node=name, allocations=outcome.claims, special=special, score=score)

    def _shortages(self, pod: Object, node: str) -> tuple[list[str], list[str]]:
        """Return the extended resources that devices of a class have to provide there, and what is short."""
        wanted, total = fit.amounts(pod["spec"]), self._view.allocatable(node)
        absent = [name for name, amount in wanted.items() if amount and fit.is_extended(name) and not total.get(name)]
        classes = self._view.classes if self._view.extended else {}
        backed = [name for name in absent if extended.class_of(name, classes)]
        others = {name: amount for name, amount in wanted.items() if name not in backed}
        return backed, fit.shortages(others, self._view.used(node), total, self._view.pods_on(node))

    def _hopeless(self, detail: Unsatisfiable) -> Refusal:
        count = len(self._view.nodes)
        message = f"0/{count} nodes are available: {diagnosis.describe(detail)}."
        return Refusal(reason="Unschedulable", message=message)

    def _refusal(self, misfits: Mapping[str, _Misfit]) -> Refusal:
        count = len(self._view.nodes)
        if not count:
            return Refusal(reason="Unschedulable", message="no nodes available to schedule pods")
        reasons = Counter(reason for misfit in misfits.values() for reason in misfit.reasons)
        summary = ", ".join(sorted(f"{number} {reason}" for reason, number in reasons.items()))
        message = f"0/{count} nodes are available: {summary}.{_details(misfits)}"
        return Refusal(reason="Unschedulable", message=message)


def _details(misfits: Mapping[str, _Misfit]) -> str:
    """Say what failed on which node; nodes with the same words are named together.

    Nodes without devices are no news, unless there are no others.
    """
    failed = [(node, misfit.detail) for node, misfit in misfits.items() if misfit.detail is not None]
    alike: dict[str, list[str]] = {}
    for node, detail in [item for item in failed if _has_devices(item[1])] or failed:
        alike.setdefault(diagnosis.describe(detail), []).append(node)
    parts = []
    for words, names in list(alike.items())[:_DETAILS_MAX]:
        more = f" (and {len(names) - 1} more node{'s' * (len(names) > 2)})" if len(names) > 1 else ""
        parts.append(f" On {names[0]}{more}: {words}.")
    text = "".join(parts)
    return text if len(text) <= _MESSAGE_MAX else f"{text[: _MESSAGE_MAX - 3]}..."


def _has_devices(detail: Unsatisfiable) -> bool:
    return bool(detail.unusable) or any(finding.obstacles or finding.fitting for finding in detail.findings)


def _allocation(claim: Object) -> Mapping[str, Any]:
    found: Mapping[str, Any] = (claim.get("status") or {}).get("allocation") or {}
    return found
