from __future__ import annotations

import shutil
import subprocess

import pytest

from driver.cli import COMMANDS, OK, main
from driver.settings import Settings
from driver.settings.options import options


def script(capsys, shell: str) -> str:
    assert main(["completion", shell]) == OK
    return str(capsys.readouterr().out)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_command_and_setting_is_completed(capsys, shell):
    text = script(capsys, shell)
    assert all(name in text for name in COMMANDS)
    assert all(one.flag.removeprefix("--") in text for one in options(Settings))


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_shell_can_read_it(capsys, tmp_path, shell):
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"{shell} is not installed")
    file = tmp_path / "script"
    file.write_text(script(capsys, shell))
    subprocess.run([program, "-n", str(file)], check=True, timeout=60)


def complete(capsys, tmp_path, *words: str) -> list[str]:
    """Ask a real bash what it would offer for the last of `words`."""
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("bash is not installed")
    file = tmp_path / "script"
    file.write_text(script(capsys, "bash"))
    asking = f'source "{file}"; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _gpu_dra; printf "%s\\n" "${{COMPREPLY[@]}}"'
    result = subprocess.run(
        [bash, "-c", asking, "bash", "gpu-dra", *words],
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
        cwd=tmp_path,
    )
    return sorted(result.stdout.split())


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["inv"], ["inventory"]),
        (["r"], ["run"]),
        (["--v"], ["--version"]),
        (["run", "--kubel"], ["--kubelet-root"]),
        (["run", "--log-format", ""], ["json", "text"]),
        (["run", "--log-level", "d"], ["debug"]),
        (["inventory", "--top"], ["--topology"]),
        (["inventory", "-o", "y"], ["yaml"]),
        (["inventory", "--gpus", ""], []),
        (["run", "--config", "scr"], ["script"]),  # a file that is there
        (["completion", "b"], ["bash"]),
        (["nonsense", ""], []),
    ],
)
def test_what_bash_offers(capsys, tmp_path, words, offered):
    assert complete(capsys, tmp_path, *words) == offered
