"""The benchmarks' own logic, and the scale benchmark in small; nothing of time."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from hack.benchmarks import __main__ as bench
from hack.benchmarks.report import Report, Row, grid
from hack.benchmarks.scale import scale

if TYPE_CHECKING:
    from typing import Any

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("row", "held"),
    [
        ({"value": 5.0}, True),
        ({"value": 5.0, "limit": 5.0}, True),
        ({"value": 5.1, "limit": 5.0}, False),
        ({"value": 5.0, "floor": 4.0, "limit": 1.25}, True),
        ({"value": 5.0, "floor": 4.0, "limit": 1.2}, False),
        ({"value": 1.0, "unit": "", "limit": 0.0}, False),
    ],
)
def test_a_limit_is_on_the_ratio_where_there_is_a_floor(row: dict[str, Any], held: bool) -> None:
    assert Row(what="w", **row).held == held


def test_a_report_says_what_was_missed_and_shows_everything(tmp_path: Path) -> None:
    report = Report(notes=["a note"])
    report.extend([Row(what="good", value=1.0, limit=2.0), Row(what="bad", value=3.0, floor=1.0, limit=2.0)])
    text = report.text()
    assert "Missed: bad" in text
    assert "3.00 x" in text
    assert text.endswith("a note")
    report.write(tmp_path / "b.json")
    rows = json.loads((tmp_path / "b.json").read_text())["rows"]
    assert [(row["what"], row["ratio"], row["held"]) for row in rows] == [("good", None, True), ("bad", 3.0, False)]


def test_columns_are_aligned() -> None:
    assert grid([("a", "b"), ("long", "c")]) == "a     b\nlong  c"


def test_parts_are_chosen_by_name() -> None:
    assert bench._parts("idle, calls") == ["idle", "calls"]
    with pytest.raises(argparse.ArgumentTypeError, match="'idel' is none of start, idle"):
        bench._parts("idle,idel")


async def test_what_is_asked_of_the_api_server_does_not_grow_with_the_nodes() -> None:
    report = Report()
    await scale(report, sizes=(2, 6), claims_per_node=2)
    assert all(row.held for row in report.rows), report.text()
    found = {row.what: row.value for row in report.rows}
    assert found["6 nodes, 12 claims: requests per claim"] == 1
    assert found["6 nodes, 12 claims: requests of the worst node"] == 5, report.text()


@pytest.mark.parametrize("program", ["bench", "nightly"])
def test_help_is_given(program: str) -> None:
    module = {"bench": "hack.benchmarks", "nightly": "hack.night"}[program]
    done = subprocess.run(
        [sys.executable, "-m", module, "--help"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert f"usage: hack/{program}" in done.stdout
