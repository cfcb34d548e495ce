from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from driver.inventory.base import Reading
from driver.model.device import Gpu
from driver.monitor.observation import advance, unavailable

if TYPE_CHECKING:
    from driver.model.snapshot import Snapshot

GPUS = tuple(Gpu(uuid=f"GPU-{n}", index=n, minor=n if n < 5 else None) for n in range(7))


def seen_in(order: list[int]) -> Reading:
    return Reading(gpus=tuple(replace(GPUS[n], index=index) for index, n in enumerate(order)))


orders = st.lists(st.sampled_from(range(len(GPUS))), unique=True)


@given(st.lists(st.one_of(orders, st.none()), min_size=1))
def test_A10_names_and_order_depend_on_identity_alone(steps: list[list[int] | None]) -> None:
    snapshot: Snapshot | None = None
    ever: set[int] = set()
    for order in steps:
        snapshot = unavailable(snapshot, "down") if order is None else advance(snapshot, seen_in(order))
        ever |= set(order or ())
        now = set(order or ())
        assert [gpu.uuid for gpu in snapshot.gpus] == [GPUS[n].uuid for n in sorted(ever)]
        assert [gpu.name for gpu in snapshot.gpus] == [GPUS[n].name for n in sorted(ever)]
        assert snapshot.health.keys() == {GPUS[n].uuid for n in ever - now}


@given(orders, orders)
def test_a_reading_again_is_the_same_snapshot(first: list[int], second: list[int]) -> None:
    before = advance(advance(None, seen_in(first)), seen_in(second))
    assert advance(before, seen_in(second)) == before
