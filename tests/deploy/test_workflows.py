from __future__ import annotations

import tomllib

import pytest
import yaml

from tests.deploy.manifests import ROOT

WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yaml"))


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_has_least_rights_and_ends(path):
    workflow = yaml.safe_load(path.read_text())
    assert workflow["permissions"] == {"contents": "read"}
    nobody_waits = not {"push", "pull_request"} & workflow[True].keys()  # YAML 1.1 reads `on` as true
    limit = 180 if nobody_waits else 60
    assert all(job["timeout-minutes"] <= limit for job in workflow["jobs"].values())


def test_ci_runs_what_a_person_runs_on_the_oldest_python_that_is_promised():
    jobs = yaml.safe_load((ROOT / ".github/workflows/ci.yaml").read_text())["jobs"]
    (step,) = (step for step in jobs["test"]["steps"] if step.get("run") == "./.ci/run")
    assert step["env"] == {"GPU_DRA_PYTHON": "python${{ matrix.python }}"}
    assert (ROOT / ".ci/run").stat().st_mode & 0o111
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert jobs["test"]["strategy"]["matrix"]["python"][0] == project["requires-python"].removeprefix(">=")
