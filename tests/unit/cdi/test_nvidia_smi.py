"""The fake nvidia-smi, run by the shells that containers have."""

from __future__ import annotations

import os
import shutil
import subprocess
from importlib import resources
from pathlib import Path

import pytest

from driver.cdi.fake import FakeEdits
from driver.model.snapshot import DriverVersions
from tests.unit.cdi.gpus import full, mig

SCRIPT = str(resources.files("driver.cdi").joinpath("nvidia-smi.sh"))
SHELLS = ["sh", "bash", "busybox"]
H100 = "NVIDIA H100 80GB HBM3"


@pytest.fixture(params=SHELLS)
def smi(request, tmp_path):
    """Run the script in a container's environment that has only the given devices."""
    shell = shutil.which(request.param)
    if shell is None:
        pytest.skip(f"no {request.param} on this machine")
    path = os.environ["PATH"]
    command = [shell, SCRIPT]
    if request.param == "busybox":
        path = str(tmp_path / "bin")
        Path(path).mkdir()
        for applet in ("sh", "env", "sort", "tr", "date"):
            Path(path, applet).symlink_to(shell)
        command = [f"{path}/sh", SCRIPT]
    source = FakeEdits(tmp_path, versions=lambda: DriverVersions(driver="580.105.08", cuda="13.0"))

    def run(devices, *arguments, **environment):
        env = {"PATH": path, **source.common().env, **environment}
        for device in devices:
            env |= source.device(device).env
        return subprocess.run([*command, *arguments], env=env, capture_output=True, text=True, check=False)

    return run


def uuid(number: int) -> str:
    return f"GPU-0000000{number}-0000-4000-8000-000000000000"


def test_list(smi):
    done = smi([full(2), full(0)], "-L")
    assert done.stdout == f"GPU 0: {H100} (UUID: {uuid(0)})\nGPU 1: {H100} (UUID: {uuid(2)})\n"
    assert (done.returncode, done.stderr) == (0, "")


def test_list_sorts_by_number(smi):
    done = smi([full(number) for number in (1, 9, 3)], "--list-gpus")
    assert [line.split("UUID: ")[1].rstrip(")") for line in done.stdout.splitlines()] == [uuid(1), uuid(3), uuid(9)]


def test_mig_devices_are_listed_under_their_gpu(smi):
    done = smi([full(0), mig(1, 4), mig(1, 0), mig(3, 2)], "-L")
    assert done.stdout.splitlines() == [
        f"GPU 0: {H100} (UUID: {uuid(0)})",
        f"GPU 1: {H100} (UUID: {uuid(1)})",
        "  MIG 1g.10gb     Device  0: (UUID: MIG-10000000-0000-4000-8000-000000000000)",
        "  MIG 1g.10gb     Device  1: (UUID: MIG-14000000-0000-4000-8000-000000000000)",
        f"GPU 2: {H100} (UUID: {uuid(3)})",
        "  MIG 1g.10gb     Device  0: (UUID: MIG-32000000-0000-4000-8000-000000000000)",
    ]


@pytest.mark.parametrize("arguments", [[], ["-L"], ["-q"], ["--query-gpu=name", "--format=csv"], ["-i", "3"]])
def test_no_devices(smi, arguments):
    done = smi([], *arguments)
    assert (done.stdout, done.returncode) == ("No devices were found\n", 6)


def test_query_fields(smi):
    done = smi([full(0), full(1)], "--query-gpu=index, name,memory.total,uuid,serial", "--format=csv")
    assert done.stdout.splitlines() == [
        "index, name, memory.total [MiB], uuid, serial",
        f"0, {H100}, 81559 MiB, {uuid(0)}, [N/A]",
        f"1, {H100}, 81559 MiB, {uuid(1)}, [N/A]",
    ]


def test_query_fields_bare(smi):
    fields = "count,driver_version,pci.bus_id,compute_cap,memory.used,mig.mode.current"
    done = smi([full(0), full(1)], f"--query-gpu={fields}", "--format=csv,noheader,nounits", "-i", "1")
    assert done.stdout == "1, 580.105.08, 00000000:61:00.0, 9.0, 0, Disabled\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--query-gpu=index,colour", "--format=csv"], 'Field "colour" is not a valid field to query.'),
        (["--query-gpu=index"], '"--format=" switch is missing'),
        (["--query-gpu=index", "--format=xml"], 'Format "xml" is not recognized'),
        (["--colour"], '"--colour" is not recognized'),
        (["-i"], '"-i" needs a value'),
    ],
)
def test_wrong_arguments(smi, arguments, message):
    done = smi([full(0)], *arguments)
    assert message in done.stdout
    assert done.returncode == 2


@pytest.mark.parametrize("chosen", ["1", uuid(1), "0000:61:00.0", "00000000:61:00.0", f"7,{uuid(1)}"])
def test_choose_a_gpu(smi, chosen):
    assert smi([full(0), full(1)], "-L", f"--id={chosen}").stdout == f"GPU 1: {H100} (UUID: {uuid(1)})\n"


def test_query_log(smi):
    done = smi([full(0), mig(1, 2, gi=9)], "-q")
    assert done.returncode == 0
    facts = dict(line.strip().split(" : ", 1) for line in _aligned(done.stdout))
    assert facts["Attached GPUs"] == "2"
    assert facts["Driver Version"] == "580.105.08"
    assert facts["CUDA Version"] == "13.0"
    assert facts["Product Name"] == H100
    assert facts["GPU Instance ID"] == "9"
    assert "GPU 00000000:61:00.0" in done.stdout.splitlines()


def _aligned(text: str) -> list[str]:
    lines = [line for line in text.splitlines() if ": " in line]
    return [f"{head.rstrip()} : {tail}" for head, _, tail in (line.partition(": ") for line in lines)]


def test_table(smi):
    done = smi([full(0), mig(1, 2)])
    lines = done.stdout.splitlines()[1:]
    assert {len(line) for line in lines if line} == {91}
    assert "| NVIDIA-SMI 580.105.08             Driver Version: 580.105.08     CUDA Version: 13.0     |" in lines
    assert sum(H100 in line for line in lines) == 2
    assert any(line.startswith("|  1    7   0   0  | 1g.10gb") for line in lines)


def test_version_and_help(smi):
    assert "580.105.08 (fake" in smi([], "--version").stdout
    assert "--list-gpus" in smi([], "--help").stdout


def test_variables_set_by_hand_suffice(smi):
    done = smi([], "-L", GPU_DRA_DEVICE_0="uuid=GPU-1;name=Mine")
    assert done.stdout == "GPU 0: Mine (UUID: GPU-1)\n"


def test_other_variables_do_no_harm(smi):
    done = smi([full(0)], "-L", OTHER="two\nlines; * $(exit 3) `exit 4`", GPU_DRA_DEVICES="x", IFS="0")
    assert done.stdout == f"GPU 0: {H100} (UUID: {uuid(0)})\n"


def test_shellcheck():
    program = shutil.which("shellcheck")
    if program is None:
        pytest.skip("no shellcheck on this machine")
    done = subprocess.run([program, SCRIPT], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
