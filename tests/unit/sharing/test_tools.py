"""How tools are found and run for each kind of driver root."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from driver.errors import DeviceNotReadyError, GpuToolError
from driver.inventory.driver_root import DriverRoot
from driver.sharing.tools import Output, Tools

if TYPE_CHECKING:
    from tests.fakes.install import FakeDriver

GPU = "GPU-1"


def launch_options(argv: list[str]) -> dict[str, object]:
    assert argv[:3] == [sys.executable, "-I", "-S"]
    assert argv[3].endswith("/launch.py")
    return json.loads(argv[4])


def test_the_hosts_own_driver_runs_as_it_is(short_tmp: Path) -> None:
    tool = Tools(DriverRoot(Path("/")), {"nvidia-smi": Path("/bin/true")}).find("nvidia-smi")
    assert tool.argv("-L") == ["/bin/true", "-L"]
    assert "LD_LIBRARY_PATH" not in tool.env


async def test_files_without_a_root_file_system_get_their_libraries(driver: FakeDriver) -> None:
    libraries = driver.root / "usr/lib64"
    libraries.mkdir()
    (libraries / "libnvidia-ml.so.1").write_bytes(Path("/proc/self/exe").read_bytes())
    tools = driver.tools()
    tool = tools.find("nvidia-smi")
    await tools.run(tool, tool.argv("compute-policy", "-i", GPU, "--list"), limit=20, what="test")
    assert driver.calls()[-1]["library_path"] == str(libraries)


@pytest.mark.skipif(os.geteuid() != 0, reason="changing the root directory takes root's rights")
@pytest.mark.parametrize("shell", ["bin/sh", "usr/bin/sh"])
def test_a_whole_root_file_system_becomes_the_root_directory(driver: FakeDriver, shell: str) -> None:
    (driver.root / shell).parent.mkdir(exist_ok=True)
    (driver.root / shell).symlink_to("/bin/dash")  # absolute, as links in a driver container are
    argv = driver.tools().find("nvidia-smi").argv("-L")
    assert launch_options(argv) == {"root": str(driver.root)}
    assert argv[5:] == ["/usr/bin/nvidia-smi", "-L"]


@pytest.mark.skipif(os.geteuid() != 0, reason="changing the root directory takes root's rights")
async def test_what_can_not_start_there_says_why(driver: FakeDriver) -> None:
    (driver.root / "bin").mkdir()
    (driver.root / "bin/sh").touch()
    tools = driver.tools()
    tool = tools.find("nvidia-smi")
    output = await tools.run(tool, tool.argv("-L"), limit=20, what="test")
    assert output == Output(status=126, text="cannot start /usr/bin/nvidia-smi: [Errno 2] No such file or directory\n")


async def test_a_control_group_is_entered_before_the_tool_runs(short_tmp: Path) -> None:
    group = short_tmp / "group"
    tools = Tools(DriverRoot(Path("/")), {"sh": Path("/bin/sh")})
    tool = tools.find("sh")
    output = await tools.run(tool, tool.argv("-c", "echo $$", cgroup=str(group)), limit=20, what="test")
    assert (group / "cgroup.procs").read_text() == output.text.strip()


def test_a_tool_that_a_setting_names_must_be_there(short_tmp: Path) -> None:
    tools = Tools(DriverRoot(short_tmp), {"nvidia-smi": short_tmp / "nvidia-smi"})
    with pytest.raises(DeviceNotReadyError, match=f"no nvidia-smi at {short_tmp}/nvidia-smi"):
        tools.find("nvidia-smi")


async def test_while_a_killed_one_hangs_no_other_is_started(
    driver: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process in the kernel's uninterruptible sleep is not to be had, so killing is made to fail."""
    from driver.sharing import process
    from driver.sharing import tools as module

    monkeypatch.setattr(module, "_REAP", 0.05)
    monkeypatch.setattr(process.Process, "kill_group", lambda self: killed.append(self.pid))
    killed: list[int] = []
    (driver.bin / "nvidia-smi").write_text("#!/bin/sh\nexec sleep 600\n")
    tools = driver.tools()
    tool = tools.find("nvidia-smi")
    with pytest.raises(GpuToolError, match="did not end within"):
        await tools.run(tool, tool.argv(), limit=0.05, what="first")
    with pytest.raises(GpuToolError, match=f"second: not tried, as nvidia-smi with pid {killed[0]} hangs"):
        await tools.run(tool, tool.argv(), limit=20, what="second")
    os.kill(killed[0], 9)
    stuck = next(iter(tools._stuck.values()))
    assert await stuck.wait(20)
    (driver.bin / "nvidia-smi").write_text("#!/bin/sh\necho fine\n")
    assert (await tools.run(tool, tool.argv(), limit=20, what="third")).text == "fine\n"


@pytest.mark.parametrize(("text", "last"), [("", "no output"), ("a\n\n b \n\n", "b"), ("x" * 1000, "x" * 300)])
def test_the_last_words_of_an_output(text: str, last: str) -> None:
    assert Output(status=1, text=text).last_line == last


async def test_input_output_and_status(driver: FakeDriver) -> None:
    tools = Tools(DriverRoot(Path("/")), {"sh": Path("/bin/sh")})
    tool = tools.find("sh")
    argv = tool.argv("-c", "cat; echo err >&2; echo $EXTRA; exit 7")
    output = await tools.run(tool, argv, limit=20, what="test", stdin="in\n", env={"EXTRA": "more"})
    assert output == Output(status=7, text="in\nerr\nmore\n")
    killed = await tools.run(tool, tool.argv("-c", "kill -9 $$"), limit=20, what="test")
    assert killed.status == -9
