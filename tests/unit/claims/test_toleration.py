from __future__ import annotations

import pytest

from driver.claims.allocation import decode
from driver.claims.toleration import Toleration, hindrance
from driver.model.health import HEALTHY, LOST, Effect, Health, Taint
from driver.model.health_facts import Fact, Kind
from driver.model.health_rules import judge
from tests.unit.claims.helpers import claim, ref, result

KEY = "gpu.nvidia.com/xid"
XID = Taint(KEY, "48", Effect.NO_SCHEDULE)
SICK = judge([Fact(Kind.XID, 48)])


@pytest.mark.parametrize(
    ("toleration", "covers"),
    [
        (Toleration(key=KEY, value="48"), True),
        (Toleration(key=KEY, value="79"), False),
        (Toleration(key=KEY), False),
        (Toleration(key=KEY, exists=True), True),
        (Toleration(exists=True), True),
        (Toleration(), False),
        (Toleration(key=KEY, exists=True, effect="NoSchedule"), True),
        (Toleration(key=KEY, exists=True, effect="NoExecute"), False),
        (Toleration(key="gpu.nvidia.com/gpu-lost", exists=True), False),
    ],
)
def test_which_taints_a_toleration_covers(toleration, covers):
    assert toleration.covers(XID) is covers
    assert (hindrance(SICK, [toleration]) == "") is covers


@pytest.mark.parametrize(
    ("health", "hindered"),
    [
        (HEALTHY, False),
        (judge([Fact(Kind.XID, 31)]), False),
        (SICK, True),
        (LOST, True),
        (Health(healthy=False, taints=(XID,)), True),
        (Health(healthy=False, reason="told only", taints=(Taint(KEY, "48", Effect.NONE),)), False),
    ],
)
def test_what_hinders_a_claim_that_tolerates_nothing(health, hindered):
    assert bool(hindrance(health, ())) is hindered


def test_all_taints_that_count_must_be_tolerated():
    both = judge([Fact(Kind.XID, 48), Fact(Kind.REMAP_PENDING), Fact(Kind.UNMONITORED)])
    one = Toleration(key=KEY, exists=True)
    other = Toleration(key="gpu.nvidia.com/row-remap-pending", exists=True)
    assert hindrance(both, [one]) == both.reason
    assert hindrance(both, [other, one]) == ""


def test_tolerations_come_with_the_allocation():
    tolerations = [
        {"key": KEY, "operator": "Exists", "effect": "NoSchedule", "tolerationSeconds": 30},
        {"key": KEY, "value": "48"},
        {"operator": "Exists"},
        {"key": 7},
    ]
    (found,) = decode(claim(1, result("gpu-0", tolerations=tolerations)), ref(1)).results
    assert found.tolerations == (
        Toleration(key=KEY, exists=True, effect="NoSchedule"),
        Toleration(key=KEY, value="48"),
        Toleration(exists=True),
        Toleration(key="7"),
    )
