"""The recorded CDI cases: files, devices, and what containerd did with them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

CASES: list[dict[str, Any]] = json.loads(
    (Path(__file__).parents[3] / "data" / "recordings" / "cdi.json").read_text(encoding="utf-8")
)


def lay_out(case: dict[str, Any], root: Path) -> tuple[Path, Path]:
    """Write a case's files; return the directories that stand for /etc/cdi and /var/run/cdi."""
    directories = (root / "etc" / "cdi", root / "run" / "cdi")
    for directory in directories:
        directory.mkdir(parents=True)
    for name, content in case["files"].items():
        top, _, base = name.partition("/")
        text = content if isinstance(content, str) else json.dumps(content)
        (root / top / "cdi" / base).write_text(text, encoding="utf-8")
    return directories


def expected_errors(case: dict[str, Any], root: Path) -> list[str]:
    """Return the recorded messages, each as far as the recorder kept it, with this test's paths."""
    text = case["error"].replace('"/etc/', f'"{root}/etc/')
    return [part.rstrip("\\") for part in text.split(" | ")]
