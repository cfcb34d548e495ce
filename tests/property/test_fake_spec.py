from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from driver.errors import InvalidValueError
from driver.inventory.fake_gpus import build_gpus
from driver.inventory.fake_spec import parse_node, plan_mig
from driver.inventory.profiles import load_products

PRODUCTS = load_products()
MIG_PRODUCTS = sorted(name for name, product in PRODUCTS.items() if product.mig)
GROUPS = st.lists(st.tuples(st.sampled_from(sorted(PRODUCTS)), st.integers(1, 20)), min_size=1, max_size=6)


@given(GROUPS)
def test_every_mix_has_its_gpus_with_distinct_identities(groups):
    node = build_gpus(parse_node(",".join(f"{name}:{count}" for name, count in groups), PRODUCTS), "n1")
    assert [gpu.product for gpu in node] == [PRODUCTS[name].nvml_name for name, count in groups for _ in range(count)]
    for identity in ("uuid", "minor", "name", "pci_bus_id"):
        assert len({getattr(gpu, identity) for gpu in node}) == len(node)
    uuids = {gpu.uuid: gpu for gpu in node}
    for gpu in node:
        for peer, links in gpu.nvlink.peers:
            assert (gpu.uuid, links) in uuids[peer].nvlink.peers  # links have two ends


@given(st.text(alphabet="h1t4l:@=*+,.gbmepairs0 \n/", max_size=30))
def test_any_text_is_parsed_or_refused_clearly(text):
    try:
        node = parse_node(text, PRODUCTS, "--gpus")
    except InvalidValueError:
        return  # the one kind of error that is allowed
    assert all(group.count >= 1 for group in node.groups)


@given(st.data())
def test_planned_mig_devices_never_overlap(data):
    product = PRODUCTS[data.draw(st.sampled_from(MIG_PRODUCTS))]
    assert product.mig is not None
    names = [profile.name for profile in product.mig.profiles]
    wishes = [(name, None) for name in data.draw(st.lists(st.sampled_from(names), max_size=8))]
    try:
        plan = plan_mig(product, wishes, "mig")
    except InvalidValueError:
        return  # the unit tests say when
    assert [profile.name for profile, _ in plan] == [name for name, _ in wishes]
    taken = [index for _, placement in plan for index in placement.slices]
    assert len(taken) == len(set(taken))
    assert all(index < product.mig.memory_slices for index in taken)
    assert sum(profile.memory for profile, _ in plan) <= product.memory
    assert sum(profile.multiprocessors for profile, _ in plan) <= product.multiprocessors
