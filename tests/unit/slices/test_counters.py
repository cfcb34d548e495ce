from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

import pytest

from driver.inventory.profiles import load_products
from driver.model import names
from driver.model.device import Gpu
from driver.model.mig import MigProfile, MigState, Placement
from driver.slices.counters import COUNTERS_LIMIT, Counters, counters_of, render_set, render_whole, set_name
from tests.unit.slices.helpers import gpus

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

PRODUCTS = [product.name for product in load_products().values() if product.mig is not None]
PEER = ["memory", "multiprocessors", "copy-engines", "decoders", "encoders", "jpeg-engines", "ofa-engines"]
ENGINES = ("copy_engines", "decoders", "encoders", "jpeg_engines", "ofa_engines")

Part = tuple[MigProfile, Placement]


def mig_of(product: str) -> MigState:
    mig = gpus(product)[0].mig
    assert mig is not None
    return mig


def known(mig: MigState) -> Counters:
    counters = counters_of(mig)
    assert counters is not None
    return counters


def parts(mig: MigState) -> list[Part]:
    return [(profile, placement) for profile in mig.profiles for placement in profile.placements]


def layouts(mig: MigState, start: int = 0) -> Iterator[tuple[Part, ...]]:
    """Yield every set of disjoint partitions, whatever the profiles."""
    if start == mig.memory_slices:
        yield ()
        return
    for rest in layouts(mig, start + 1):
        yield rest
    for part in parts(mig):
        if part[1].start == start:
            for rest in layouts(mig, start + part[1].size):
                yield (part, *rest)


def hardware_allows(mig: MigState, layout: Sequence[Part]) -> bool:
    """Apply NVML's rules to disjoint partitions: instances per profile, and the engines that there are."""
    counts = Counter(profile.id for profile, _ in layout)
    if any(counts[profile.id] > profile.max_instances for profile in mig.profiles):
        return False
    whole = max(mig.profiles, key=lambda one: one.placements[0].size)
    return all(sum(getattr(profile, engine) for profile, _ in layout) <= getattr(whole, engine) for engine in ENGINES)


def counters_allow(counters: Counters, layout: Sequence[Part]) -> bool:
    taken: Counter[str] = Counter()
    for profile, placement in layout:
        taken.update(counters.taken_by(profile, placement))
    return all(amount <= counters.totals[name] for name, amount in taken.items())


@cache
def all_layouts(product: str) -> list[tuple[Part, ...]]:
    return list(layouts(mig_of(product)))


@pytest.mark.parametrize("product", PRODUCTS)
def test_the_counters_admit_what_the_hardware_can_make_and_nothing_else(product: str) -> None:
    mig = mig_of(product)
    counters = known(mig)
    allowed = 0
    for layout in all_layouts(product):
        expected = hardware_allows(mig, layout)
        assert counters_allow(counters, layout) is expected, [(one.name, where) for one, where in layout]
        allowed += expected
    assert allowed > len(parts(mig))
    assert allowed < len(all_layouts(product)) or product == "rtx-pro-6000"  # it has no profile that is limited
    assert counters.profiles == {profile.id for profile in mig.profiles}


@pytest.mark.parametrize("product", PRODUCTS)
def test_partitions_that_share_a_memory_slice_exclude_each_other(product: str) -> None:
    mig = mig_of(product)
    everything = parts(mig)
    for left in everything:
        for right in everything:
            if left[1].overlaps(right[1]):
                assert not counters_allow(known(mig), (left, right))


@pytest.mark.parametrize(
    ("product", "wanted", "fits"),
    [
        ("h100", ["1g.10gb"] * 7, True),
        ("h100", ["1g.20gb"] * 4, True),
        ("h100", ["4g.40gb", "3g.40gb"], True),
        ("h100", ["3g.40gb", "3g.40gb"], True),
        ("h100", ["2g.20gb"] * 3 + ["1g.20gb"], True),
        ("h100", ["1g.10gb+me"] + ["1g.10gb"] * 6, True),
        ("h100", ["1g.10gb+me"] * 2, False),
        ("h100", ["4g.40gb", "4g.40gb"], False),
        ("h100", ["1g.10gb"] * 8, False),
        ("a30", ["1g.6gb+me", "2g.12gb+me"], False),  # one JPEG engine, one OFA
        ("a30", ["2g.12gb+me", "2g.12gb"], True),
        ("rtx-pro-6000", ["1g.24gb"] * 4, True),
        ("rtx-pro-6000", ["2g.48gb", "1g.24gb", "1g.24gb"], True),
    ],
)
def test_known_combinations(product: str, wanted: list[str], fits: bool) -> None:
    mig = mig_of(product)
    found = [
        layout
        for layout in all_layouts(product)
        if Counter(profile.name for profile, _ in layout) == Counter(wanted) and counters_allow(known(mig), layout)
    ]
    assert bool(found) is fits


