"""The Dockerfile, as far as it can be checked without building it; NIGHTLY=1 runs its build stage in a directory."""

from __future__ import annotations

import fnmatch
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import driver
from tests.deploy.manifests import ROOT

NAME = re.compile(r"^([A-Za-z0-9_.-]+)==", re.MULTILINE)


def instructions() -> list[tuple[str, str]]:
    lines = [line for line in (ROOT / "Dockerfile").read_text().splitlines() if not line.lstrip().startswith("#")]
    text = re.sub(r"\\\n\s*", " ", "\n".join(lines))
    return [
        (word.upper(), rest.strip()) for word, _, rest in (line.partition(" ") for line in text.splitlines() if line)
    ]


def stages() -> list[list[tuple[str, str]]]:
    found: list[list[tuple[str, str]]] = []
    for word, rest in instructions():
        if word == "FROM":
            found.append([])
        if found:
            found[-1].append((word, rest))
    return found


def values(stage: list[tuple[str, str]], word: str) -> list[str]:
    return [rest for name, rest in stage if name == word]


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def ignored(path: str) -> bool:
    """As Docker reads .dockerignore: the last pattern that matches the path or a folder above it decides."""
    result = False
    above = [path, *(str(parent) for parent in Path(path).parents if str(parent) != ".")]
    for line in (ROOT / ".dockerignore").read_text().splitlines():
        pattern = line.lstrip("!").strip("/").removeprefix("**/")
        if line and not line.startswith("#"):
            names = above + ([Path(path).name] if "**" in line else [])
            if any(fnmatch.fnmatchcase(name, pattern) for name in names):
                result = not line.startswith("!")
    return result


def sources() -> list[str]:
    copies = [rest.split() for stage in stages() for rest in values(stage, "COPY") if "--from" not in rest]
    return [source for words in copies for source in words[:-1]]


def test_both_stages_are_of_one_base_that_is_pinned():
    (default,) = [rest.partition("=")[2] for word, rest in instructions() if word == "ARG"]
    assert [values(stage, "FROM") for stage in stages()] == [["${PYTHON_IMAGE} AS build"], ["${PYTHON_IMAGE}"]]
    match = re.fullmatch(r"python:(\d+)\.(\d+)\.\d+-slim-[a-z]+", default)
    assert match, default
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    least = project["requires-python"].removeprefix(">=").split(".")
    assert (int(match[1]), int(match[2])) >= tuple(map(int, least))


def test_what_is_copied_is_there_and_not_ignored():
    assert sources() == ["hack/agent.lock", "driver", "LICENSE"]
    for source in sources():
        assert (ROOT / source).exists()
        assert not ignored(source)


@pytest.mark.parametrize("path", [".git/config", "tests/conftest.py", "hack/demo", ".venv/bin/python"])
def test_nothing_else_goes_into_the_build(path):
    assert ignored(path)


@pytest.mark.parametrize("path", ["driver/localcluster/cluster.py", "driver/cdi/__pycache__/x.pyc"])
def test_the_embedded_cluster_is_no_part_of_the_image(path):
    assert ignored(path)
    assert not ignored("driver/cdi/nvidia-smi.sh")
    assert not ignored("driver/inventory/profiles/h100.yaml")


def test_dependencies_come_from_the_lock_by_hash_and_as_wheels():
    (install,) = [run for run in values(stages()[0], "RUN") if "install" in run]
    for word in ("--require-hashes", "--requirement hack/agent.lock", "--only-binary :all:", "--no-cache-dir"):
        assert word in install
    assert not [run for run in values(stages()[1], "RUN") if "install" in run]


def test_the_lock_has_what_the_project_needs_and_no_extras():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    locked = {normal(name) for name in NAME.findall((ROOT / "hack/agent.lock").read_text())}
    wanted = {normal(re.split(r"[<>=!~ \[;]", entry)[0]) for entry in project["dependencies"]}
    extras = {
        normal(re.split(r"[<>=!~ \[;]", entry)[0])
        for group in project["optional-dependencies"].values()
        for entry in group
    }
    assert wanted <= locked
    assert not (extras - wanted) & locked


def test_the_container_starts_the_agent_and_is_not_root_unless_told():
    final = stages()[1]
    assert values(final, "ENTRYPOINT") == ['["gpu-dra"]']
    assert values(final, "CMD") == ['["run"]']
    assert values(final, "USER") == ["65532:65532"]
    assert values(final, "COPY")[0] == "--from=build /opt/gpu-dra /opt/gpu-dra"
    assert any(rest.startswith("PATH=/opt/gpu-dra/bin:") for rest in values(final, "ENV"))


@pytest.mark.skipif(not os.environ.get("NIGHTLY"), reason="downloads all dependencies; NIGHTLY=1 runs it")
def test_the_build_stage_makes_a_command_that_runs(tmp_path):
    context, target = tmp_path / "src", tmp_path / "opt"
    context.mkdir()
    for source in sources():
        (context / source).parent.mkdir(exist_ok=True)
        copy = shutil.copytree if (ROOT / source).is_dir() else shutil.copy
        copy(ROOT / source, context / source)
    shutil.rmtree(context / "driver/localcluster")
    for path in (context / "driver").rglob("*"):
        path.chmod(0o700 if path.is_dir() else 0o600)  # a checkout with umask 077
    bin_dir = tmp_path / "bin"
    bin_dir.mkdir()
    (bin_dir / "python").symlink_to(sys.executable)
    (bin_dir / "pip").write_text(f'#!/bin/sh\nexec {sys.executable} -m pip "$@"\n')
    (bin_dir / "pip").chmod(0o755)
    environ = {"PATH": f"{bin_dir}:/usr/bin:/bin", "HOME": str(tmp_path)}
    for run in values(stages()[0], "RUN"):
        command = run.replace("/opt/gpu-dra", str(target))
        subprocess.run(["sh", "-ec", command], cwd=context, env=environ, check=True, timeout=600)
    installed = list(target.glob("lib/python3.*/site-packages/driver/**/*"))
    assert [path for path in installed if not path.stat().st_mode & 0o004] == []  # the image's user is not root
    program = str(target / "bin/gpu-dra")
    shown = subprocess.run([program, "--version"], env={}, capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == f"gpu-dra {driver.__version__}"
    inventory = [program, "inventory", "--gpus", "h100:2", "-o", "json"]
    assert "H100" in subprocess.run(inventory, env={}, capture_output=True, text=True, check=True).stdout
    demo = subprocess.run([program, "demo"], env={}, capture_output=True, text=True, check=False)
    assert demo.returncode != 0
    assert "Traceback" not in demo.stderr
