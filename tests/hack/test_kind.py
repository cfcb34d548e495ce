"""The scripts for kind, with stand-ins for kind, docker and kubectl that record their calls."""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
HACK = ROOT / "hack"

STAND_IN = r"""#!/bin/sh
echo "$(basename "$0") $*" >>"$CALLS"
case "$(basename "$0") $*" in
  "kind get clusters") cat "$STATE/clusters" ;;
  "kind create cluster"*) cat >"$STATE/config" ;;
  "docker version"*) echo linux/arm64 ;;
  "docker save --platform"*) [ ! -e "$STATE/old-docker" ] ;;
  *"apply --kustomize"*) for last in "$@"; do :; done; cp "$last/kustomization.yaml" "$STATE/" ;;
  *"get daemonset gpu-dra"*) printf 2 ;;
  *"get resourceslices -o"*) [ ! -e "$STATE/silent" ] && printf 'worker\nworker2\nworker\n' || true ;;
  *"rollout status"*) [ ! -e "$STATE/failing" ] ;;
esac
"""


class World:
    """A PATH on which only stand-ins and the system's tools are."""

    def __init__(self, root: Path) -> None:
        self.bin, self.state, self.calls_file = root / "bin", root / "state", root / "calls"
        self.bin.mkdir()
        self.state.mkdir()
        (self.state / "clusters").write_text("other\n")
        for tool in ("kind", "docker", "kubectl"):
            self.install(tool)

    def install(self, tool: str) -> None:
        path = self.bin / tool
        path.write_text(STAND_IN)
        path.chmod(path.stat().st_mode | stat.S_IXUSR)

    def run(self, script: str, *arguments: str, path: str = "/usr/bin:/bin") -> subprocess.CompletedProcess[str]:
        environment = {"PATH": f"{self.bin}:{path}", "CALLS": str(self.calls_file), "STATE": str(self.state)}
        environment["HOME"] = os.environ.get("HOME", "/")
        return subprocess.run(
            [str(HACK / script), *arguments], capture_output=True, text=True, check=False, timeout=60, env=environment
        )

    @property
    def calls(self) -> list[str]:
        return self.calls_file.read_text().splitlines() if self.calls_file.exists() else []


@pytest.fixture
def world(tmp_path):
    return World(tmp_path)