@pytest.mark.parametrize("product", PRODUCTS)
def test_the_names_are_the_peers(product: str) -> None:
    gpu = gpus(product)[0]
    counters = known(mig_of(product))
    slices = [f"memory-slice-{index}" for index in range(mig_of(product).memory_slices)]
    assert list(counters.totals) == PEER + slices
    assert render_set(gpu, counters)["name"] == "gpu-0-counter-set"
    assert all(names.is_dns_label(name) for name in counters.totals)
    assert len(counters.totals) <= COUNTERS_LIMIT
    assert all(render_set(gpu, counters)["counters"][name] == {"value": "1"} for name in slices)


@pytest.mark.parametrize("product", PRODUCTS)
def test_a_whole_gpu_takes_everything_and_each_partition_something(product: str) -> None:
    gpu, mig = gpus(product)[0], mig_of(product)
    counters = known(mig)
    (whole,) = render_whole(gpu, counters)
    assert whole == {"counterSet": "gpu-0-counter-set", "counters": render_set(gpu, counters)["counters"]}
    for profile, placement in parts(mig):
        taken = counters.taken_by(profile, placement)
        assert taken.keys() <= counters.totals.keys()
        assert taken["memory"] == profile.memory
        assert all(taken.values())


def test_P1_a_set_is_named_by_the_uuid_where_there_is_no_minor_number() -> None:
    gpu = Gpu(uuid="GPU-5F3A" + "-1234567890abcdef" * 4, index=0)
    other = replace(gpu, uuid=gpu.uuid + "0")
    assert set_name(Gpu(uuid="GPU-5F3A", index=0)) == "gpu-5f3a-counter-set"
    assert names.is_dns_label(set_name(gpu))
    assert set_name(gpu) != set_name(other)


# --- boards to come --------------------------------------------------------------------------------------------------


def profile(id_: int, *starts: int, size: int, most: int, ofa: int = 0) -> MigProfile:
    return MigProfile(
        name=f"{size}g.{id_}gb",
        id=id_,
        index=id_,
        compute_slices=size,
        max_instances=most,
        placements=tuple(Placement(start, size) for start in starts),
        memory=size << 30,
        multiprocessors=size,
        copy_engines=size,
        decoders=0,
        encoders=0,
        jpeg_engines=0,
        ofa_engines=ofa,
    )


def board(*profiles: MigProfile, slices: int = 4) -> MigState:
    return MigState(enabled=False, pending=False, switches_at_once=True, memory_slices=slices, profiles=profiles)


def test_a_limit_of_instances_that_nothing_else_says_gets_a_counter() -> None:
    gfx = profile(7, 0, 1, 2, 3, size=1, most=2)
    counters = known(board(profile(1, 0, 1, 2, 3, size=1, most=4), gfx, profile(0, 0, size=4, most=1)))
    assert counters.totals["profile-7-instances"] == 2
    assert [name for name in counters.totals if name.startswith("profile-")] == ["profile-7-instances"]
    assert counters_allow(counters, [(gfx, Placement(0, 1)), (gfx, Placement(1, 1))])
    assert not counters_allow(counters, [(gfx, Placement(start, 1)) for start in range(3)])


def test_without_a_profile_that_fills_the_gpu_the_limits_decide() -> None:
    small, media = profile(1, 0, 1, 2, 3, size=1, most=4), profile(2, 0, 1, 2, 3, size=1, most=1, ofa=1)
    counters = known(board(small, media))
    assert counters_allow(counters, [(media, Placement(3, 1)), *((small, Placement(at, 1)) for at in range(3))])
    assert not counters_allow(counters, [(media, Placement(0, 1)), (media, Placement(1, 1))])


@pytest.mark.parametrize(("slices", "offered"), [(12, True), (25, True), (26, False), (64, False)])
def test_a_gpu_with_more_slices_than_counters_is_not_partitioned(slices: int, offered: bool) -> None:
    counters = counters_of(board(profile(0, 0, size=slices, most=1), slices=slices))
    assert (counters is not None) is offered
    assert counters is None or len(counters.totals) <= COUNTERS_LIMIT


def test_what_cannot_be_limited_is_not_offered() -> None:
    limited = [profile(index, *range(24), size=1, most=2) for index in range(1, 5)]
    counters = known(board(profile(0, 0, size=24, most=1), *limited, slices=24))
    assert len(counters.totals) == COUNTERS_LIMIT
    assert counters.profiles == {0, 1}


@pytest.mark.parametrize(
    "mig",
    [
        board(),
        board(profile(1, size=1, most=1)),
        board(profile(1, 0, size=1, most=0)),
        board(profile(1, 3, size=2, most=1)),
    ],
    ids=["no profile", "no placement", "no instance", "beyond the slices"],
)
def test_a_gpu_that_offers_no_usable_profile_has_no_counters(mig: MigState) -> None:
    assert counters_of(mig) is None


def test_what_a_partition_takes_nothing_of_is_left_out() -> None:
    counters = known(mig_of("h100"))
    smallest = mig_of("h100").profiles[0]
    assert counters.taken_by(smallest, Placement(3, 1)) == {
        "memory": 9984 << 20,
        "multiprocessors": 16,
        "copy-engines": 1,
        "decoders": 1,
        "jpeg-engines": 1,
        "memory-slice-3": 1,
    }
