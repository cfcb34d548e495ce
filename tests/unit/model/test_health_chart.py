from __future__ import annotations

from dataclasses import replace

import pytest

from driver.model.health_chart import MAX_XIDS, Chart, SeenXid
from driver.model.health_facts import Fact, HealthReport, Kind, Recovery
from driver.model.health_rules import DEFAULT_RULES as RULES
from driver.model.health_rules import judge

QUIET = 300.0
APPLICATION, RESET, FATAL = 31, 48, 79
WELL = HealthReport(recovery=Recovery.NONE)
NEEDED = HealthReport(recovery=Recovery.RESET)
CAN_NOT_TELL = HealthReport()


def seen(xid: int, at: float = 0.0, **more) -> Chart:
    return Chart().with_xid(SeenXid(xid=xid, at=at, **more), RULES)


def check(chart: Chart, report: HealthReport, began: float) -> Chart:
    return chart.after(report, began=began, rules=RULES, quiet=QUIET)


def xids(chart: Chart) -> list[int]:
    return [fact.code for fact in chart.facts(RULES) if fact.kind is Kind.XID]


# What clears an XID: (class, checks as (report, moment), is it cleared?)
EVIDENCE = [
    (APPLICATION, [(WELL, 1)], False),
    (APPLICATION, [(WELL, 299)], False),
    (APPLICATION, [(WELL, 300)], True),
    (APPLICATION, [(CAN_NOT_TELL, 300)], True),
    (APPLICATION, [(NEEDED, 300)], False),
    (APPLICATION, [(HealthReport(failed=("fabric",)), 300)], False),
    (RESET, [(WELL, 1)], False),
    (RESET, [(WELL, 300)], True),
    (RESET, [(CAN_NOT_TELL, 3000)], False),
    (RESET, [(NEEDED, 1)], False),
    (RESET, [(NEEDED, 1), (NEEDED, 3000)], False),
    (RESET, [(NEEDED, 1), (WELL, 2)], True),
    (RESET, [(NEEDED, 1), (HealthReport(recovery=Recovery.NONE, failed=("fabric",)), 2)], False),
    (RESET, [(NEEDED, 1), (HealthReport(failed=("recovery",)), 2)], False),
    (FATAL, [(WELL, 300)], False),
    (FATAL, [(WELL, 1e9)], False),
    (FATAL, [(CAN_NOT_TELL, 1e9)], False),
    (FATAL, [(NEEDED, 1), (WELL, 2)], True),
    (FATAL, [(HealthReport(recovery=Recovery.REBOOT), 1), (WELL, 2)], True),
]


@pytest.mark.parametrize(("xid", "checks", "cleared"), EVIDENCE)
def test_H2_an_xid_is_cleared_by_evidence_only(xid, checks, cleared):
    chart = seen(xid)
    for report, began in checks:
        chart = check(chart, report, began)
    assert (xids(chart) == []) is cleared


@pytest.mark.parametrize("xid", [RESET, FATAL])
@pytest.mark.parametrize("report", [WELL, CAN_NOT_TELL])
def test_H2_a_gpu_that_was_lost_and_is_back_had_its_reset(xid, report):
    chart = seen(xid).when_lost("fell off the bus")
    assert xids(check(chart, report, 5)) == [xid]  # it does not answer yet
    assert xids(check(chart.when_answering(), report, 5)) == []


def test_when_no_gpu_can_be_asked_that_is_no_evidence():
    chart = seen(FATAL).when_unreachable("NVML is stuck").when_answering()
    assert xids(check(chart, WELL, 5)) == [FATAL]


@pytest.mark.parametrize("xid", [APPLICATION, RESET, FATAL])
def test_a_check_that_began_before_the_event_clears_nothing(xid):
    chart = replace(seen(xid, at=1000.0, down=True), checked=check(Chart(), NEEDED, 1).checked)
    assert xids(check(chart, WELL, 1000.0)) == [xid]


