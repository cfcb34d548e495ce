from __future__ import annotations

import json

import pytest
import yaml

from driver.cli import FAILED, OK, USAGE, main

NODE = ["--node-name", "n1"]


def show(capsys, *arguments: str) -> str:
    assert main(["inventory", *NODE, *arguments]) == OK
    return str(capsys.readouterr().out)


def test_a_table_for_people(capsys):
    lines = show(capsys, "--gpus", "h100:2,l4").splitlines()
    assert lines[0] == "Driver 580.105.08, CUDA 13.0, 3 GPUs"
    assert lines[2].split()[:4] == ["NAME", "PRODUCT", "MEMORY", "CC"]
    assert lines[3].startswith(
        "gpu-0  NVIDIA H100 80GB HBM3  81559 MiB  9.0  0000:1b:00.0  0     18 links, 2 GPUs  off  GPU-"
    )
    assert lines[5].startswith("gpu-2  NVIDIA L4              23034 MiB  8.9  ")
    assert len(lines) == 6


def test_mig_devices_have_a_table(capsys):
    out = show(capsys, "--gpus", "h100@mig=1g.10gb+3g.40gb")
    table = [line.split() for line in out.split("\n\n")[2].splitlines()]
    assert table[0] == ["MIG", "DEVICE", "GPU", "SLICES", "UUID"]
    assert [row[:3] for row in table[1:]] == [["1g.10gb", "gpu-0", "0"], ["3g.40gb", "gpu-0", "4-7"]]


def test_the_topology_has_a_matrix(capsys):
    out = show(capsys, "--gpus", "a100-80:4@pairs", "--topology")
    rows = [line.split() for line in out.split("\n\n")[2].splitlines()]
    assert rows == [
        ["gpu-0", "gpu-1", "gpu-2", "gpu-3"],
        ["gpu-0", "X", "NV12", "NODE", "NODE"],
        ["gpu-1", "NV12", "X", "NODE", "NODE"],
        ["gpu-2", "NODE", "NODE", "X", "NV12"],
        ["gpu-3", "NODE", "NODE", "NV12", "X"],
    ]


def test_all_facts_as_json(capsys):
    value = json.loads(show(capsys, "--gpus", "gb200:2,a30@mig=2g.12gb", "-o", "json"))
    assert (value["nodeName"], value["fake"], value["driverVersion"]) == ("n1", True, "580.105.08")
    first, second, third = value["gpus"]
    assert first["productName"] == "NVIDIA GB200"
    assert first["cudaComputeCapability"] == "10.0"
    assert first["memoryBytes"] == 189471 << 20
    assert first["fabric"] == {"clusterUUID": "5a1f3c0e-7b42-4d8e-9c65-2f0b1e6d7a90", "cliqueID": 32766}
    assert first["nvlink"]["domain"] == second["nvlink"]["domain"]
    assert first["nvlink"]["domainSize"] == 2
    assert third["fabric"] is None
    assert third["nvlink"]["domain"] == third["uuid"]
    assert [one["profile"] for one in third["mig"]["instances"]] == ["2g.12gb"]
    assert third["mig"]["profiles"][0]["name"] == "1g.6gb"
    assert "topology" not in value


@pytest.mark.parametrize("text", ["h100:2", "l4", "a30:3@pairs,h100@mig=1g.10gb*2"])
def test_yaml_says_the_same_as_json(capsys, text):
    as_json = json.loads(show(capsys, "--gpus", text, "-o", "json", "--topology"))
    assert yaml.safe_load(show(capsys, "--gpus", text, "-o", "yaml", "--topology")) == as_json


def test_the_topology_as_json(capsys):
    value = json.loads(show(capsys, "--gpus", "h100:2", "-o", "json", "--topology"))
    assert value["topology"] == {"gpu-0": {"gpu-0": "X", "gpu-1": "NV18"}, "gpu-1": {"gpu-0": "NV18", "gpu-1": "X"}}


def test_a_file_describes_the_node(capsys, tmp_path):
    file = tmp_path / "node.yaml"
    file.write_text("gpus: [{product: t4, count: 2}]\ndriver_version: '570.169'\n")
    assert show(capsys, "--gpus", str(file)).startswith("Driver 570.169, CUDA 13.0, 2 GPUs")


def test_own_profiles(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["inventory", *NODE, "--gpus", "l4", "--profiles-dir", "none"]) == USAGE
    assert "--profiles-dir: invalid value" in capsys.readouterr().err


def test_faults_are_seen_and_told(capsys, tmp_path):
    file = tmp_path / "faults.yaml"
    file.write_text("gpus: {gpu-1: {lost: true}, gpu-0: {not_supported: [memory, minor, numa_node]}}")
    assert main(["inventory", *NODE, "--gpus", "l4:3", "--faults-file", str(file)]) == OK
    out, err = capsys.readouterr()
    assert "2 GPUs" in out
    assert "gpu-1" not in out
    assert err.startswith("gpu-dra: gpu-1: the GPU is lost")


def test_a_node_that_cannot_be_read_at_all(capsys, tmp_path):
    file = tmp_path / "faults.yaml"
    file.write_text("nvml: down")
    assert main(["inventory", *NODE, "--gpus", "l4", "--faults-file", str(file)]) == FAILED
    out, err = capsys.readouterr()
    assert (out, err) == ("", "gpu-dra: NVML does not answer (the faults file says so)\n")


@pytest.mark.parametrize(
    ("environ", "flags", "source"),
    [({}, ["--gpus", "h10"], "--gpus"), ({"GPU_DRA_GPUS": "h10"}, [], "environment variable GPU_DRA_GPUS")],
)
def test_a_bad_specification_names_its_source(capsys, monkeypatch, environ, flags, source):
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    assert main(["inventory", *NODE, *flags]) == USAGE
    assert capsys.readouterr().err.startswith(f"gpu-dra: {source}: invalid value 'h10': no such product")
