from __future__ import annotations

import pytest

from driver.config.device_plugin import decode_config
from driver.config.plugin_health import NO_WISHES, plugin_rules
from driver.errors import InvalidValueError
from driver.model.health_facts import Fact, Kind
from driver.model.health_rules import DEFAULT_RULES, judge

DISABLE, ENABLE = "DP_DISABLE_HEALTHCHECKS", "DP_ENABLE_HEALTHCHECKS"
APPLICATION, ROW, FATAL, UNKNOWN = 13, 63, 79, 999


def wished(health=None, **environ):
    document = {} if health is None else {"health": health}
    return decode_config(document, "config.yaml", environ=environ).health


def serious(health=None, **environ):
    """Return which of some XIDs take a GPU out of service."""
    rules = plugin_rules(DEFAULT_RULES, wished(health, **environ))
    numbers = (APPLICATION, ROW, FATAL, UNKNOWN)
    return {number for number in numbers if not judge([Fact(Kind.XID, number)], rules).healthy}


def test_who_wishes_nothing_changes_nothing():
    assert wished() == wished({}) == NO_WISHES
    assert plugin_rules(DEFAULT_RULES, NO_WISHES) is DEFAULT_RULES


@pytest.mark.parametrize(
    ("health", "environ", "expected"),
    [
        ({"criticalXIDs": "all"}, {}, {ROW, FATAL, UNKNOWN}),
        ({"disabled": True}, {}, set()),
        ({"ignoredXIDs": [63]}, {}, {FATAL, UNKNOWN}),
        ({"ignoredXIDs": [999, 79]}, {}, {ROW}),
        ({"criticalXIDs": [79]}, {}, {FATAL}),
        ({"criticalXIDs": [13, 999]}, {}, {APPLICATION, UNKNOWN}),
        ({"eventTypes": ["EventTypeDoubleBitEccError"]}, {}, set()),
        ({"eventTypes": ["EventTypeXidCriticalError"]}, {}, {ROW, FATAL, UNKNOWN}),
        (None, {DISABLE: "all"}, set()),
        (None, {DISABLE: "xids"}, set()),
        (None, {DISABLE: "63, 79"}, {UNKNOWN}),
        ({"ignoredXIDs": [63]}, {DISABLE: "79"}, {UNKNOWN}),
        (None, {ENABLE: "13"}, {APPLICATION, ROW, FATAL, UNKNOWN}),
        (None, {ENABLE: "all"}, {APPLICATION, ROW, FATAL, UNKNOWN}),
        (None, {DISABLE: "xids", ENABLE: "79"}, {FATAL}),
        (None, {DISABLE: "63", ENABLE: "63"}, {ROW, FATAL, UNKNOWN}),
        ({"disabled": True}, {ENABLE: "13,79"}, {APPLICATION, FATAL}),
        ({"criticalXIDs": [79]}, {ENABLE: "13"}, {APPLICATION, FATAL}),
    ],
)
def test_which_xids_take_a_gpu_out_of_service(health, environ, expected):
    assert serious(health, **environ) == expected


def test_what_is_made_harmless_is_still_told():
    rules = plugin_rules(DEFAULT_RULES, wished({"disabled": True}))
    for fact in (Fact(Kind.XID, FATAL), Fact(Kind.REMAP_FAILED, detail="a row could not be remapped")):
        health = judge([fact], rules)
        assert health.healthy
        assert health.reason
        assert [str(taint.effect) for taint in health.taints] == ["None"]


def test_a_gpu_that_does_not_answer_is_offered_by_no_wish():
    rules = plugin_rules(DEFAULT_RULES, wished({"disabled": True}, **{DISABLE: "all"}))
    assert not judge([Fact(Kind.LOST, detail="gone")], rules).healthy


def test_without_xids_other_checks_go_on():
    rules = plugin_rules(DEFAULT_RULES, wished(None, **{DISABLE: "xids"}))
    assert not judge([Fact(Kind.REMAP_FAILED)], rules).healthy


def test_ecc_errors_are_an_event_type():
    rules = plugin_rules(DEFAULT_RULES, wished({"eventTypes": ["EventTypeXidCriticalError"]}))
    assert judge([Fact(Kind.ECC)], rules).healthy


@pytest.mark.parametrize(
    ("health", "environ", "words"),
    [
        ({"disabled": "yes"}, {}, "config.yaml: health.disabled: invalid value 'yes': must be true or false"),
        ({"ignoredXIDs": 13}, {}, "health.ignoredXIDs: invalid value 13: must be a list of XIDs"),
        ({"ignoredXIDs": ["13"]}, {}, r"health.ignoredXIDs\[0\]: invalid value '13': must be a whole number from 1 to"),
        ({"criticalXIDs": "some"}, {}, "health.criticalXIDs: invalid value 'some': must be a list of XIDs or all"),
        ({"criticalXIDs": [0]}, {}, r"health.criticalXIDs\[0\]: invalid value 0: must be a whole number"),
        ({"criticalXIDs": [79], "ignoredXIDs": [79]}, {}, "must not be in ignoredXIDs too"),
        (
            {"eventTypes": ["xid"]},
            {},
            r"health.eventTypes\[0\]: invalid value 'xid': must be one of EventTypeXidCriticalError",
        ),
        ({"enabled": True}, {}, "health.enabled: invalid value true: unknown field"),
        (None, {DISABLE: "none"}, f"environment variable {DISABLE}: invalid value 'none': must be all, xids, or XIDs"),
        (None, {ENABLE: "79;48"}, f"environment variable {ENABLE}: invalid value '79;48': must be all, xids"),
        (None, {DISABLE: "0"}, f"environment variable {DISABLE}: invalid value 0: must be a whole number"),
    ],
)
def test_bad_wishes_are_named(health, environ, words):
    with pytest.raises(InvalidValueError, match=words):
        wished(health, **environ)
