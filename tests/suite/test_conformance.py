"""The conformance suite itself: on a cluster that it reaches by a kubeconfig only, and failing when it should."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from driver.kube.client import KubeClient

ROOT = Path(__file__).parents[2]
PYTEST = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:xdist"]

KIND = """\
echo "$(basename "$0") $*" >>{calls}
case "$*" in
  "get clusters") echo gpu-dra ;;
  "get kubeconfig --name gpu-dra") cat {kubeconfig} ;;
esac
"""


class World:
    """An embedded cluster in a process of its own, and the command line of its node's driver."""

    def __init__(self, description):
        self.kubeconfig = description["KUBECONFIG"]
        ((self.node, about),) = description["nodes"].items()
        self.kubelet_root, self.cdi_dir = about["kubeletRoot"], about["cdiDirs"][1]
        self.agent = about["agent"][1:]

    def process(self, **changes):
        chosen = {"kubelet-root": self.kubelet_root, "cdi-dir": self.cdi_dir, "node": self.node, **changes}
        flags = [part for name, value in chosen.items() for part in (f"--{name}", value)]
        return ["--driver", "process", *flags]

    def suite(self, *arguments):
        command = [*PYTEST, "tests/conformance", "--kubeconfig", self.kubeconfig, *arguments]
        return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    async def namespaces(self):
        async with KubeClient.from_kubeconfig(self.kubeconfig) as client:
            listed = await client.list("/api/v1/namespaces")
        names = [item["metadata"]["name"] for item in listed["items"]]
        return [name for name in names if name.startswith("gpu-dra-conformance-")]


