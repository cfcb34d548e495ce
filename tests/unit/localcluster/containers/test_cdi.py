"""CDI resolution: every recorded case of containerd's, as far as it happens before a process exists."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from driver.localcluster.containers.cdi import read
from driver.localcluster.containers.errors import CdiError

from .recorded import CASES, expected_errors, lay_out

if TYPE_CHECKING:
    from pathlib import Path


def spec(*devices: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"cdiVersion": "0.6.0", "kind": "ex.com/gpu", "devices": list(devices), **more}


def device(name: str = "g0", **edits: Any) -> dict[str, Any]:
    return {"name": name, "containerEdits": edits or {"env": ["A=1"]}}


def error_of(root: Path, content: object) -> str:
    root.mkdir(exist_ok=True)
    (root / "a.json").write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    registry = read([root])
    assert registry.devices == {}
    [error] = registry.errors
    return error


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_recorded_case(case: dict[str, Any], tmp_path: Path) -> None:
    registry = read(lay_out(case, tmp_path))
    try:
        edits = registry.inject(case["devices"])
    except CdiError as exc:
        assert not case["started"]
        said = [*registry.errors, str(exc)]
        for message in expected_errors(case, tmp_path):
            assert any(ours.startswith(message) for ours in said), (message, said)
        return
    if not case["started"]:  # these are found by the runtime, when it starts the process
        assert "shim task" in case["error"]
        return
    variables = {line for line in case["seen_in_container"] if line.split("=")[0].isupper()}
    assert {f"{name}={value}" for name, value in edits.env.items()} == variables


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (spec(device(mounts=[{"hostPath": "/a"}])), "invalid mount, empty container path"),
        (spec(device(mounts=[{"containerPath": "/a"}])), "invalid mount, empty host path"),
        (spec(device(deviceNodes=[{"type": "c"}])), "invalid (empty) device path"),
        (spec(device(deviceNodes=[{"path": "/dev/a", "type": "x"}])), 'device "/dev/a": invalid type "x"'),
        (spec(device(hooks=[{"hookName": "prestart"}])), 'invalid hook "prestart" with empty path'),
        (spec(device(), device()), 'invalid spec, multiple device "g0"'),
        (spec(device("g 0")), 'invalid device name "g 0"'),
        (spec(device(""), device("g1")), "invalid (empty) device name"),
        (spec(device(), kind="ex.com/"), "invalid class. empty name"),
        (spec(device(), kind="1x.com/gpu"), 'invalid vendor. "1x.com"'),
        (spec(device(), cdiVersion="0.2.0"), "the spec version must be at least v0.3.0"),
        (spec(device(), cdiVersion="0.5.0", annotations={"a": "b"}), "the spec version must be at least v0.6.0"),
        (spec(device(), cdiVersion="0.5.0", kind="ex.com/gpu.x"), "the spec version must be at least v0.6.0"),
        (
            spec(device(env=[1])),
            "cannot unmarshal number into Go struct field Spec.devices.containerEdits.env of type string",
        ),
        (spec(device(env="A=1")), "cannot unmarshal string into"),
        ([], "cannot unmarshal array into Go struct field Spec of type object"),
        ("a: b: c", "error converting YAML to JSON: yaml: line 1: mapping values are not allowed in this context"),
        ("", 'invalid CDI Spec: invalid version ""'),
    ],
)
def test_a_bad_file_says_what_is_wrong(tmp_path: Path, content: object, message: str) -> None:
    assert message in error_of(tmp_path / "etc", content)


def test_field_names_match_in_any_case_as_in_go(tmp_path: Path) -> None:
    content = spec(device(additionalGIDs=[7, 0, 7]), cdiVersion="0.7.0")
    (tmp_path / "a.json").write_text(json.dumps(content), encoding="utf-8")
    assert read([tmp_path]).inject(["ex.com/gpu=g0"]).gids == [7]


def test_a_conflict_below_spoils_the_device_above_too(tmp_path: Path) -> None:
    for name in ("etc/a", "etc/b", "run/a"):
        path = tmp_path / f"{name}.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(spec(device())), encoding="utf-8")
    registry = read([tmp_path / "etc", tmp_path / "run"])
    with pytest.raises(CdiError, match=r"unresolvable CDI devices ex\.com/gpu=g0"):
        registry.inject(["ex.com/gpu=g0"])


def test_a_device_type_that_is_not_the_hosts_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(
        json.dumps(spec(device(deviceNodes=[{"path": "/dev/null", "type": "b"}]))), encoding="utf-8"
    )
    with pytest.raises(CdiError, match=r"host type mismatch \(b, c\)"):
        read([tmp_path]).inject(["ex.com/gpu=g0"])


def test_a_missing_directory_holds_nothing(tmp_path: Path) -> None:
    assert read([tmp_path / "none"]).devices == {}


@pytest.mark.parametrize("content", ["[" * 100_000, "a: &a [*a]\n", "\x01", "{}: {}", "2026-01-01"])
def test_no_file_breaks_the_others(tmp_path: Path, content: str) -> None:
    (tmp_path / "a.json").write_text(content, encoding="utf-8")
    (tmp_path / "b.json").write_text(json.dumps(spec(device())), encoding="utf-8")
    (tmp_path / "c.json").write_bytes(b"\xff\xfe\xff")
    (tmp_path / "d.json").mkdir()
    registry = read([tmp_path])
    assert list(registry.devices) == ["ex.com/gpu=g0"]
    assert len(registry.errors) == 2
