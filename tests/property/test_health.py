from __future__ import annotations

import re
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from driver.model.health import HEALTHY, Effect, Severity
from driver.model.health_chart import MAX_XIDS, Chart, SeenXid
from driver.model.health_facts import Fabric, Fact, HealthReport, Kind, Recovery
from driver.model.health_rules import DEFAULT_RULES, Rule, Rules, judge
from driver.slices.devices import render_taints

XIDS = st.integers(1, 9999) | st.sampled_from([13, 31, 43, 48, 64, 79, 94, 999])
FACTS = st.builds(Fact, st.sampled_from(list(Kind)), XIDS, st.text(max_size=40))
RULE = st.builds(Rule, st.sampled_from(list(Severity)), st.none() | st.sampled_from(list(Effect)), st.text(max_size=20))
RULES = st.just(DEFAULT_RULES) | st.builds(
    Rules,
    kinds=st.fixed_dictionaries(dict.fromkeys(Kind, RULE)),
    xids=st.dictionaries(XIDS, RULE, max_size=5),
    serious=st.sampled_from([Effect.NO_SCHEDULE, Effect.NO_EXECUTE]),
)
REPORTS = st.builds(
    HealthReport,
    recovery=st.none() | st.sampled_from(list(Recovery)),
    remap_pending=st.none() | st.booleans(),
    remap_failed=st.none() | st.booleans(),
    ecc_uncorrected=st.none() | st.integers(0, 3),
    fabric=st.none() | st.sampled_from(list(Fabric)),
    nvlink_active=st.none() | st.integers(0, 18),
    nvlink_errors=st.none() | st.integers(0, 3),
    margin=st.none() | st.integers(-5, 40),
    failed=st.lists(st.sampled_from(["recovery", "fabric", "margin", "nvlink_errors"]), unique=True).map(tuple),
)
LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
KEY = re.compile(r"gpu\.nvidia\.com/[a-z]([-a-z]*[a-z])?")


@given(st.lists(FACTS, max_size=40), RULES, st.randoms())
def test_the_verdict_does_not_depend_on_the_order_of_arrival(facts, rules, random):
    shuffled = [*facts, *facts[:3]]
    random.shuffle(shuffled)
    assert judge(shuffled, rules) == judge(facts, rules)


@given(st.lists(FACTS, max_size=40), RULES)
def test_the_worst_fact_stands_and_is_never_hidden(facts, rules):
    health = judge(facts, rules)
    worst = max((rules.of(fact).severity for fact in facts), default=Severity.IGNORED)
    assert health.healthy == (worst <= Severity.NOTICE)
    assert bool(health.taints) == (worst > Severity.IGNORED)
    for fact in facts:
        one = judge([fact], rules)
        assert one.healthy or not health.healthy
    heaviest = max((taint.effect.weight for fact in facts for taint in judge([fact], rules).taints), default=-1)
    assert max((taint.effect.weight for taint in health.taints), default=-1) == heaviest


@given(st.lists(FACTS, max_size=60), RULES)
def test_taints_are_always_valid(facts, rules):
    health = judge(facts, rules)
    assert len(health.taints) <= 16
    assert len({(taint.key, taint.value) for taint in health.taints}) == len(health.taints)
    for taint in health.taints:
        assert KEY.fullmatch(taint.key)
        assert LABEL_VALUE.fullmatch(taint.value)
    assert len(render_taints(health)) == len(health.taints)
    assert len(health.reason.encode(errors="replace")) <= 1024


STEPS = st.lists(
    st.tuples(st.just("xid"), XIDS)
    | st.tuples(st.just("check"), REPORTS)
    | st.tuples(st.sampled_from(["lost", "unreachable", "answers"]), st.none()),
    max_size=30,
)


def play(steps, chart=None):
    chart = chart or Chart()
    for moment, (what, value) in enumerate(steps):
        if what == "xid":
            chart = chart.with_xid(SeenXid(xid=value, at=float(moment)), DEFAULT_RULES)
        elif what == "check":
            chart = chart.after(value, began=float(moment), rules=DEFAULT_RULES, quiet=5.0)
        elif what == "lost":
            chart = chart.when_lost("gone")
        elif what == "unreachable":
            chart = chart.when_unreachable("NVML is away")
        else:
            chart = chart.when_answering()
        yield chart


def fatal(chart):
    return [one for one in chart.xids if DEFAULT_RULES.of_xid(one.xid).severity is Severity.FATAL]


@given(STEPS)
def test_what_is_fatal_goes_only_after_the_gpu_was_down(steps):
    before = [Chart(), *play(steps)]
    for old, new in pairwise(before):
        kept = {one.xid for one in fatal(new)}
        assert all(one.down for one in fatal(old) if one.xid not in kept)
        if fatal(new):
            assert not judge(new.facts(DEFAULT_RULES)).healthy
        assert len(new.xids) <= MAX_XIDS


@given(STEPS)
def test_once_all_is_cleared_it_is_healthy(steps):
    links = max((report.nvlink_active or 0 for what, report in steps if what == "check"), default=0)
    well = HealthReport(recovery=Recovery.NONE, nvlink_active=links, nvlink_errors=99)
    end = [
        ("lost", None),
        ("answers", None),
        ("check", HealthReport(recovery=Recovery.RESET)),
        *[("check", well)] * 8,
    ]
    *_, last = play([*steps, *end])
    assert judge(last.facts(DEFAULT_RULES)) is HEALTHY
