"""The best set of GPUs among those available. Pure.

In this order: the most NVLinks within the set; the fewest cut between it and what stays free, so that the next one who
asks finds sets too; nearness by PCIe and NUMA; the GPUs' own order. All of that is a sum over pairs and members, so a
set can be grown and changed step by step.

Small questions are answered exactly. Large ones by growing a set from each GPU and swapping members of the best ones
while that helps: that finds the best set on the topologies that are built (switches, meshes, pairs).
"""

from __future__ import annotations

import itertools
import math
from operator import itemgetter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from driver.deviceplugin.links import Links

EXACT = 150  # sets; looking at more takes longer than growing
STARTS = 16
IMPROVED = 3  # of the grown sets, the best ones
_NEAR = 1
_CUT = 1 << 20
_WITHIN = 1 << 40


class Choice:
    """One question: `candidates` in order of preference among equals."""

    def __init__(self, candidates: Sequence[str], links: Links) -> None:
        self._names = list(candidates)
        joined = [[links.joined(one, other) for other in self._names] for one in self._names]
        self._alone = [-_CUT * sum(row) for row in joined]
        self._pair = [
            [
                joined[row][column] * (_WITHIN + 2 * _CUT) + _NEAR * links.near(one, other)
                for column, other in enumerate(self._names)
            ]
            for row, one in enumerate(self._names)
        ]

    def best(self, must: Sequence[str], size: int) -> list[str]:
        """Return `size` of the candidates, `must` (some of them) included."""
        if size >= len(self._names):
            return list(self._names)
        fixed = [self._names.index(name) for name in must]
        rest = [position for position in range(len(self._names)) if position not in fixed]
        missing = size - len(fixed)
        if missing <= 0:
            chosen = fixed
        elif math.comb(len(rest), missing) <= EXACT:
            chosen = self._exact(fixed, rest, missing)
        else:
            chosen = self._grown(fixed, rest, missing)
        return [self._names[position] for position in sorted(chosen)]

    def value(self, chosen: Sequence[int]) -> int:
        """Return what a set of candidates, by their positions, is worth."""
        pairs = sum(self._pair[one][other] for one, other in itertools.combinations(chosen, 2))
        return pairs + sum(self._alone[one] for one in chosen)

    def _exact(self, fixed: list[int], rest: list[int], missing: int) -> list[int]:
        sets = ([*fixed, *more] for more in itertools.combinations(rest, missing))
        return max(sets, key=self.value)  # the first of equals

    def _grown(self, fixed: list[int], rest: list[int], missing: int) -> list[int]:
        starts = [[one] for one in rest[:STARTS]]
        grown: dict[tuple[int, ...], int] = {}
        partner = self._partners(rest)
        for start in starts:
            value, chosen = self._grow([*fixed, *start], rest, missing - 1, partner)
            grown.setdefault(tuple(sorted(chosen)), value)
            if fixed:  # what must be in may be far from where the rest is best together
                _, apart = self._grow(list(start), rest, missing - 1, partner)
                grown.setdefault(tuple(sorted([*fixed, *apart])), self.value([*fixed, *apart]))
        ranked = sorted(grown.items(), key=itemgetter(1), reverse=True)[:IMPROVED]
        improved = [self._improve(fixed, rest, list(chosen), value) for chosen, value in ranked]
        return max(improved, key=itemgetter(0))[1]

    def _grow(self, chosen: list[int], rest: list[int], missing: int, partner: dict[int, int]) -> tuple[int, list[int]]:
        """Add the best one, or the best one with its closest partner, again and again."""
        value = self.value(chosen)
        gain = {
            one: self._alone[one] + sum(self._pair[one][other] for other in chosen) for one in rest if one not in chosen
        }
        while len(gain) and missing > 0:
            found = max(gain, key=gain.__getitem__)
            adding: tuple[int, ...] = (found,)
            if missing > 1:
                adding = self._with_partner(found, gain, partner)
            for one in adding:
                value += gain.pop(one)
                chosen.append(one)
                row = self._pair[one]
                for other in gain:
                    gain[other] += row[other]
            missing -= len(adding)
        return value, chosen

    def _with_partner(self, found: int, gain: dict[int, int], partner: dict[int, int]) -> tuple[int, ...]:
        """Return two that are worth more together than the best one and whatever goes best with it; else that one."""
        row = self._pair[found]
        alone = gain[found] + max(gain[other] + row[other] for other in gain if other != found)
        best = alone
        adding: tuple[int, ...] = (found,)
        for one, other in partner.items():
            if one in gain and other in gain:
                together = gain[one] + gain[other] + self._pair[one][other]
                if together > best:
                    best, adding = together, (one, other)
        return adding

    def _partners(self, rest: list[int]) -> dict[int, int]:
        """Return the closest other one of each, once per pair."""
        closest = {one: max((other for other in rest if other != one), key=self._pair[one].__getitem__) for one in rest}
        return {one: other for one, other in closest.items() if one < other or closest[other] != one}

    def _improve(self, fixed: list[int], rest: list[int], chosen: list[int], value: int) -> tuple[int, list[int]]:
        """Swap one member for another while that is better."""
        while True:
            gain = [self._alone[one] + sum(row[other] for other in chosen) for one, row in enumerate(self._pair)]
            outside = [one for one in rest if one not in chosen]
            swaps = (
                (gain[one] - self._pair[one][out] - gain[out], out, one)
                for out in chosen
                if out not in fixed
                for one in outside
            )
            delta, out, one = max(swaps, key=itemgetter(0), default=(0, -1, -1))
            if delta <= 0:
                return value, chosen
            value += delta
            chosen = [one if member == out else member for member in chosen]
