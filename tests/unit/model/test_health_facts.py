from __future__ import annotations

import pytest

from driver.model.health_facts import Checked, Fabric, Fact, HealthReport, Kind, Recovery


def facts(*reports: HealthReport) -> list[Fact]:
    checked = Checked()
    for report in reports:
        checked = checked.after(report)
    return list(checked.facts())


def kinds(*reports: HealthReport) -> list[Kind]:
    return [fact.kind for fact in facts(*reports)]


@pytest.mark.parametrize(
    ("report", "kind"),
    [
        (HealthReport(recovery=Recovery.RESET), Kind.RESET_REQUIRED),
        (HealthReport(recovery=Recovery.DRAIN_P2P), Kind.RESET_REQUIRED),
        (HealthReport(recovery=Recovery.DRAIN_AND_RESET), Kind.RESET_REQUIRED),
        (HealthReport(recovery=Recovery.RECOVER_IMEX), Kind.RESET_REQUIRED),
        (HealthReport(recovery=Recovery.BUS_RESET), Kind.RESET_REQUIRED),
        (HealthReport(recovery=Recovery.REBOOT), Kind.REBOOT_REQUIRED),
        (HealthReport(recovery=Recovery.SYSTEM_REBOOT), Kind.REBOOT_REQUIRED),
        (HealthReport(remap_pending=True), Kind.REMAP_PENDING),
        (HealthReport(remap_failed=True), Kind.REMAP_FAILED),
        (HealthReport(ecc_uncorrected=2), Kind.ECC),
        (HealthReport(fabric=Fabric.NOT_READY), Kind.FABRIC),
        (HealthReport(fabric=Fabric.DEGRADED), Kind.FABRIC),
        (HealthReport(fabric=Fabric.FAILED), Kind.FABRIC_FAILED),
        (HealthReport(margin=0), Kind.TEMPERATURE),
        (HealthReport(margin=-3), Kind.TEMPERATURE),
    ],
)
def test_what_a_report_says_goes_when_the_next_says_otherwise(report, kind):
    assert kinds(report) == [kind]
    assert kinds(report, HealthReport()) == []
    assert kinds(report, report) == [kind]


def test_a_report_without_findings_says_nothing():
    well = HealthReport(
        recovery=Recovery.NONE,
        remap_pending=False,
        remap_failed=False,
        ecc_uncorrected=0,
        fabric=Fabric.READY,
        nvlink_active=18,
        nvlink_errors=1234,
        temperature=45,
        margin=40,
    )
    assert facts(well, well) == []
    assert facts(HealthReport()) == []


@pytest.mark.parametrize("name", ["recovery", "remap_failed", "ecc_uncorrected", "fabric", "margin"])
def test_what_could_not_be_asked_stands_as_it_was(name):
    bad = HealthReport(recovery=Recovery.RESET, remap_failed=True, ecc_uncorrected=1, fabric=Fabric.FAILED, margin=-1)
    unasked = HealthReport(failed=(name,))
    assert len(facts(bad, unasked)) == 1
    assert facts(bad, unasked, unasked) == facts(bad, unasked)
    assert facts(bad, unasked, HealthReport()) == []


def test_links_that_were_there_are_missed():
    assert kinds(HealthReport(nvlink_active=17)) == []  # nothing says that there ever were more
    (down,) = facts(HealthReport(nvlink_active=18), HealthReport(nvlink_active=16))
    assert (down.kind, down.detail) == (Kind.NVLINK_DOWN, "2 of 18 NVLinks are down")
    assert kinds(HealthReport(nvlink_active=18), HealthReport(nvlink_active=16), HealthReport(nvlink_active=18)) == []


def test_only_new_nvlink_errors_are_news():
    old, new = HealthReport(nvlink_errors=7), HealthReport(nvlink_errors=9)
    assert kinds(old) == []
    assert kinds(old, new) == [Kind.NVLINK_ERRORS]
    assert kinds(old, new, new) == []
    assert kinds(old, new, HealthReport(failed=("nvlink_errors",))) == [Kind.NVLINK_ERRORS]
    assert kinds(old, new, HealthReport(nvlink_errors=0)) == []  # a reset sets the counters back


def test_a_hot_gpu_is_cool_again_only_well_below_the_limit():
    hot = HealthReport(margin=0)
    assert kinds(HealthReport(margin=5)) == []
    assert kinds(hot, HealthReport(margin=5)) == [Kind.TEMPERATURE]
    assert kinds(hot, HealthReport(margin=6)) == []
    assert kinds(hot, HealthReport(margin=6), HealthReport(margin=5)) == []
