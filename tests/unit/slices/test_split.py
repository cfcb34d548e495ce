from __future__ import annotations

from typing import Any

import pytest

from driver.slices.split import split
from tests.unit.slices.helpers import add, new_store


def devices(count: int, **special: Any) -> list[dict[str, Any]]:
    return [{"name": f"d{number}", **(special if number == 0 else {})} for number in range(count)]


def counter_sets(count: int) -> list[dict[str, Any]]:
    return [{"name": f"set-{number}", "counters": {"memory": {"value": "1"}}} for number in range(count)]


TAINTS = [{"key": "a.com/k", "effect": "NoSchedule"}]
CONSUMES = [{"counterSet": "set-0", "counters": {"memory": {"value": "1"}}}]


@pytest.mark.parametrize(
    ("count", "special", "may_taint", "sizes"),
    [
        (0, {}, False, [0]),
        (128, {}, False, [128]),
        (129, {}, False, [128, 1]),
        (65, {"taints": TAINTS}, False, [64, 1]),
        (65, {"consumesCounters": CONSUMES}, False, [64, 1]),
        (65, {}, True, [64, 1]),
    ],
)
def test_devices_are_spread_in_order(count: int, special: dict[str, Any], may_taint: bool, sizes: list[int]) -> None:
    bodies = split([[one] for one in devices(count, **special)], may_taint=may_taint)
    assert [len(body["devices"]) for body in bodies] == sizes
    assert [device for body in bodies for device in body["devices"]] == devices(count, **special)


@pytest.mark.parametrize(
    ("groups", "sizes"),
    [([26] * 16, [52] * 8), ([60, 5, 3], [60, 8]), ([65], [64, 1]), ([1, 130, 1], [1, 64, 64, 3]), ([0, 64], [64])],
)
def test_what_changes_together_stays_together(groups: list[int], sizes: list[int]) -> None:
    bodies = split([devices(size) for size in groups], may_taint=True)
    assert [len(body["devices"]) for body in bodies] == sizes


@pytest.mark.parametrize(("sets", "sizes"), [(1, [1]), (8, [8]), (9, [8, 1]), (16, [8, 8])])
def test_counter_sets_come_first_in_slices_of_their_own(sets: int, sizes: list[int]) -> None:
    bodies = split([devices(2, consumesCounters=CONSUMES)], counter_sets=counter_sets(sets), may_taint=False)
    assert [len(body.get("sharedCounters", ())) for body in bodies] == [*sizes, 0]
    assert [sorted(body) for body in bodies] == [["sharedCounters"]] * len(sizes) + [["devices"]]
    fixed = {"driver": "d.com", "nodeName": "n"}
    pool = {"name": "n", "generation": 1, "resourceSliceCount": len(bodies)}
    add(new_store(), [{**fixed, "pool": pool, **body} for body in bodies])
