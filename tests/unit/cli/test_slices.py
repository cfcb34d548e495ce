from __future__ import annotations

import json

import pytest
import yaml

from driver.cli import OK, main
from tests.unit.slices.helpers import new_store


def show(capsys, *arguments: str) -> str:
    assert main(["slices", "--node-name", "n1", *arguments]) == OK
    return str(capsys.readouterr().out)


def test_objects_as_yaml(capsys):
    items = list(yaml.safe_load_all(show(capsys, "--gpus", "h100:8,l4:130", "-o", "yaml")))
    assert {item["kind"] for item in items} == {"ResourceSlice"}
    assert {item["apiVersion"] for item in items} == {"resource.k8s.io/v1"}
    names = [device["name"] for item in items for device in item["spec"]["devices"]]
    assert names == [f"gpu-{index}" for index in range(138)]
    assert {item["spec"]["pool"]["resourceSliceCount"] for item in items} == {len(items)}
    assert len({item["metadata"]["generateName"] for item in items}) == len(items)


@pytest.mark.parametrize("further", [(), ("--dynamic-mig", "all"), ("--shares", "memory")])
@pytest.mark.parametrize("gpus", ["h100:8,l4:130", "a100-40@mig=1g.5gb*7,rtx-pro-6000:2,gb200:4"])
def test_an_api_server_takes_what_is_shown(capsys, gpus, further):
    store = new_store()
    items = json.loads(show(capsys, "--gpus", gpus, "-o", "json", *further))["items"]
    stored = [store.create("resourceslices", item) for item in items]
    assert [one["spec"] for one in stored] == [one["spec"] for one in items]  # not a field was dropped or changed
    assert len({one["metadata"]["name"] for one in stored}) == len(items)


def test_a_list_as_json(capsys):
    value = json.loads(show(capsys, "--gpus", "h100", "-o", "json"))
    assert value["kind"] == "List"
    (item,) = value["items"]
    assert item["spec"]["nodeName"] == "n1"
    assert item["spec"]["devices"][0]["attributes"]["productName"] == {"string": "NVIDIA H100 80GB HBM3"}


def test_a_summary(capsys):
    lines = show(capsys, "--gpus", "h100:2,h100@mig=1g.10gb").splitlines()
    assert lines[0].split() == ["SLICE", "POOL", "DEVICES", "TYPES", "FIRST", "LAST"]
    assert lines[1].split()[1:] == ["n1", "3", "gpu,", "mig", "gpu-0", "gpu-2-mig-1g10gb-19-0"]


def test_partitions_and_shares(capsys):
    lines = show(capsys, "--gpus", "h100:3", "--dynamic-mig", "0").splitlines()
    assert [line.split()[2:] for line in lines[1:]] == [
        ["1", "counters", "gpu-0-counter-set", "gpu-0-counter-set"],
        ["28", "gpu,", "mig", "gpu-0-mig-1g10gb-19-6", "gpu-2"],
    ]
    (item,) = json.loads(show(capsys, "--gpus", "h100", "--shares", "2", "-o", "json"))["items"]
    assert item["spec"]["devices"][0]["capacity"]["shares"]["value"] == "2"


def test_a_lost_gpu_is_told_and_left_out(capsys, tmp_path):
    file = tmp_path / "faults.yaml"
    file.write_text("gpus: {gpu-0: {lost: true}}")
    assert main(["slices", "--node-name", "n1", "--gpus", "l4:2", "--faults-file", str(file)]) == OK
    out, err = capsys.readouterr()
    assert "gpu-1" in out
    assert "gpu-0: the GPU is lost" in err


def test_a_choice_of_gpus_that_means_none_is_told(capsys):
    assert main(["slices", "--node-name", "n1", "--gpus", "h100:2", "--dynamic-mig", "1,*L4*"]) == OK
    assert capsys.readouterr().err == "gpu-dra: --dynamic-mig: '*L4*' means no GPU of this node\n"
