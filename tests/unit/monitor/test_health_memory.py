from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from driver.agent.health import rules_by
from driver.config.plugin_health import NO_WISHES
from driver.errors import InvalidValueError
from driver.model.health import Effect, Severity
from driver.model.health_chart import SeenXid
from driver.monitor.health_memory import HealthMemory
from driver.settings import load_settings

if TYPE_CHECKING:
    from pathlib import Path

LASTING = {
    "GPU-0": (SeenXid(xid=79, at=0.0, down=True), SeenXid(xid=94, instances=(7, 0), at=0.0)),
    "GPU-1": (SeenXid(xid=999, instances=(7, None), at=0.0),),
}


def test_what_was_saved_is_loaded(tmp_path: Path) -> None:
    memory = HealthMemory(tmp_path / "new" / "health.json", "boot")
    assert memory.load() == {}
    memory.save(LASTING)
    assert memory.load() == LASTING
    assert HealthMemory(tmp_path / "new" / "health.json", "another").load() == {}
    memory.save({})
    assert memory.load() == {}


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        "{}",
        '{"bootID": "boot"}',
        '{"bootID": "boot", "gpus": []}',
        '{"bootID": "boot", "gpus": {"GPU-0": 7}}',
        '{"bootID": "boot", "gpus": {"GPU-0": [7]}}',
        '{"bootID": "boot", "gpus": {"GPU-0": [{"xid": 0, "down": false}]}}',
        '{"bootID": "boot", "gpus": {"GPU-0": [{"xid": 79, "down": false, "instances": [1]}]}}',
        '{"bootID": "boot", "gpus": {"GPU-0": [{"xid": 79, "down": false, "instances": ["a", 0]}]}}',
        "[" * 100_000,
    ],
)
def test_a_bad_file_is_told_and_forgotten(tmp_path: Path, content: str, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "health.json"
    file.write_text(content)
    memory = HealthMemory(file, "boot")
    assert memory.load() == {}
    assert "earlier XIDs are forgotten" in caplog.text
    memory.save(LASTING)
    assert memory.load() == LASTING


def test_a_newer_agents_fields_are_tolerated(tmp_path: Path) -> None:
    file = tmp_path / "health.json"
    file.write_text('{"bootID": "boot", "more": 1, "gpus": {"GPU-0": [{"xid": 79, "down": true, "more": 1}]}}')
    assert HealthMemory(file, "boot").load() == {"GPU-0": LASTING["GPU-0"][:1]}


def test_a_file_that_can_not_be_used_costs_the_memory_only(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    memory = HealthMemory(tmp_path / "file" / "health.json", "boot")
    memory.save(LASTING)
    assert "will be forgotten when the agent ends" in caplog.text
    assert memory.load() == {}


def test_the_file_is_for_us_alone(tmp_path: Path) -> None:
    HealthMemory(tmp_path / "health.json", "boot").save(LASTING)
    assert (tmp_path / "health.json").stat().st_mode & 0o077 == 0
    assert json.loads((tmp_path / "health.json").read_text())["bootID"] == "boot"


def test_settings_make_the_rules(tmp_path: Path) -> None:
    file = tmp_path / "rules.yaml"
    file.write_text("xids: {94: application}\nfacts: {nvlink-down: fatal}\n")
    flags = {"health_rules": str(file), "unhealthy_effect": "NoExecute", "state_dir": str(tmp_path)}
    rules = rules_by(load_settings(flags, {}))(NO_WISHES)
    assert rules.of_xid(94).severity is Severity.NOTICE
    assert rules.serious is Effect.NO_EXECUTE


def test_a_bad_rules_file_is_refused_with_its_name(tmp_path: Path) -> None:
    file = tmp_path / "rules.yaml"
    file.write_text("xid: {94: application}")
    with pytest.raises(InvalidValueError, match=r"rules\.yaml: xid: .*did you mean 'xids'"):
        rules_by(load_settings({"health_rules": str(file)}, {}))
    with pytest.raises(InvalidValueError, match=r"missing\.yaml"):
        rules_by(load_settings({"health_rules": str(tmp_path / "missing.yaml")}, {}))
