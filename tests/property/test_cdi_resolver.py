"""Whatever lies in a CDI directory, reading it ends, and a good file beside stays good."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from driver.localcluster.containers.cdi import read

GOOD = {"cdiVersion": "0.6.0", "kind": "ok.com/gpu", "devices": [{"name": "g", "containerEdits": {"env": ["A=1"]}}]}
FIELDS = st.sampled_from(
    [
        "cdiVersion",
        "kind",
        "devices",
        "containerEdits",
        "name",
        "env",
        "mounts",
        "hooks",
        "deviceNodes",
        "path",
        "annotations",
    ]
)
TEXT = st.sampled_from(["0.6.0", "ok.com/gpu", "ex.com/gpu", "g", "A=1", "/dev/null", ""]) | st.text(max_size=5)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(FIELDS | st.text(max_size=3), inner, max_size=4),
    max_leaves=15,
)


def check(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as name:
        low, high = Path(name, "low"), Path(name, "high")
        low.mkdir()
        high.mkdir()
        (low / "a.json").write_bytes(content)
        (high / "b.json").write_text(json.dumps(GOOD), encoding="utf-8")
        registry = read([low, high])
        assert "ok.com/gpu=g" in registry.devices
        assert registry.inject(["ok.com/gpu=g"]).env == {"A": "1"}
        assert len(registry.errors) <= 1


@given(VALUES)
def test_any_json(value: object) -> None:
    check(json.dumps(value).encode())


@given(st.binary(max_size=60))
def test_any_bytes(content: bytes) -> None:
    check(content)
