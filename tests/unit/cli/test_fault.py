from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from driver.cli import FAILED, OK, USAGE, main
from driver.inventory.fake_gpus import build_gpus
from driver.inventory.fake_spec import parse_node
from driver.inventory.fault_file import read_faults, read_names, write_names
from driver.inventory.faults import NO_FAULTS, Faults, GpuFaults, MigFaults, MigXid, encode_faults, save_faults
from driver.inventory.health_faults import HealthFaults
from driver.inventory.profiles import load_products

if TYPE_CHECKING:
    from pathlib import Path

GPUS = build_gpus(parse_node("h100:4", load_products()), "n")
U = [gpu.uuid for gpu in GPUS]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A faults file's path, as an agent with four GPUs has left its surroundings."""
    path = tmp_path / "state" / "faults.yaml"
    path.parent.mkdir()
    write_names(path, GPUS)
    return path


def fault(file: Path, *words: str) -> int:
    return main(["fault", *words, "--faults-file", str(file)])


def now(file: Path) -> Faults:
    return read_faults(file, GPUS)


@pytest.mark.parametrize(
    ("words", "faults"),
    [
        (["lost"], GpuFaults(lost=True)),
        (["xid=79"], GpuFaults(xids=(79,))),
        (["xid=79,31", "xid=79"], GpuFaults(xids=(79, 31, 79))),
        (["slow=2s"], GpuFaults(slow=2.0)),
        (["slow"], GpuFaults(slow=2.0)),
        (["xid=31@mig-1g10gb-19-0,79"], GpuFaults(xids=(79,), mig_xids=(MigXid(31, "mig-1g10gb-19-0"),))),
        (["slow=500ms", "fails=pci"], GpuFaults(slow=0.5, fails="pci")),
        (["not-supported=memory,events", "fails=ecc"], GpuFaults(not_supported=("memory", "events"), fails="ecc")),
        (["recovery=drain-p2p"], GpuFaults(health=HealthFaults(recovery="drain-p2p"))),
        (["row-remap=pending", "ecc=2"], GpuFaults(health=HealthFaults(row_remap="pending", ecc=2))),
        (["temperature=-4"], GpuFaults(health=HealthFaults(temperature=-4))),
        (["temperature=0"], GpuFaults(health=HealthFaults(temperature=0))),
        (["nvlink-down=2", "nvlink-errors=1"], GpuFaults(health=HealthFaults(nvlink_down=2, nvlink_errors=1))),
        (["fabric=not-ready"], GpuFaults(health=HealthFaults(fabric="not-ready"))),
        (
            ["mig-create-gi=fail-once", "mig-slow=1s", "mig-mode=in-use"],
            GpuFaults(mig=MigFaults(create_gi="fail-once", slow=1.0, mode="in-use")),
        ),
    ],
)
def test_every_fault_can_be_injected_shown_and_injected_again_as_shown(capsys, tmp_path, file, words, faults):
    assert fault(file, "inject", "gpu-2", *words) == OK
    assert now(file).gpus == {U[2]: faults}
    capsys.readouterr()
    assert fault(file, "list", "-o", "json") == OK
    (shown,) = json.loads(capsys.readouterr().out)["gpus"]
    assert (shown["name"], shown["uuid"]) == ("gpu-2", U[2])
    assert fault(file, "recover", "gpu-2") == OK
    assert fault(file, "inject", "2", *shown["faults"]) == OK
    assert now(file).gpus == {U[2]: faults}


def test_faults_add_up_and_recover_by_gpu_or_all(file):
    for words in (["gpu-0", "lost"], [U[1], "ecc=1"], ["1", "ecc=3", "xid=48"], ["nvml-slow=2s"]):
        assert fault(file, "inject", *words) == OK
    broken = GpuFaults(xids=(48,), health=HealthFaults(ecc=3))
    assert now(file) == Faults(nvml_slow=2.0, gpus={U[0]: GpuFaults(lost=True), U[1]: broken})
    assert fault(file, "recover", "gpu-0", "gpu-3") == OK
    assert now(file) == Faults(nvml_slow=2.0, gpus={U[1]: broken})
    assert fault(file, "inject", "nvml-down") == OK
    assert now(file) == Faults(nvml_down=True, gpus={U[1]: broken})
    assert fault(file, "recover") == OK
    assert now(file) == NO_FAULTS


