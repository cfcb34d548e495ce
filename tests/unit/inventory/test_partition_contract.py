"""What every inventory promises about changing MIG: the fake one and NVML's (on the fake library) pass the same."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from driver.errors import DeviceNotReadyError, GpuLostError, InventoryError, MigError
from driver.inventory.profiles import load_products
from driver.model.mig import Placement
from tests.nvml.fake_nvml import COMPILER
from tests.unit.inventory.partition_rig import FakeRig, NvmlRig, Rig, close, described

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from driver.inventory.base import Partitioner

MIG_PRODUCTS = sorted(name for name, product in load_products().items() if product.mig is not None)
needs_compiler = pytest.mark.skipif(COMPILER is None, reason="no C compiler (cc) for the fake NVML library")


@pytest.fixture(params=[pytest.param(FakeRig, id="fake"), pytest.param(NvmlRig, id="nvml", marks=needs_compiler)])
async def rig_of(request, tmp_path) -> AsyncIterator[Callable[[str], Rig]]:
    rigs: list[Rig] = []

    def make(gpus: str) -> Rig:
        rigs.append(request.param(tmp_path, gpus))
        return rigs[-1]

    yield make
    for rig in rigs:
        await close(rig)


@pytest.mark.parametrize("product", MIG_PRODUCTS)
async def test_every_profile_at_every_placement(rig_of, product):
    rig = rig_of(f"{product}@mig")
    (gpu,) = (await rig.inventory.read()).gpus
    partitioner: Partitioner = rig.inventory
    for profile in gpu.mig.profiles:
        for placement in profile.placements:
            made = await partitioner.create_mig(gpu.uuid, profile.id, placement)
            assert (made.profile, made.placement, made.name) == (profile, placement, profile.name)
            assert (await partitioner.mig_state(gpu.uuid)).instances == (made,)
            assert await partitioner.destroy_mig(gpu.uuid, placement) is True
    assert await partitioner.mig_state(gpu.uuid) == gpu.mig


async def test_a_reading_shows_what_was_made(rig_of):
    rig = rig_of("h100@mig,h100@mig=1g.10gb:6")
    before = (await rig.inventory.read()).gpus
    made = await rig.inventory.create_mig(before[1].uuid, 9, Placement(0, 4))
    after = (await rig.inventory.read()).gpus
    assert after[0] == before[0]
    assert set(after[1].mig.instances) == {*before[1].mig.instances, made}
    assert after[1].mig == await rig.inventory.mig_state(before[1].uuid)
    assert await rig.inventory.destroy_mig(
        before[1].uuid, Placement(6, 1)
    )  # that somebody else made it is no matter here
    assert await rig.devices(before[1].uuid) == [described(made)]


@pytest.mark.parametrize(
    "wanted",
    [
        [(19, Placement(start, 1)) for start in (6, 0, 5, 1, 4, 2, 3)],
        [(9, Placement(4, 4)), (5, Placement(0, 4))],
        [
            (14, Placement(2, 2)),
            (14, Placement(0, 2)),
            (15, Placement(6, 2)),
            (20, Placement(4, 1)),
            (19, Placement(5, 1)),
        ],
    ],
    ids=["7x1g", "3g+4g", "mixed"],
)
async def test_what_fits_together(rig_of, wanted):
    rig = rig_of("h100@mig")
    uuid = await rig.uuid()
    made = [await rig.inventory.create_mig(uuid, *one) for one in wanted]
    assert await rig.devices(uuid) == sorted(map(described, made))
    assert len({one.uuid for one in made}) == len({one.gpu_instance_id for one in made}) == len(wanted)
    for _, placement in wanted:
        assert await rig.inventory.destroy_mig(uuid, placement)
    assert await rig.devices(uuid) == []


@pytest.mark.parametrize(
    "first", [(19, Placement(1, 1)), (14, Placement(2, 2)), (9, Placement(4, 4)), (0, Placement(0, 8))]
)
async def test_overlapping_placements_are_refused(rig_of, first):
    rig = rig_of("h100@mig")
    (gpu,) = (await rig.inventory.read()).gpus
    made = await rig.inventory.create_mig(gpu.uuid, *first)
    overlapping = [(p, at) for p in gpu.mig.profiles for at in p.placements if at.overlaps(first[1])]
    assert overlapping
    for profile, placement in overlapping:
        with pytest.raises(MigError, match=rf"taken: MIG device .*{made.uuid}.* at {first[1]}"):
            await rig.inventory.create_mig(gpu.uuid, profile.id, placement)
    assert (await rig.inventory.mig_state(gpu.uuid)).instances == (made,)


@pytest.mark.parametrize(
    ("gpus", "present", "wanted"),
    [
        ("h100@mig", (20, Placement(0, 1)), (20, Placement(1, 1))),
        ("a30@mig", (21, Placement(0, 1)), (6, Placement(2, 2))),
        ("a100-40@mig", (20, Placement(6, 1)), (20, Placement(0, 1))),
    ],
)
async def test_memory_slices_that_are_free_do_not_make_engines(rig_of, gpus, present, wanted):
    rig = rig_of(gpus)
    uuid = await rig.uuid()
    await rig.inventory.create_mig(uuid, *present)
    with pytest.raises(MigError):
        await rig.inventory.create_mig(uuid, *wanted)
    assert len(await rig.devices(uuid)) == 1


@pytest.mark.parametrize(
    ("gpus", "profile", "placement", "message"),
    [
        ("h100", 19, Placement(0, 1), "MIG mode is off"),
        ("h100@mig", 77, Placement(0, 1), r"no GPU instance profile 77; it offers .*19 \(1g.10gb\)"),
        ("h100@mig", 9, Placement(2, 4), r"3g.40gb can't lie at 2:4; its placements .* are 0:4, 4:4"),
        ("h100@mig", 9, Placement(0, 2), "can't lie at 0:2"),
        ("l4", 19, Placement(0, 1), "has no MIG"),
    ],
)
async def test_what_is_not_offered_is_refused(rig_of, gpus, profile, placement, message):
    rig = rig_of(gpus)
    uuid = await rig.uuid()
    with pytest.raises(MigError, match=message):
        await rig.inventory.create_mig(uuid, profile, placement)
    assert await rig.inventory.destroy_mig(uuid, placement) is False


async def test_a_uuid_is_new_at_every_creation(rig_of):
    rig = rig_of("h100@mig")
    uuid = await rig.uuid()
    made = set()
    for _ in range(3):
        made.add((await rig.inventory.create_mig(uuid, 9, Placement(4, 4))).uuid)
        assert await rig.inventory.destroy_mig(uuid, Placement(4, 4))
    assert len(made) == 3


async def test_only_exactly_this_placement_is_removed(rig_of):
    rig = rig_of("h100@mig=2g.20gb:2")
    uuid = await rig.uuid()
    for placement in (Placement(2, 1), Placement(0, 2), Placement(2, 4), Placement(0, 8)):
        assert await rig.inventory.destroy_mig(uuid, placement) is False
    assert await rig.devices(uuid) == ["2g.20gb at 2:2"]


async def test_M1_a_compute_instance_that_fails_leaves_nothing(rig_of):
    rig = rig_of("h100@mig")
    uuid = await rig.uuid()
    before = await rig.inventory.mig_state(uuid)
    rig.fault("create_ci: fail-once")
    with pytest.raises(MigError, match=r"failed: .*; its GPU instance was removed again"):
        await rig.inventory.create_mig(uuid, 9, Placement(4, 4))
    assert await rig.inventory.mig_state(uuid) == before
    await rig.inventory.create_mig(uuid, 9, Placement(4, 4))


async def test_M1_a_gpu_instance_left_bare_is_told_and_found(rig_of):
    rig = rig_of("h100@mig")
    uuid = await rig.uuid()
    rig.fault("create_ci: fail-bare")
    with pytest.raises(MigError, match="and its GPU instance at 4:4 could not be removed again"):
        await rig.inventory.create_mig(uuid, 9, Placement(4, 4))
    rig.fault("")
    state = await rig.inventory.mig_state(uuid)
    assert (state.instances, state.bare) == ((), (Placement(4, 4),))
    assert (await rig.inventory.read()).gpus[0].mig == state
    with pytest.raises(MigError, match="taken: a GPU instance without a compute instance is at 4:4"):
        await rig.inventory.create_mig(uuid, 19, Placement(5, 1))
    assert await rig.inventory.destroy_mig(uuid, Placement(4, 4)) is True
    assert (await rig.inventory.mig_state(uuid)).bare == ()


async def test_a_gpu_instance_that_fails_leaves_nothing(rig_of):
    rig = rig_of("h100@mig")
    uuid = await rig.uuid()
    before = await rig.inventory.mig_state(uuid)
    rig.fault("create_gi: fail")
    with pytest.raises(MigError, match="failed"):
        await rig.inventory.create_mig(uuid, 9, Placement(4, 4))
    assert await rig.inventory.mig_state(uuid) == before


async def test_a_device_in_use_stays_until_it_is_free(rig_of):
    rig = rig_of("h100@mig=3g.40gb:4")
    uuid = await rig.uuid()
    rig.fault("destroy: in-use-once")
    with pytest.raises(DeviceNotReadyError, match=f"{uuid}: removing the MIG device at 4:4.*try again"):
        await rig.inventory.destroy_mig(uuid, Placement(4, 4))
    assert await rig.devices(uuid) == ["3g.40gb at 4:4"]
    assert await rig.inventory.destroy_mig(uuid, Placement(4, 4)) is True


async def test_a_removal_that_fails_is_told(rig_of):
    rig = rig_of("h100@mig=3g.40gb:4")
    uuid = await rig.uuid()
    rig.fault("destroy: fail")
    with pytest.raises(MigError, match="removing the MIG device at 4:4"):
        await rig.inventory.destroy_mig(uuid, Placement(4, 4))
    assert await rig.devices(uuid) == ["3g.40gb at 4:4"]


@pytest.mark.parametrize("product", ["h100", "h200", "b200", "rtx-pro-6000"])
async def test_hopper_and_later_switch_at_once(rig_of, product):
    rig = rig_of(product)
    uuid = await rig.uuid()
    for enabled in (False, True, True, False):
        await rig.inventory.set_mig_mode(uuid, enabled)
        state = await rig.inventory.mig_state(uuid)
        assert (state.enabled, state.pending) == (enabled, enabled)


@pytest.mark.parametrize("gpus", ["a100-40", "a100-80@mig", "a30"])
async def test_M2_what_needs_a_reset_is_never_toggled(rig_of, gpus):
    rig = rig_of(gpus)
    uuid = await rig.uuid()
    before = await rig.inventory.mig_state(uuid)
    with pytest.raises(MigError, match="needs a GPU reset"):
        await rig.inventory.set_mig_mode(uuid, not before.enabled)
    await rig.inventory.set_mig_mode(uuid, before.enabled)
    assert await rig.inventory.mig_state(uuid) == before  # the pending mode, too


async def test_M2_mode_of_a_gpu_in_use(rig_of):
    rig = rig_of("h100")
    uuid = await rig.uuid()
    before = await rig.inventory.mig_state(uuid)
    rig.fault("mode: in-use")
    with pytest.raises(DeviceNotReadyError, match="switching MIG mode"):
        await rig.inventory.set_mig_mode(uuid, True)
    assert await rig.inventory.mig_state(uuid) == before
    rig.fault("")
    await rig.inventory.set_mig_mode(uuid, True)
    assert (await rig.inventory.mig_state(uuid)).enabled


async def test_a_mode_that_fails_to_change(rig_of):
    rig = rig_of("h100")
    uuid = await rig.uuid()
    rig.fault("mode: fail")
    with pytest.raises(MigError, match="switching MIG mode"):
        await rig.inventory.set_mig_mode(uuid, True)
    rig.fault("")
    assert not (await rig.inventory.mig_state(uuid)).pending


async def test_instances_are_in_the_way_of_the_mode(rig_of):
    rig = rig_of("h100@mig=1g.10gb:3")
    uuid = await rig.uuid()
    with pytest.raises(MigError, match=r"while there are MIG devices: MIG device 1g.10gb .* is at 3:1"):
        await rig.inventory.set_mig_mode(uuid, False)
    assert await rig.devices(uuid) == ["1g.10gb at 3:1"]


async def test_M4_no_mig_and_no_such_gpu(rig_of):
    rig = rig_of("l4")
    for uuid, error, message in (
        (await rig.uuid(), MigError, "has no MIG"),
        ("GPU-none", GpuLostError, "GPU-none: there is no such GPU"),
    ):
        with pytest.raises(error, match=message):
            await rig.inventory.mig_state(uuid)
        with pytest.raises(error, match=message):
            await rig.inventory.set_mig_mode(uuid, True)
        with pytest.raises(error, match=message):
            await rig.inventory.create_mig(uuid, 19, Placement(0, 1))
    with pytest.raises(GpuLostError, match="no such GPU"):
        await rig.inventory.destroy_mig("GPU-none", Placement(0, 1))


async def test_a_lost_gpu_costs_itself_only(rig_of):
    rig = rig_of("h100@mig,h100@mig")
    lost, other = await rig.uuid(0), await rig.uuid(1)
    rig.lost()
    with pytest.raises(GpuLostError, match=lost):
        await rig.inventory.create_mig(lost, 9, Placement(4, 4))
    with pytest.raises(GpuLostError, match=lost):
        await rig.inventory.destroy_mig(lost, Placement(4, 4))
    await rig.inventory.create_mig(other, 9, Placement(4, 4))


async def test_without_nvml_nothing_is_done(rig_of):
    rig = rig_of("h100@mig")
    uuid = await rig.uuid()
    rig.down()
    for call in (
        rig.inventory.mig_state(uuid),
        rig.inventory.set_mig_mode(uuid, False),
        rig.inventory.create_mig(uuid, 9, Placement(4, 4)),
        rig.inventory.destroy_mig(uuid, Placement(4, 4)),
    ):
        with pytest.raises(InventoryError):
            await call
    rig.fault("")
    assert await rig.devices(uuid) == []


@needs_compiler
@pytest.mark.parametrize("product", ["h100", "a30", "rtx-pro-6000", "a100-40"])
@pytest.mark.parametrize("seed", range(3))
async def test_both_inventories_answer_alike(tmp_path, product, seed):
    """Random creations and removals: the same come through, nothing overlaps, and all is empty in the end."""
    rigs = [FakeRig(tmp_path, f"{product}@mig"), NvmlRig(tmp_path, f"{product}@mig")]
    try:
        (gpu,) = (await rigs[0].inventory.read()).gpus
        choices = [(profile.id, place) for profile in gpu.mig.profiles for place in profile.placements]
        chance = random.Random(seed)
        made = 0
        for _ in range(60):
            profile, placement = chance.choice(choices)
            wanted = profile if chance.random() < 0.6 else None
            if wanted is None and (present := (await rigs[0].inventory.mig_state(gpu.uuid)).instances):
                placement = chance.choice(present).placement
            outcomes = [await rig.outcome(gpu.uuid, wanted, placement) for rig in rigs]
            assert outcomes[0] == outcomes[1]
            made += wanted is not None and outcomes[0] != "MigError"
            found = [await rig.devices(gpu.uuid) for rig in rigs]
            assert found[0] == found[1]
            places = [one.placement for one in (await rigs[0].inventory.mig_state(gpu.uuid)).instances]
            assert sum(place.size for place in places) == len({each for place in places for each in place.slices})
        assert made > 5
        for _, placement in choices:
            assert len({await rig.outcome(gpu.uuid, None, placement) for rig in rigs}) == 1
        assert [await rig.devices(gpu.uuid) for rig in rigs] == [[], []]
    finally:
        for rig in rigs:
            await close(rig)
