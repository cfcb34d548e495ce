"""The rules against what containerd answered."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from driver.cdi import rules
from driver.cdi.rules import VERSIONS
from driver.errors import InvalidValueError

RECORDINGS = json.loads((Path(__file__).parents[2] / "data/recordings/cdi.json").read_text())
LOADED_BY_RUNTIME = "failed to load CDI Spec"


def _specs(case: dict[str, Any]) -> list[dict[str, Any]]:
    named = [(name, text) for name, text in case["files"].items() if name.endswith((".json", ".yaml"))]
    loaded = []
    for _, content in named:
        try:
            loaded.append(yaml.safe_load(content) if isinstance(content, str) else content)
        except yaml.YAMLError:
            loaded.append({})
    return loaded


def _accepted(spec: dict[str, Any]) -> bool:
    try:
        rules.check_content(spec)
    except InvalidValueError:
        return False
    version = spec.get("cdiVersion")
    return version in VERSIONS and VERSIONS.index(version) >= VERSIONS.index(rules.required_version(spec))


@pytest.mark.parametrize("case", RECORDINGS, ids=lambda case: case["id"])
def test_a_spec_is_accepted_exactly_where_containerd_loaded_it(case):
    if case["id"] == "a broken file beside a good one":
        assert [_accepted(spec) for spec in _specs(case)] == [False, True]
        return
    loaded = LOADED_BY_RUNTIME not in case.get("error", "")
    assert all(_accepted(spec) for spec in _specs(case)) == loaded


def test_all_recordings_are_here():
    assert len(RECORDINGS) == 34


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"kind": "9x/claim"}, "kind"),
        ({"kind": "x/"}, "kind"),
        ({"devices": {}}, "devices"),
        ({"devices": ["g"]}, "devices[0]"),
        ({"devices": [{"name": "-g", "containerEdits": {"env": ["A=1"]}}]}, "devices[0].name"),
        ({"devices": [{"name": "g", "containerEdits": {"env": "A=1"}}]}, "devices[0].containerEdits.env"),
        ({"devices": [{"name": "g", "containerEdits": {"env": ["=1"]}}]}, "devices[0].containerEdits.env[0]"),
        ({"devices": [{"name": "g", "containerEdits": {"env": ["A=\0"]}}]}, "devices[0].containerEdits.env[0]"),
        ({"containerEdits": {"deviceNodes": [{"path": ""}]}}, "containerEdits.deviceNodes[0].path"),
        ({"containerEdits": {"deviceNodes": [{"path": "/x", "type": "z"}]}}, "containerEdits.deviceNodes[0].type"),
        ({"containerEdits": {"deviceNodes": [{"path": "/x", "minor": -1}]}}, "containerEdits.deviceNodes[0].minor"),
        ({"containerEdits": {"mounts": [{"hostPath": "/x"}]}}, "containerEdits.mounts[0].containerPath"),
        ({"containerEdits": {"additionalGids": [True]}}, "containerEdits.additionalGids[0]"),
        ({"containerEdits": {"colour": 1}}, "containerEdits.colour"),
    ],
)
def test_an_error_names_the_field(change, field):
    spec = {
        "cdiVersion": "0.7.0",
        "kind": "ex.com/gpu",
        "devices": [{"name": "g", "containerEdits": {"env": ["A=1"]}}],
    }
    rules.check_content(spec)
    with pytest.raises(InvalidValueError) as caught:
        rules.check_content(spec | change)
    assert caught.value.path == field


def test_one_device_name_comes_once():
    device = {"name": "g", "containerEdits": {"env": ["A=1"]}}
    with pytest.raises(InvalidValueError, match="each device name once"):
        rules.check_content({"cdiVersion": "0.3.0", "kind": "ex.com/gpu", "devices": [device, device]})
