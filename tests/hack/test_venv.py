"""hack/venv, with stand-ins for Python that say who made the environment."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

HACK = Path(__file__).parents[2] / "hack"

STAND_IN = """#!/bin/sh
case "$*" in
  "-m venv "*) mkdir -p "$3/bin" && cp "$0" "$3/bin/python" && basename "$0" >"$3/made-by" ;;
esac
"""


@pytest.fixture
def make(tmp_path):
    """Make an environment where these Pythons are installed; the name of the one that made it, or what was said."""

    def run(*pythons: str, **variables: str) -> str:
        path = tmp_path / "bin"
        path.mkdir()
        for name in pythons:
            (path / name).write_text(STAND_IN)
            (path / name).chmod(0o755)
        for tool in ("bash", "dirname", "basename", "cat", "sha256sum", "cut", "mkdir", "cp", "sh"):
            (path / tool).symlink_to(Path("/usr/bin") / tool)
        done = subprocess.run(
            [str(path / "bash"), str(HACK / "venv")],
            env={"PATH": str(path), "GPU_DRA_VENV": str(tmp_path / "venv"), **variables},
            capture_output=True,
            text=True,
            check=False,
        )
        return done.stderr if done.returncode else (tmp_path / "venv/made-by").read_text().strip()

    return run


def test_the_newest_python_that_is_supported_is_taken(make):
    assert make("python3.11", "python3.12", "python3") == "python3.12"


def test_or_the_one_that_is_asked_for(make):
    assert make("python3.11", "python3.12", "python3", GPU_DRA_PYTHON="python3.11") == "python3.11"


def test_which_no_other_replaces(make):
    assert "found: python3.11 is none" in make("python3.12", GPU_DRA_PYTHON="python3.11")
