from __future__ import annotations

import pytest

from driver.errors import InvalidValueError
from driver.model.health import HEALTHY, LOST, Effect, Health, Severity, Taint, shorten
from driver.model.health_facts import Fact, Kind
from driver.model.health_rules import DEFAULT_RULES, MAX_XID, Rule, Rules, decode_rules, judge
from driver.slices.devices import render_taints

APPLICATION = (13, 31, 43, 45, 68, 109)  # the peer's list, and that of NVIDIA's tools
RESET = (46, 48, 62, 63, 74, 94, 95, 119, 120, 140, 154)
FATAL = (64, 79)

KINDS = {
    Kind.LOST: (False, "gpu-lost", Effect.NO_SCHEDULE),
    Kind.RESET_REQUIRED: (False, "reset-required", Effect.NO_SCHEDULE),
    Kind.REBOOT_REQUIRED: (False, "reboot-required", Effect.NO_SCHEDULE),
    Kind.REMAP_PENDING: (False, "row-remap-pending", Effect.NO_SCHEDULE),
    Kind.REMAP_FAILED: (False, "row-remap-failed", Effect.NO_SCHEDULE),
    Kind.ECC: (False, "ecc-uncorrected", Effect.NO_SCHEDULE),
    Kind.FABRIC: (True, "fabric-not-ready", Effect.NONE),
    Kind.FABRIC_FAILED: (False, "fabric-failed", Effect.NO_SCHEDULE),
    Kind.NVLINK_DOWN: (True, "nvlink-down", Effect.NONE),
    Kind.NVLINK_ERRORS: (True, "nvlink-errors", Effect.NONE),
    Kind.TEMPERATURE: (False, "temperature", Effect.NO_SCHEDULE),
    Kind.MPS: (False, "mps-dead", Effect.NO_SCHEDULE),
    Kind.PROBE: (False, "probe-failed", Effect.NO_SCHEDULE),
    Kind.UNMONITORED: (True, "unmonitored", Effect.NONE),
}


def xid(number: int, where: str = "") -> Fact:
    return Fact(Kind.XID, number, where)


def test_no_facts_are_health():
    assert judge([]) is HEALTHY


def test_every_kind_of_fact_has_a_row_here():
    assert {*KINDS, Kind.XID} == set(Kind) == set(DEFAULT_RULES.kinds)
    assert {*APPLICATION, *RESET, *FATAL} == set(DEFAULT_RULES.xids)


@pytest.mark.parametrize("kind", KINDS)
def test_the_rule_of_each_kind(kind):
    healthy, name, effect = KINDS[kind]
    health = judge([Fact(kind, detail="because")])
    assert health == Health(healthy=healthy, reason="because", taints=(Taint(f"gpu.nvidia.com/{name}", "", effect),))


@pytest.mark.parametrize("number", APPLICATION)
def test_H1_an_applications_fault_leaves_the_gpu_in_service(number):
    health = judge([xid(number)])
    assert health.healthy
    assert health.taints == (Taint("gpu.nvidia.com/xid", str(number), Effect.NONE),)
    assert f"XID {number}: " in health.reason


@pytest.mark.parametrize(
    ("number", "severity"),
    [*((one, Severity.RESET) for one in (*RESET, 999, 1, MAX_XID)), *((one, Severity.FATAL) for one in FATAL)],
)
def test_H1_all_others_are_serious_those_that_nobody_knows_too(number, severity):
    assert DEFAULT_RULES.of_xid(number).severity is severity
    health = judge([xid(number)])
    assert not health.healthy
    assert health.taints == (Taint("gpu.nvidia.com/xid", str(number), Effect.NO_SCHEDULE),)


def test_H3_a_minor_event_hides_no_serious_one():
    health = judge([xid(79), xid(43)])
    assert not health.healthy
    assert health.taints == (
        Taint("gpu.nvidia.com/xid", "79", Effect.NO_SCHEDULE),
        Taint("gpu.nvidia.com/xid", "43", Effect.NONE),
    )
    assert health.reason.startswith("XID 79: the GPU has fallen off the bus; XID 43: ")


def test_the_lost_gpu_of_the_monitor_is_that_of_the_rules():
    assert judge([Fact(Kind.LOST, detail=LOST.reason)]) == LOST


def test_an_xid_says_where_it_happened():
    assert judge([xid(31, "GPU instance 7")]).reason == "XID 31 in GPU instance 7: memory page fault, by an application"


def test_serious_faults_may_evict():
    health = judge([xid(79), xid(13)], Rules(serious=Effect.NO_EXECUTE))
    assert [taint.effect for taint in health.taints] == [Effect.NO_EXECUTE, Effect.NONE]


