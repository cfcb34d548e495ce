from __future__ import annotations

import os
import subprocess
import sys

import pytest

import driver
from driver.cli import COMMANDS, FAILED, OK, USAGE, main

HEAVY = "grpc aiohttp yaml pynvml prometheus_client google.protobuf asyncinotify ssl asyncio"


def exits(arguments: list[str]) -> int:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert isinstance(caught.value.code, int)
    return caught.value.code


def test_version(capsys):
    assert exits(["--version"]) == OK
    assert capsys.readouterr().out == f"gpu-dra {driver.__version__}\n"


def test_help_has_examples_and_the_exit_status(capsys):
    assert exits(["--help"]) == OK
    out = capsys.readouterr().out
    assert "gpu-dra demo" in out
    assert "exit status" in out
    assert all(name in out for name in COMMANDS)


@pytest.mark.parametrize("name", [name for name in COMMANDS if name != "demo"])
def test_each_command_has_help_with_examples(capsys, name):
    assert exits([name, "--help"]) == OK
    assert f"gpu-dra {name}" in capsys.readouterr().out.split("examples:")[1]


def test_no_command(capsys):
    assert exits([]) == USAGE
    assert "commands:" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["frobnicate"], "invalid choice: 'frobnicate'"),
        (["inventory", "--gpsu", "h100"], "did you mean '--gpus'?"),
        (["inventory", "--gpsu=h100"], "did you mean '--gpus'?"),
        (["inventory", "--gp", "h100"], "did you mean '--gpus'?"),  # no abbreviations: a later flag could change them
        (["inventory", "h100:8"], "unrecognized arguments: h100:8"),
        (["inventory", "-o", "xml"], "invalid choice: 'xml'"),
        (["completion", "csh"], "invalid choice: 'csh'"),
        (["completion"], "required: shell"),
    ],
)
def test_a_mistake_on_the_command_line(capsys, arguments, message):
    assert exits(arguments) == USAGE
    assert message in capsys.readouterr().err


def test_a_bad_setting_is_one_line_on_standard_error(capsys):
    assert main(["inventory", "--gpus", "h100", "--node-name", "Bad_Name"]) == USAGE
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("gpu-dra: --node-name: invalid value 'Bad_Name'")
    assert err.count("\n") == 1


def test_run_refuses_bad_settings_before_anything_starts(capsys):
    assert main(["run", "--kubelet-root", "kubelet"]) == USAGE
    assert "--kubelet-root" in capsys.readouterr().err


def test_what_cannot_be_read_fails(capsys, tmp_path):
    assert main(["inventory", "--driver-root", str(tmp_path), "--node-name", "n1"]) == FAILED
    assert "libnvidia-ml.so.1" in capsys.readouterr().err


def python(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60).stdout


def test_the_version_is_told_without_loading_anything_heavy():
    code = f"""
import sys
from driver.cli import main
try:
    main(["--version"])
except SystemExit:
    pass
print([name for name in {HEAVY.split()} if name in sys.modules])
"""
    assert python(code).splitlines() == [f"gpu-dra {driver.__version__}", "[]"]


def test_fake_gpus_are_shown_without_loading_servers():
    code = """
import sys
from driver.cli import main
main(["inventory", "--gpus", "h100", "--node-name", "n1", "-o", "json"])
print([name for name in ("grpc", "aiohttp", "pynvml", "prometheus_client", "google.protobuf") if name in sys.modules])
"""
    assert python(code).splitlines()[-1] == "[]"


def test_python_m_driver():
    result = subprocess.run(
        [sys.executable, "-m", "driver", "slices", "--gpus", "l4", "--node-name", "n1"],
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "gpu-0" in result.stdout


def test_a_reader_that_has_enough_is_no_failure():
    reading, writing = os.pipe()
    os.close(reading)
    result = subprocess.run(
        [sys.executable, "-m", "driver", "inventory", "--gpus", "h100:64", "--node-name", "n1", "-o", "json"],
        stdout=writing,
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
        check=False,
    )
    os.close(writing)
    assert (result.returncode, result.stderr) == (OK, "")
