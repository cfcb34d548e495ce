"""Fake MIG devices under random creations and removals."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from driver.errors import MigError
from driver.inventory.fake_gpus import build_gpus
from driver.inventory.fake_mig import Board
from driver.inventory.fake_spec import parse_node
from driver.inventory.profiles import load_products

if TYPE_CHECKING:
    from driver.model.mig import MigState

PRODUCTS = sorted(name for name, product in load_products().items() if product.mig is not None)
ENGINES = ("compute_slices", "multiprocessors", "copy_engines", "decoders", "jpeg_engines", "ofa_engines")
STATES = {name: build_gpus(parse_node(f"{name}@mig", load_products()), "n")[0].mig for name in PRODUCTS}


def check(state: MigState) -> None:
    """Nothing overlaps, and no engine is there twice."""
    taken = [each for one in state.instances for each in one.placement.slices]
    taken += [each for one in state.bare for each in one.slices]
    assert len(taken) == len(set(taken))
    assert set(taken) <= set(range(state.memory_slices))
    whole = next(one for one in state.profiles if one.placements[0].size == state.memory_slices)
    for engine in ENGINES:
        assert sum(getattr(one.profile, engine) for one in state.instances) <= getattr(whole, engine)
    for profile in state.profiles:
        assert sum(one.profile.id == profile.id for one in state.instances) <= profile.max_instances


@given(product=st.sampled_from(PRODUCTS), data=st.data())
def test_nothing_overlaps_and_all_ends_empty(product, data):
    facts = STATES[product]
    assert facts is not None
    choices = [(one.id, place) for one in facts.profiles for place in one.placements]
    steps = data.draw(st.lists(st.tuples(st.sampled_from(["create", "bare", "remove"]), st.sampled_from(choices))))
    board = Board.at_boot("GPU-0", facts)
    uuids: list[str] = []
    for step, (profile, placement) in steps:
        before = board
        try:
            if step == "remove":
                board = board.without(placement)
                continue
            board = board.with_gpu_instance(profile, placement)
            if step == "create":
                board = board.with_compute_instance(placement)
                uuids.append(board.device(placement).uuid)
        except MigError:
            assert board is before
        check(board.state())
    assert len(uuids) == len(set(uuids))
    for _, placement in choices:
        board = board.without(placement)
    assert board.state() == facts