@pytest.mark.parametrize(
    ("report", "began", "cleared"),
    [(CAN_NOT_TELL, 1, True), (WELL, 1, False), (WELL, 300, True), (NEEDED, 300, False)],
)
def test_the_reset_may_have_been_while_no_agent_ran(report, began, cleared):
    chart = seen(FATAL, recalled=True)
    assert chart.due(RULES, QUIET, checked=0.0) == 300
    assert (xids(check(chart, report, began)) == []) is cleared


def test_the_same_xid_again_starts_its_quiet_time_anew():
    chart = seen(APPLICATION).with_xid(SeenXid(xid=APPLICATION, at=200.0), RULES)
    assert xids(chart) == [APPLICATION]
    assert xids(check(chart, WELL, 300)) == [APPLICATION]
    assert xids(check(chart, WELL, 500)) == []


def test_an_xid_that_comes_again_after_a_reset_was_asked_for_is_new():
    chart = check(seen(RESET), NEEDED, 1).with_xid(SeenXid(xid=RESET, at=2.0), RULES)
    assert xids(check(chart, WELL, 3)) == [RESET]


def test_garbage_does_not_grow_and_hides_nothing_bad():
    chart = seen(FATAL)
    for number in range(1000, 3000):
        chart = chart.with_xid(SeenXid(xid=number, at=float(number)), RULES)
    assert len(chart.xids) == MAX_XIDS
    assert FATAL in xids(chart)
    assert 2999 in xids(chart)


def test_a_lost_gpu_says_why():
    assert list(Chart().when_lost("it fell off").facts(RULES)) == [Fact(Kind.LOST, detail="it fell off")]
    assert list(Chart().when_lost("it fell off").when_answering().facts(RULES)) == []


# --- MIG --------------------------------------------------------------------------------------------------------------


def test_an_applications_fault_in_a_mig_device_concerns_that_device_only():
    chart = seen(APPLICATION, instances=(7, 0))
    assert list(chart.facts(RULES)) == []
    assert list(chart.instance_facts(7, 0, RULES)) == [Fact(Kind.XID, 31, "GPU instance 7, compute instance 0")]
    assert list(chart.instance_facts(7, 1, RULES)) == []
    assert list(chart.instance_facts(8, 0, RULES)) == []


def test_an_event_without_a_compute_instance_concerns_all_of_the_gpu_instance():
    chart = seen(APPLICATION, instances=(7, None))
    assert len(list(chart.instance_facts(7, 0, RULES))) == len(list(chart.instance_facts(7, 1, RULES))) == 1


@pytest.mark.parametrize("xid", [RESET, FATAL, 999])
def test_a_serious_one_concerns_the_whole_gpu_wherever_it_happened(xid):
    chart = seen(xid, instances=(7, 0))
    assert list(chart.instance_facts(7, 0, RULES)) == []
    health = judge(chart.facts(RULES))
    assert not health.healthy
    assert "GPU instance 7, compute instance 0" in health.reason


def test_one_xid_in_two_instances_is_two_facts_and_one_taint():
    chart = seen(RESET, instances=(7, 0)).with_xid(SeenXid(xid=RESET, instances=(8, 0), at=1.0), RULES)
    assert len(list(chart.facts(RULES))) == 2
    assert len(judge(chart.facts(RULES)).taints) == 1


# --- when to look again -----------------------------------------------------------------------------------------------


def test_the_next_look_is_when_the_first_quiet_time_is_over():
    assert Chart().due(RULES, QUIET, checked=0.0) is None
    assert seen(FATAL).due(RULES, QUIET, checked=0.0) is None
    chart = seen(RESET, at=50.0).with_xid(SeenXid(xid=APPLICATION, at=20.0), RULES)
    assert chart.due(RULES, QUIET, checked=0.0) == 320.0
    assert chart.due(RULES, QUIET, checked=330.0) == 350.0
    assert chart.due(RULES, QUIET, checked=350.0) is None  # what that check has left does not go by waiting