@pytest.fixture(scope="module")
def world():
    root = Path(tempfile.mkdtemp(prefix="gs", dir="/tmp"))
    command = [sys.executable, "-m", "driver.localcluster", "--root", str(root), "--time-scale", "0.1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as cluster:
        try:
            yield World(json.loads(cluster.stdout.readline()))
        finally:
            cluster.send_signal(signal.SIGTERM)
            cluster.wait(20)
            shutil.rmtree(root, ignore_errors=True)


def finished(suite):
    output, _ = suite.communicate(timeout=100)
    return suite.returncode, output


async def test_a_cluster_without_the_driver_fails_and_says_so(world):
    status, output = finished(world.suite("-k", "one_pod_gets_one_gpu", "--patience", "1"))
    assert status == 1
    assert f"There is no driver to test on {server(world)}" in output
    assert "--driver process" in output
    assert await world.namespaces() == []


async def test_the_suite_starts_the_driver_reports_and_leaves_nothing(world, tmp_path):
    report = tmp_path / "report.xml"
    chosen = "one_pod_gets_one_gpu or killed_driver or kubelet_was_down or nvlink-pair or deleted_slice or refused_reg"
    status, output = finished(world.suite(*world.process(), "-k", chosen, "--junitxml", str(report)))
    assert status == 0, output
    assert "needs restart-kubelet: the kubelet can be stopped and started only in the embedded cluster" in output
    assert "needs disrupt: others on this cluster would notice; allow it with --disruptive" in output
    (suite,) = ET.parse(report).getroot()
    told = {what: int(suite.get(what)) for what in ("tests", "failures", "errors", "skipped")}
    assert (told["failures"], told["errors"]) == (0, 0)
    assert told["tests"] - told["skipped"] >= 3, "those that this cluster can run"
    assert told["skipped"] >= 4
    assert await world.namespaces() == []
    async with KubeClient.from_kubeconfig(world.kubeconfig) as client:
        for plural in ("deviceclasses", "resourceslices"):
            assert (await client.list(f"/apis/resource.k8s.io/v1/{plural}"))["items"] == []
    assert not list(Path(world.kubelet_root).glob("plugins*/**/*.sock"))


async def test_slices_of_a_driver_that_has_gone_are_no_sign_of_the_one_that_starts(world):
    """The suite stopped its driver, for a case with other settings, before that had come up."""
    pool = {"name": world.node, "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": "gpu.nvidia.com", "nodeName": world.node, "pool": pool, "devices": [{"name": "gpu-0"}]}
    async with KubeClient.from_kubeconfig(world.kubeconfig) as client:
        await client.create("/apis/resource.k8s.io/v1/resourceslices", {"metadata": {"name": "left"}, "spec": spec})
    status, output = finished(world.suite(*world.process(), "-k", "as_many_pods_as_there_are_shares"))
    assert status == 0, output


async def test_a_node_whose_runtime_does_not_find_the_devices_fails(world, tmp_path):
    elsewhere = world.process(**{"cdi-dir": str(tmp_path)})
    status, output = finished(world.suite(*elsewhere, "-k", "one_pod_gets_one_gpu", "--patience", "10"))
    assert status == 1
    assert "waited 10 s in vain: Pod pod is Running" in output
    assert "unresolvable CDI devices" in output
    assert "the driver's log" in output
    assert await world.namespaces() == []


async def test_two_runs_at_once_do_not_disturb_each_other(world):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GPU_DRA_")}
    await install_classes(world)
    with subprocess.Popen([sys.executable, "-m", "driver", *world.agent], env=environment, stderr=-3) as driver:
        try:
            runs = [world.suite("-k", "test_pods", "--patience", "20") for _ in range(2)]
            for status, output in [finished(run) for run in runs]:
                assert status == 0, output
        finally:
            driver.kill()
    assert await world.namespaces() == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_run_that_is_cancelled_cleans_up(world, tmp_path, number):
    """By Ctrl-C or as CI does it, while a case waits in vain."""
    elsewhere = world.process(**{"cdi-dir": str(tmp_path)})
    suite = world.suite(*elsewhere, "-k", "one_pod_gets_one_gpu")
    async with asyncio.timeout(30), KubeClient.from_kubeconfig(world.kubeconfig) as client:
        async for event in client.watch("/api/v1/pods"):
            if event.object["metadata"]["namespace"].startswith("gpu-dra-conformance-"):
                break
    suite.send_signal(number)
    status, output = finished(suite)
    assert status == 2, output
    assert await world.namespaces() == []
    assert not list(Path(world.kubelet_root).glob("plugins*/**/*.sock"))


def test_cases_on_other_clusters_may_take_as_long_as_their_waits():
    flags = ["--kubeconfig", "nowhere", "--collect-only", "-q", "-p", "tests.suite.limits"]
    done = subprocess.run(
        [*PYTEST, "tests/conformance", *flags, "--patience", "200"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "limits of the cases: 800" in done.stdout


def test_kind_test_runs_the_suite_on_the_kind_cluster(world, tmp_path):
    calls = tmp_path / "calls"
    for tool in ("kind", "docker"):
        script(tmp_path / "bin" / tool, KIND.format(calls=calls, kubeconfig=world.kubeconfig))
    environment = {**os.environ, "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"}
    environment["GPU_DRA_VENV"] = str(environment_of_this_python(tmp_path / "venv"))
    command = [str(ROOT / "hack/kind-test"), "-k", "one_pod_gets_one_gpu or deleted_slice", *world.process()]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout  # the cluster is its own: it may be disturbed
    assert re.search(
        r"docker save --platform \S* --output (\S+) busybox:1\.37\nkind load image-archive \1 --name", calls.read_text()
    )


@pytest.mark.parametrize("arguments", [["--driver", "process"], ["--context", "x"]])
def test_options_that_do_not_go_together_are_refused(arguments):
    done = subprocess.run(
        [*PYTEST, "tests/conformance", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "need --kubeconfig" in done.stderr


def test_help_shows_the_options():
    done = subprocess.run(
        [*PYTEST, "tests/conformance", "--help"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    for option in ("--kubeconfig", "--driver", "--kubelet-root", "--cdi-dir", "--image", "--junitxml", "--patience"):
        assert option in done.stdout
    assert "Says whether the driver works in a cluster" in done.stdout


def server(world):
    return KubeClient.from_kubeconfig(world.kubeconfig).server


async def install_classes(world):
    from tests.conformance import install

    await install.classes(Path(world.kubeconfig))


def script(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}")
    path.chmod(0o755)


def environment_of_this_python(path):
    """Make what hack/venv takes for an environment that is up to date."""
    script(path / "bin/python", f'exec {sys.executable} "$@"\n')
    content = b"".join((ROOT / name).read_bytes() for name in ("hack/requirements.lock", "pyproject.toml"))
    (path / ".lock.sha256").write_text(hashlib.sha256(content).hexdigest())
    return path