def test_scripts_are_clean():
    shellcheck = shutil.which("shellcheck")
    if shellcheck is None:
        pytest.skip("shellcheck is not installed")
    names = ("venv", "test", "demo", "bench", "kind-common", "kind-up", "kind-down", "kind-test")
    files = [f"hack/{name}" for name in names]
    done = subprocess.run([shellcheck, "-x", *files], cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout == ""


def test_up_builds_creates_loads_installs_and_waits(world):
    done = world.run("kind-up")
    assert done.returncode == 0, done.stderr
    kinds = [call.split()[0:3] for call in world.calls]
    assert kinds[:4] == [
        ["docker", "build", "--tag"],
        ["kind", "get", "clusters"],
        ["kind", "create", "cluster"],
        ["docker", "version", "--format"],
    ]
    (created,) = (call for call in world.calls if call.startswith("kind create cluster --name gpu-dra "))
    assert re.search(r" --image kindest/node:v1\.36\.4@sha256:[0-9a-f]{64} --config - --wait 180s$", created)
    assert yaml.safe_load((world.state / "config").read_text())["kind"] == "Cluster"
    kubectl = [call for call in world.calls if call.startswith("kubectl")]
    assert all("--context kind-gpu-dra" in call for call in kubectl)
    assert any("rollout status daemonset/gpu-dra" in call for call in kubectl)
    assert not any("rollout restart" in call for call in kubectl)
    assert "is ready" in done.stdout


def test_up_gives_a_cluster_that_is_there_the_new_image(world):
    (world.state / "clusters").write_text("other\ngpu-dra\n")
    done = world.run("kind-up")
    assert done.returncode == 0, done.stderr
    assert not any(call.startswith("kind create") for call in world.calls)
    assert any("rollout restart daemonset/gpu-dra" in call for call in world.calls)


def test_up_shows_what_is_known_when_the_driver_does_not_come_up(world):
    (world.state / "failing").touch()
    done = world.run("kind-up")
    assert done.returncode == 1
    assert "did not come up" in done.stderr
    assert any(" logs " in call for call in world.calls)


@pytest.mark.parametrize("tool", ["kind", "docker", "kubectl"])
def test_up_says_which_tool_is_missing_and_where_to_get_it(world, tmp_path, tool):
    (world.bin / tool).unlink()
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("bash", "env", "dirname", "basename", "cat", "grep", "sed"):
        (tools / name).symlink_to(shutil.which(name))
    done = world.run("kind-up", path=str(tools))
    assert done.returncode == 3
    assert f"{tool} is missing. Install it: https://" in done.stderr
    assert world.calls == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--kubernetes", "latest"), "a version such as 1.36"),
        (("--kubernetes", "1.33"), "from 1.34 on"),
        (("--kubernetes",), "needs a value"),
        (("--workers", "none"), "from 1 to 99"),
        (("--wrong",), "unknown argument --wrong"),
    ],
)
def test_up_refuses_bad_arguments(world, arguments, message):
    done = world.run("kind-up", *arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert world.calls == []


@pytest.mark.parametrize("script", ["kind-up", "kind-down", "kind-test"])
def test_help_shows_how_it_is_called(world, script):
    done = world.run(script, "--help")
    assert done.returncode == 0
    assert f"hack/{script} [" in done.stdout
    assert world.calls == []


@pytest.mark.parametrize(
    ("version", "image", "gates"),
    [
        (
            "1.34",
            "v1.34.11",
            {"DRAConsumableCapacity", "DRADeviceTaints", "DRAExtendedResource", "ResourceHealthStatus"},
        ),
        (
            "1.35",
            "v1.35.8",
            {
                "DRAConsumableCapacity",
                "DRADeviceTaints",
                "DRAExtendedResource",
                "DRAPartitionableDevices",
                "ResourceHealthStatus",
            },
        ),
        ("1.36", "v1.36.4", set()),
        ("v1.37.2", "v1.37.2", set()),
    ],
)
def test_the_configuration_follows_the_version(world, version, image, gates):
    done = world.run("kind-up", "--kubernetes", version, "--workers", "2")
    assert done.returncode == 0, done.stderr
    config = yaml.safe_load((world.state / "config").read_text())
    assert config["apiVersion"] == "kind.x-k8s.io/v1alpha4"
    assert "enable_cdi = true" in config["containerdConfigPatches"][0]
    assert {name for name, on in config.get("featureGates", {}).items() if on} == gates
    assert [node["role"] for node in config["nodes"]] == ["control-plane", "worker", "worker"]
    created = next(call for call in world.calls if call.startswith("kind create"))
    assert re.search(rf" --image kindest/node:{re.escape(image)}(@sha256:[0-9a-f]{{64}})? ", created)
    printed = world.run("kind-up", "--kubernetes", version, "--workers", "2", "--print-config").stdout
    assert yaml.safe_load(printed) == config


def test_what_is_installed_is_the_fake_overlay_with_the_image_that_was_built(world, tmp_path):
    assert world.run("kind-up", "--gpus", "l4:3").returncode == 0
    here = tmp_path / "kustomization"
    here.mkdir()
    text = (world.state / "kustomization.yaml").read_text()
    outside = os.path.relpath(ROOT / "deploy", here)
    content = yaml.safe_load(text)
    for key in ("resources", "components"):
        content[key] = [f"{outside}/{path.partition('/deploy/')[2]}" for path in content[key]]
    (here / "kustomization.yaml").write_text(yaml.safe_dump(content))
    kubectl = Path(sys.executable).with_name("kubectl")
    built = subprocess.run([kubectl, "kustomize", str(here)], capture_output=True, text=True, check=False, timeout=60)
    assert built.returncode == 0, built.stderr
    objects = {(item["kind"], item["metadata"]["name"]): item for item in yaml.safe_load_all(built.stdout)}
    (agent,) = objects["DaemonSet", "gpu-dra"]["spec"]["template"]["spec"]["containers"]
    assert agent["image"] == "gpu-dra:kind"
    variables = {entry["name"]: entry.get("value") for entry in agent["env"]}
    assert (variables["GPU_DRA_INVENTORY"], variables["GPU_DRA_GPUS"]) == ("fake", "l4:3")
    assert objects["DeviceClass", "gpu.nvidia.com"]["spec"]["extendedResourceName"] == "nvidia.com/gpu"
    assert any(call == "docker build --tag gpu-dra:kind " + str(ROOT) for call in world.calls)


@pytest.mark.parametrize("old", [False, True])
def test_nodes_get_the_image_of_one_platform(world, old):
    """kind can't load the index of several that Docker 29 saves (kind issue 3795); before 28 there is no --platform."""
    if old:
        (world.state / "old-docker").touch()
    assert world.run("kind-up").returncode == 0
    (loaded,) = (call for call in world.calls if call.startswith("kind load "))
    archive = re.fullmatch(r"kind load image-archive (/\S+) --name gpu-dra", loaded)[1]
    saved = [call for call in world.calls if call.startswith("docker save ")]
    assert saved[0] == f"docker save --platform linux/arm64 --output {archive} gpu-dra:kind"
    assert saved[1:] == ([f"docker save --output {archive} gpu-dra:kind"] if old else [])
    assert not Path(archive).exists()


def test_down_deletes_the_cluster(world):
    assert world.run("kind-down", "--name", "mine").returncode == 0
    assert world.calls == ["kind delete cluster --name mine"]


def test_the_suite_needs_a_cluster(world):
    done = world.run("kind-test")
    assert done.returncode == 2
    assert "there is no kind cluster gpu-dra: hack/kind-up makes one" in done.stderr


def test_ci_makes_and_tests_a_cluster_on_two_versions():
    job = yaml.safe_load((ROOT / ".github/workflows/kind.yaml").read_text())["jobs"]["conformance"]
    versions = job["strategy"]["matrix"]["kubernetes"]
    assert len(set(versions)) == 2
    runs = [step["run"] for step in job["steps"] if step.get("run", "").startswith("hack/")]
    assert [run.split()[0] for run in runs] == ["hack/kind-up", "hack/kind-test"]
