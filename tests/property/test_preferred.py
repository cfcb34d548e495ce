from __future__ import annotations

import itertools
from types import SimpleNamespace

from hypothesis import given
from hypothesis import strategies as st

from driver.deviceplugin.subset import Choice
from tests.unit.deviceplugin.helpers import config, preference, shared, snapshot

TOPOLOGIES = {
    "switch": lambda one, other: 180,
    "none": lambda one, other: 0,
    "pairs": lambda one, other: 40 if one // 2 == other // 2 else 0,
    "fours": lambda one, other: 40 if one // 4 == other // 4 else 1,
    "mesh": lambda one, other: (10 + 10 * (abs(one - other) == 3)) if one // 4 == other // 4 else 1,
}
SHAPES = st.sampled_from(sorted(TOPOLOGIES))


def links(shape: str) -> SimpleNamespace:
    joined = TOPOLOGIES[shape]
    return SimpleNamespace(joined=lambda one, other: joined(int(one), int(other)) if one != other else 0,
                           near=lambda one, other: 2 * (int(one) // 8 == int(other) // 8))  # fmt: skip


@st.composite
def questions(draw: st.DrawFn) -> tuple[str, list[str], list[str], int]:
    candidates = sorted(draw(st.sets(st.integers(0, 15), min_size=2, max_size=13)))
    size = draw(st.integers(1, min(5, len(candidates))))
    must = draw(st.lists(st.sampled_from(candidates), max_size=size, unique=True))
    return draw(SHAPES), [str(one) for one in candidates], [str(one) for one in must], size


@given(questions())
def test_the_set_is_the_best_there_is(question: tuple[str, list[str], list[str], int]) -> None:
    shape, candidates, must, size = question
    choice = Choice(candidates, links(shape))
    found = choice.best(must, size)
    assert len(set(found)) == size
    assert set(must) <= set(found) <= set(candidates)
    sets = itertools.combinations(range(len(candidates)), size)
    best = max(choice.value(one) for one in sets if {candidates.index(name) for name in must} <= set(one))
    assert choice.value([candidates.index(name) for name in found]) == best


@given(st.data(), st.sampled_from(["distributed", "packed", ""]), st.integers(2, 5))
def test_replicas_are_available_and_as_spread_as_can_be(data: st.DataObject, policy: str, replicas: int) -> None:
    wanted, ids = preference(snapshot("l4:4"), config(shared(replicas), shared_devices_allocation_policy=policy))
    available = data.draw(st.lists(st.sampled_from(ids), min_size=1, unique=True))
    size = data.draw(st.integers(1, len(available)))
    must = data.draw(st.lists(st.sampled_from(available), max_size=size, unique=True))
    chosen = wanted.prefer(available, must, size)
    assert len(set(chosen)) == size
    assert set(must) <= set(chosen) <= set(available)
    gpus = {one.partition("::")[0] for one in available}
    if policy != "packed" and not must:
        assert len({one.partition("::")[0] for one in chosen}) == min(size, len(gpus))
