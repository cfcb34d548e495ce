from __future__ import annotations

import pytest

from driver.model.mig import Placement, profile_name


@pytest.mark.parametrize(
    ("left", "right", "overlap"),
    [((0, 1), (1, 1), False), ((0, 4), (3, 1), True), ((4, 4), (0, 4), False), ((0, 8), (7, 1), True)],
)
def test_placements_overlap_where_they_share_a_slice(
    left: tuple[int, int], right: tuple[int, int], overlap: bool
) -> None:
    assert Placement(*left).overlaps(Placement(*right)) is overlap
    assert Placement(*right).overlaps(Placement(*left)) is overlap


@pytest.mark.parametrize(
    ("total", "memory", "slices", "name"),
    [
        (40960, 4864, 1, "1g.5gb"),
        (40960, 20096, 4, "4g.20gb"),
        (81559, 9984, 1, "1g.10gb"),
        (81559, 81152, 7, "7g.80gb"),
        (143771, 16384, 1, "1g.18gb"),
        (143771, 33024, 1, "1g.35gb"),
        (143771, 71168, 3, "3g.71gb"),
        (183359, 20992, 1, "1g.23gb"),
        (183359, 91136, 4, "4g.90gb"),
        (189471, 46592, 2, "2g.47gb"),
        (97887, 48512, 2, "2g.48gb"),
        (24576, 5952, 1, "1g.6gb"),
    ],
)
def test_profile_names_round_halves_up(total: int, memory: int, slices: int, name: str) -> None:
    assert profile_name(memory, total, slices) == name


def test_M5_profiles_with_attributes_have_names_of_their_own() -> None:
    assert profile_name(9984, 81559, 1, ("me",)) == "1g.10gb+me"
