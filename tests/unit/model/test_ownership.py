from __future__ import annotations

import pytest

from driver.model.device import Gpu
from driver.model.ownership import HANDING_OVER, Holders, Owner, Ownership, Rule, Rules, assign, wanted_owners

DRA, PLUGIN, WITHHELD = Owner.DRA, Owner.DEVICE_PLUGIN, Owner.WITHHELD
GPUS = tuple(
    Gpu(
        uuid=f"GPU-{n}", index=n, minor=n, product="NVIDIA H100" if n < 2 else "NVIDIA L4", pci_bus_id=f"0000:0{n}:00.0"
    )
    for n in range(4)
)
FREE = Holders()
CLAIM = Holders(claims={"GPU-0": ("claim ns/c",)})
POD = Holders(pods={"GPU-0": ("pod ns/p",)})
BOTH = Holders(claims={"GPU-0": ("claim ns/c",)}, pods={"GPU-0": ("pod ns/p",)})
UNKNOWN = Holders(pods=None)


def wanted(*rules: Rule, default: Owner = DRA, before: dict[str, Ownership] | None = None) -> str:
    found, _ = wanted_owners(GPUS, Rules(default=default, rules=rules), before or {})
    return "".join({DRA: "d", PLUGIN: "p", WITHHELD: "w"}[found[gpu.uuid]] for gpu in GPUS)


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (Rule(owner=PLUGIN, indices=(1, 3)), "dpdp"),
        (Rule(owner=PLUGIN, uuids=("GPU-2",)), "ddpd"),
        (Rule(owner=WITHHELD, pci_ids=("0000:00:00.0",)), "wddd"),
        (Rule(owner=PLUGIN, products=("*l4",)), "ddpp"),
        (Rule(owner=PLUGIN, products=("l4",)), "dddd"),
        (Rule(owner=PLUGIN, count=3), "pppd"),
        (Rule(owner=PLUGIN, indices=(9,)), "dddd"),
    ],
)
def test_each_selector(rule, expected):
    assert wanted(rule) == expected


def test_count_takes_what_others_leave_and_what_it_has_already():
    assert wanted(Rule(owner=PLUGIN, count=2), Rule(owner=WITHHELD, indices=(0,))) == "wppd"
    has = {"GPU-3": Ownership(owner=PLUGIN, wanted=PLUGIN)}
    assert wanted(Rule(owner=PLUGIN, count=1), before=has) == "dddp"
    assert wanted(default=PLUGIN) == "pppp"


def test_a_gpu_given_to_two_owners_is_withheld_and_told():
    rules = Rules(rules=(Rule(owner=PLUGIN, indices=(0,), source="a"), Rule(owner=DRA, uuids=("GPU-0",), source="b")))
    found, (problem,) = wanted_owners(GPUS, rules, {})
    assert found["GPU-0"] is WITHHELD
    assert "a (device-plugin) and b (dra) both name it" in problem


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        (Rule(owner=PLUGIN, indices=(9,)), "does not have: index 9"),
        (Rule(owner=PLUGIN, uuids=("GPU-x",)), "does not have: GPU-x"),
        (Rule(owner=PLUGIN, pci_ids=("0000:ff:00.0",)), "does not have: PCI id 0000:ff:00.0"),
        (Rule(owner=PLUGIN, count=5), "wants 5 GPUs for device-plugin, but only 4 are left"),
    ],
)
def test_rules_about_gpus_that_are_not_there_are_told(rule, words):
    assert words in wanted_owners(GPUS, Rules(rules=(rule,)), {})[1][0]


def step(owner: Owner | None, to: Owner, holders: Holders, was: Owner | None = None) -> tuple[Owner, str]:
    before = {} if owner is None else {"GPU-0": Ownership(owner=owner, wanted=was or owner)}
    found = assign({"GPU-0": to}, before, holders)["GPU-0"]
    assert found.wanted is to
    assert found.offers(to) == (found.owner is to and not found.waiting_for)
    return found.owner, found.waiting_for


@pytest.mark.parametrize(
    ("owner", "to", "holders", "expected"),
    [
        # at the first start
        (None, DRA, FREE, (DRA, "")),
        (None, PLUGIN, FREE, (PLUGIN, "")),
        (None, DRA, UNKNOWN, (DRA, "")),
        (None, DRA, CLAIM, (DRA, "")),
        (None, DRA, POD, (PLUGIN, "pod ns/p")),
        (None, PLUGIN, CLAIM, (DRA, "claim ns/c")),
        (None, DRA, BOTH, (WITHHELD, "claim ns/c, pod ns/p")),
        # at rest
        (DRA, DRA, CLAIM, (DRA, "")),
        (PLUGIN, PLUGIN, POD, (PLUGIN, "")),
        (PLUGIN, PLUGIN, UNKNOWN, (PLUGIN, "")),
        # another device plugin gives it away (K6)
        (DRA, DRA, POD, (WITHHELD, "pod ns/p")),
        # on the way
        (DRA, PLUGIN, CLAIM, (DRA, "claim ns/c")),
        (PLUGIN, DRA, POD, (PLUGIN, "pod ns/p")),
        (DRA, PLUGIN, FREE, (WITHHELD, HANDING_OVER)),
        (PLUGIN, DRA, FREE, (WITHHELD, HANDING_OVER)),
        (WITHHELD, DRA, FREE, (DRA, "")),
        (WITHHELD, PLUGIN, FREE, (PLUGIN, "")),
        (WITHHELD, PLUGIN, CLAIM, (DRA, "claim ns/c")),  # prepared during the first look
        (WITHHELD, DRA, CLAIM, (DRA, "")),
        (DRA, WITHHELD, FREE, (WITHHELD, "")),
        (PLUGIN, WITHHELD, POD, (PLUGIN, "pod ns/p")),
        # the kubelet is away
        (PLUGIN, DRA, UNKNOWN, (PLUGIN, "the kubelet to tell which pods hold GPUs")),
        (WITHHELD, DRA, UNKNOWN, (WITHHELD, "the kubelet to tell which pods hold GPUs")),
    ],
)
def test_one_step(owner, to, holders, expected):
    assert step(owner, to, holders) == expected


def test_a_draining_gpu_is_offered_by_nobody():
    found = assign({"GPU-0": PLUGIN}, {"GPU-0": Ownership()}, CLAIM)["GPU-0"]
    assert not any(found.offers(owner) for owner in Owner)


def test_many_holders_are_counted():
    many = Holders(claims={"GPU-0": tuple(f"claim ns/c{n}" for n in range(6))})
    assert step(DRA, PLUGIN, many)[1] == "claim ns/c0, claim ns/c1, claim ns/c2, claim ns/c3 and 2 more"
