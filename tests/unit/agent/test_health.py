from __future__ import annotations

import pytest

from driver.agent.health import rules_by
from driver.config.plugin_health import HealthFlags
from driver.errors import InvalidValueError
from driver.model.health import Effect, Severity
from driver.settings import load_settings


def rules(flags, **settings):
    return rules_by(load_settings({"node_name": "n", **settings}, {}))(flags)


def test_the_device_plugins_config_changes_the_rules():
    found = rules(HealthFlags(ignored_xids=(63,)), unhealthy_effect="NoExecute")
    assert found.of_xid(63).severity is Severity.NOTICE
    assert found.of_xid(64).severity is Severity.FATAL
    assert found.serious is Effect.NO_EXECUTE


def test_our_own_file_of_rules_goes_before_it(tmp_path):
    file = tmp_path / "rules.yaml"
    file.write_text("xids: {63: fatal}\n")
    found = rules(HealthFlags(disabled=True), health_rules=str(file))
    assert found.of_xid(63).severity is Severity.FATAL
    assert found.of_xid(64).severity is Severity.NOTICE


def test_a_bad_file_is_refused_at_the_start(tmp_path):
    file = tmp_path / "rules.yaml"
    file.write_text("xids: {63: deadly}\n")
    with pytest.raises(InvalidValueError, match=r"xids\.63.*deadly"):
        rules_by(load_settings({"node_name": "n", "health_rules": str(file)}, {}))