def test_a_table_for_people(capsys, file):
    fault(file, "inject", "nvml-down")
    capsys.readouterr()
    fault(file, "inject", "gpu-3", "xid=79", "slow=2s")
    lines = capsys.readouterr().out.splitlines()
    assert [line.split() for line in lines] == [
        ["GPU", "FAULTS", "UUID"],
        ["(node)", "nvml-down", "-"],
        ["gpu-3", "xid=79", "slow=2s", U[3]],
    ]
    fault(file, "recover")
    assert capsys.readouterr().out == f"nothing is wrong ({file})\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["inject"], "fault inject: .*which?"),
        (["inject", "gpu-1"], "which fault?"),
        (["inject", "gpu-9", "lost"], "'gpu-9': there is no such GPU; did you mean"),
        (["inject", "gpu-1", "loost"], "'loost': no such fault; did you mean 'lost'?"),
        (["inject", "gpu-1", "nvml-down"], "concerns the node: name no GPU"),
        (["inject", "nvml-down", "gpu-1"], "must be nvml-down or nvml-slow=DURATION"),
        (["inject", "nvml-slow"], "nvml-slow: invalid value '': must be a duration"),
        (["inject", "gpu-1", "xid"], "needs a value: xid="),
        (["inject", "gpu-1", "xid=-1"], "gpu-1.xid: invalid value -1"),
        (["inject", "gpu-1", "xid=1e9"], "gpu-1.xid"),
        (["inject", "gpu-1", "xid=31@"], "gpu-1.xid: .*NUMBER@DEVICE"),
        (["inject", "gpu-1", "xid=x@mig-1g10gb-19-0"], "gpu-1.xid: .*NUMBER@DEVICE"),
        (["inject", "gpu-1", "recover"], "gpu-dra fault recover"),
        (["inject", "gpu-1", "xid=" + "9" * 30], "gpu-1.xid"),
        (["inject", "gpu-1", "lost=maybe"], "gpu-1.lost: invalid value 'maybe'"),
        (["inject", "gpu-1", "slow=2d"], "must be a duration"),
        (["inject", "gpu-1", "ecc=many"], "gpu-1.ecc"),
        (["inject", "gpu-1", "fabric=bad"], "gpu-1.fabric: .*not-ready, degraded, failed"),
        (["inject", "gpu-1", "fails=everything"], "gpu-1.fails: .*no such query"),
        (["inject", "gpu-1", "mig-create-gi=maybe"], "gpu-1.mig.create_gi"),
        (["recover", "gpu-9"], "no such GPU"),
        (["list", "gpu-1"], "takes no GPU"),
    ],
)
def test_bad_words_say_what_is_right_and_change_nothing(capsys, file, words, said):
    save_faults(file, Faults(gpus={U[0]: GpuFaults(lost=True)}))
    before = file.read_bytes()
    assert fault(file, *words) == USAGE
    error = capsys.readouterr().err
    assert error.startswith("gpu-dra: ")
    for part in said.split(".*"):
        assert part in error
    assert file.read_bytes() == before


def test_a_faults_file_that_a_person_has_spoiled_stays(capsys, file):
    file.write_text("gpus: {gpu-1: {lots: true}}")
    assert fault(file, "inject", "gpu-2", "lost") == USAGE
    assert "gpus.gpu-1.lots" in capsys.readouterr().err
    assert file.read_text() == "gpus: {gpu-1: {lots: true}}"


def test_where_no_agent_has_run_it_asks_for_the_gpus(capsys, tmp_path):
    file = tmp_path / "new" / "faults.yaml"
    assert fault(file, "inject", "gpu-1", "lost") == USAGE
    assert "no agent with fake GPUs uses it" in capsys.readouterr().err
    assert (
        main(["fault", "inject", "gpu-1", "lost", "--faults-file", str(file), "--gpus", "h100:4", "--node-name", "n"])
        == OK
    )
    assert now(file).gpus == {U[1]: GpuFaults(lost=True)}


def test_the_agents_settings_say_where_the_file_is(short_tmp, monkeypatch):
    monkeypatch.setenv("GPU_DRA_KUBELET_ROOT", str(short_tmp))
    file = short_tmp / "plugins/gpu.nvidia.com/faults.yaml"
    file.parent.mkdir(parents=True)
    write_names(file, GPUS)
    assert main(["fault", "inject", "gpu-1", "lost"]) == OK
    assert now(file).gpus == {U[1]: GpuFaults(lost=True)}


def test_a_file_that_can_not_be_written_is_a_failure(capsys, tmp_path):
    file = tmp_path / "faults.yaml" / "x"
    (tmp_path / "faults.yaml").write_text("")
    status = main(["fault", "recover", "--faults-file", str(file), "--gpus", "h100", "--node-name", "n"])
    assert status == FAILED
    assert f"cannot open {file.with_name('.x.lock')}" in capsys.readouterr().err


@pytest.mark.parametrize("content", ["[]", "{}", '{"gpus": [{"uuid": "x"}]}', "{"])
def test_names_that_somebody_has_spoiled_are_refused(capsys, file, content):
    file.with_name("fake-gpus.json").write_text(content)
    assert fault(file, "list") == USAGE
    assert "fake-gpus.json" in capsys.readouterr().err


def test_names_come_back_as_they_were(file):
    assert [(gpu.name, gpu.index, gpu.uuid, gpu.product) for gpu in read_names(file)] == [
        (gpu.name, gpu.index, gpu.uuid, gpu.product) for gpu in GPUS
    ]


def test_many_at_once_lose_nothing(file):
    """The file is read, changed and written under a lock."""
    environment = {**os.environ, "PYTHONPATH": ":".join(sys.path)}
    command = "from driver.cli import main; import sys; [main(sys.argv[1:]) for _ in range(5)]"
    words = ["fault", "inject", "--faults-file", str(file)]
    running = [
        subprocess.Popen(
            [sys.executable, "-c", command, *words, f"gpu-{number}", "xid=13"],
            stdout=subprocess.DEVNULL,
            env=environment,
        )
        for number in range(4)
    ]
    assert [one.wait(60) for one in running] == [0] * 4
    assert now(file).gpus == {uuid: GpuFaults(xids=(13,) * 5) for uuid in U}


def test_an_agents_file_and_words_are_the_same_language(file):
    everything = Faults(gpus={U[0]: GpuFaults(xids=(1,), slow=1.5, health=HealthFaults(ecc=1, temperature=95))})
    file.write_text(encode_faults(everything))
    assert now(file) == everything
