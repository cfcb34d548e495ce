from __future__ import annotations

import pytest

from driver.model.device import FullGpu, MigPartition
from driver.slices.order import arrange
from hack.benchmarks.fragmentation import Board, FirstFit, arrivals, compare, mixes, served
from tests.unit.slices.helpers import partitioned, snapshot


def placements(spec: str) -> dict[str, list[int]]:
    """Return the starts of each profile's partitions, in order."""
    found: dict[str, list[int]] = {}
    for device in arrange(partitioned(spec).devices()):
        if isinstance(device, MigPartition):
            found.setdefault(device.profile.name, []).append(device.placement.start)
    return found


def test_small_profiles_leave_room_for_large_ones() -> None:
    found = placements("h100")
    assert list(found.items()) == [
        ("1g.10gb", [6, 5, 4, 3, 2, 1, 0]),
        ("1g.10gb+me", [6, 5, 4, 3, 2, 1, 0]),
        ("1g.20gb", [6, 4, 2, 0]),
        ("2g.20gb", [4, 2, 0]),
        ("3g.40gb", [4, 0]),  # 4g fits at 0 alone
        ("4g.40gb", [0]),
        ("7g.80gb", [0]),
    ]


@pytest.mark.parametrize("spec", ["h100:3", "a30@mig,h100:2", "l4,h100"])
def test_gpus_stay_together_and_the_whole_comes_last(spec: str) -> None:
    ordered = arrange(partitioned(spec).devices())
    minors = [device.gpu.minor for device in ordered]
    assert minors == sorted(minors, key=lambda minor: minor or 0)
    last = {device.gpu.minor: device for device in ordered}
    assert all(
        isinstance(device, FullGpu) for device in last.values() if not spec.startswith("a30") or device.gpu.minor
    )
    assert sorted(device.name for device in ordered) == sorted(device.name for device in partitioned(spec).devices())


def test_who_asks_by_memory_gets_the_least_that_fits() -> None:
    ordered = [one for one in arrange(partitioned("h100").devices()) if isinstance(one, MigPartition)]
    sizes = [device.profile.memory for device in ordered]
    assert sizes == sorted(sizes)
    plain_first = [device.profile.name for device in ordered if device.profile.memory == sizes[0]]
    assert plain_first == ["1g.10gb"] * 7 + ["1g.10gb+me"] * 7


def test_existing_mig_devices_keep_their_order() -> None:
    spec = "h100@mig=1g.10gb:0+3g.40gb:4,l4"
    assert arrange(snapshot(spec).devices()) == list(snapshot(spec).devices())


@pytest.mark.parametrize(("product", "gpus", "gain"), [("h100", 1, 0.01), ("h100", 4, 0.004), ("a100-80", 1, 0.01)])
def test_more_requests_are_served_than_in_the_order_of_the_tables(product: str, gpus: int, gain: float) -> None:
    for outcome in compare(product, gpus, number=1200, seeds=(1,)):
        assert outcome.chosen >= outcome.naive, outcome
        if outcome.mix == "all alike":
            assert outcome.chosen >= outcome.naive + gain, outcome
        assert outcome.chosen >= outcome.best_fit - 0.02, outcome  # what a scheduler could do that sees the state


@pytest.mark.parametrize(("product", "gpus"), [("a30", 2), ("rtx-pro-6000", 2), ("b200", 2)])
def test_no_product_is_worse_off(product: str, gpus: int) -> None:
    for outcome in compare(product, gpus, number=800, seeds=(1,)):
        assert outcome.chosen >= outcome.naive, outcome


def test_the_simulation_loses_nothing() -> None:
    board = Board("h100", 2)
    strategy = FirstFit(board, board.chosen)
    requests = list(arrivals(board, mixes(board)["all alike"], 0.5, 300, seed=3))
    assert 0 < served(strategy, requests) < 1
    for ticket in list(strategy.held):
        strategy.give(ticket)
    assert strategy.free == board.empty()
    assert requests == list(arrivals(board, mixes(board)["all alike"], 0.5, 300, seed=3))