def test_of_many_xids_the_worst_have_their_taints():
    health = judge([*(xid(number) for number in range(1, 60)), xid(79)])
    assert len(health.taints) == 16
    assert Taint("gpu.nvidia.com/xid", "79", Effect.NO_SCHEDULE) in health.taints
    assert len(health.reason.encode()) <= 1024
    assert len(render_taints(health)) == 16


def test_a_reason_is_cut_at_a_characters_end():
    assert shorten("ä" * 10, 12) == "ääää..."
    assert shorten("ä" * 6, 12) == "ä" * 6


@pytest.mark.parametrize(
    ("health", "other", "healthy", "reason"),
    [
        (HEALTHY, LOST, False, LOST.reason),
        (LOST, HEALTHY, False, LOST.reason),
        (LOST, LOST, False, LOST.reason),
        (judge([xid(31)]), judge([xid(79)]), False, None),
    ],
)
def test_the_verdict_on_what_suffers_from_both(health, other, healthy, reason):
    both = health.with_more(other)
    assert both.healthy is healthy
    assert set(both.taints) == {*health.taints, *other.taints}
    assert reason in (None, both.reason)


# --- rules files ------------------------------------------------------------------------------------------------------


def test_a_rules_file_overrides_what_it_names():
    rules = decode_rules(
        {
            "xids": {
                94: "application",
                31: {"severity": "fatal", "effect": "NoExecute"},
                13: "ignore",
                "other": "notice",
            },
            "facts": {"nvlink-down": "reset", "temperature": {"severity": "notice"}, "unmonitored": "ignore"},
        },
        "rules.yaml",
    )
    assert judge([xid(94)], rules).healthy
    assert judge([xid(999)], rules).healthy
    assert judge([xid(13), Fact(Kind.UNMONITORED)], rules) is HEALTHY
    assert judge([xid(31)], rules).taints == (Taint("gpu.nvidia.com/xid", "31", Effect.NO_EXECUTE),)
    assert not judge([Fact(Kind.NVLINK_DOWN)], rules).healthy
    assert judge([Fact(Kind.TEMPERATURE)], rules).taints[0].effect is Effect.NONE
    assert judge([xid(79)], rules) == judge([xid(79)])
    assert rules.of_xid(94).meaning == "contained memory error"


@pytest.mark.parametrize("empty", [None, {}, {"xids": None, "facts": {}}])
def test_an_empty_rules_file_changes_nothing(empty):
    assert decode_rules(empty, "rules.yaml") == DEFAULT_RULES


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ([], "rules.yaml: invalid value []: a mapping"),
        ({"xid": {}}, "rules.yaml: xid: .*unknown field; did you mean 'xids'"),
        ({"xids": [79]}, "rules.yaml: xids: .*must be a mapping"),
        ({"xids": {"79": "fatal"}}, "rules.yaml: xids.79: .*number from 1 to 9999, or 'other'"),
        ({"xids": {True: "fatal"}}, "rules.yaml: xids.True: "),
        ({"xids": {0: "fatal"}}, "rules.yaml: xids.0: "),
        ({"xids": {79: "deadly"}}, "rules.yaml: xids.79: invalid value 'deadly': must be one of ignore, application"),
        ({"xids": {79: 3}}, "rules.yaml: xids.79: "),
        ({"xids": {79: {"severity": "fatal", "efect": "None"}}}, "rules.yaml: xids.79.efect: .*'effect'"),
        ({"xids": {79: {"severity": "fatal", "effect": "Evict"}}}, "rules.yaml: xids.79.effect: .*NoSchedule"),
        ({"xids": {79: {"effect": "None"}}}, "rules.yaml: xids.79.severity: .*required"),
        ({"facts": {"hot": "fatal"}}, "rules.yaml: facts.hot: .*no such fact; known: ecc-uncorrected"),
        ({"facts": {"xid": "fatal"}}, "rules.yaml: facts.xid: "),
    ],
)
def test_a_bad_rules_file_is_refused_with_the_field(content, said):
    with pytest.raises(InvalidValueError, match=said.replace("[]", r"\[\]")):
        decode_rules(content, "rules.yaml")


def test_a_rule_of_its_own_effect_keeps_it_whatever_is_serious():
    rules = Rules(xids={48: Rule(Severity.RESET, Effect.NONE)}, serious=Effect.NO_EXECUTE)
    assert judge([xid(48)], rules).taints[0].effect is Effect.NONE
    assert not judge([xid(48)], rules).healthy
