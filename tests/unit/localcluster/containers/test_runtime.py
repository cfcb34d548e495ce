"""Containers as processes: what reaches them, how starts fail, how they end."""

from __future__ import annotations

import asyncio
import json
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from driver.localcluster.containers.errors import ContainerError
from driver.localcluster.containers.runtime import ContainerRuntime

from .recorded import CASES, expected_errors, lay_out

if TYPE_CHECKING:
    from .conftest import Bench

LOOK = "env; id -G; cat /proc/mounts; ls -ln /dev/gpu /dev/nvidia99 2>/dev/null || :"


def bind(source: Path | str, target: str, *options: str) -> dict[str, Any]:
    return {"source": str(source), "destination": target, "options": ["rbind", *options]}


def script(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
async def test_recorded_case(case: dict[str, Any], bench: Bench) -> None:
    """Every recorded case of containerd and runc: started or not, and what the container saw."""
    lay_out(case, bench.root)
    request = bench.request("sh", "-c", LOOK, cdi_devices=tuple(case["devices"]))
    if not case["started"]:
        with pytest.raises(ContainerError) as caught:
            await bench.runtime.start(request)
        check_refusal(caught.value, expected_errors(case, bench.root)[-1])
        assert bench.runtime.containers == {}
        return
    await (await bench.runtime.start(request)).wait()
    seen = bench.log.read_text(encoding="utf-8")
    for line in case["seen_in_container"]:
        check_seen(line, seen, bench)


def check_refusal(error: ContainerError, recorded: str) -> None:
    if "shim task" in recorded:
        assert str(error).startswith(recorded)
        assert error.reason == "RunContainerError"
    else:
        assert recorded in str(error) or "unresolvable CDI devices" in str(error)
        assert error.reason == "CreateContainerError"


def check_seen(line: str, seen: str, bench: Bench) -> None:
    if line.startswith("uid="):
        groups = line.partition("groups=")[2].split(",")
        if bench.mode == "root" or (bench.mode == "plain" and os.geteuid() == 0):
            assert f"\n{' '.join(groups)}\n" in seen
    elif " on /" in line:
        if bench.mode != "plain":
            target, options = re.fullmatch(r"\S+ on (\S+) type \S+ \((.*?),relatime.*", line).groups()  # type: ignore[union-attr]
            assert re.search(rf"^\S+ {target} \S+ {options}[, ]", seen, re.MULTILINE)
    elif line.startswith("crw"):
        if bench.mode == "root":
            number, name = re.search(r"(\d+, +\d+) .* (/dev/\S+)$", line).groups()  # type: ignore[union-attr]
            major, minor = number.replace(" ", "").split(",")
            assert re.search(rf"^crw-rw-rw- .* {major}, +{minor} .* {name}$", seen, re.MULTILINE)
    else:
        assert f"{line}\n" in seen


async def test_the_environment_is_the_containers_alone(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_OF_THE_HOST", "1")
    lines = (await bench.sh("env", env={"A": "1 2", "PATH": "/usr/bin:/bin"})).splitlines()
    assert {"A=1 2", "HOSTNAME=pod-1"} <= set(lines)
    assert not any("SECRET" in line for line in lines)


async def test_a_mounted_program_is_found_by_its_name(bench: Bench, tmp_path: Path) -> None:
    tool = script(bench.root / "smi", 'echo "smi $*"')
    assert await bench.sh("nvidia-smi -L", mounts=(bind(tool, "/usr/bin/nvidia-smi", "ro"),)) == "smi -L\n"
    assert not Path("/usr/bin/nvidia-smi").exists() or Path("/usr/bin/nvidia-smi").read_bytes() != tool.read_bytes()


async def test_what_a_container_writes_stays_in_it(isolated: Bench) -> None:
    name = f"written-{os.getpid()}"
    assert await isolated.sh(f"echo x > /tmp/{name}; cat /tmp/{name}") == "x\n"
    assert not Path("/tmp", name).exists()


async def test_volumes_are_shared_and_read_only_ones_are_not_written(isolated: Bench) -> None:
    volume = isolated.root / "volume"
    volume.mkdir()
    await isolated.sh("echo one > /data/deep/f", mounts=(bind(isolated.root, "/data"), bind(volume, "/data/deep")))
    assert (volume / "f").read_text(encoding="utf-8") == "one\n"
    end, output = await isolated.run("sh", "-c", "cat /d/f; echo two > /d/f", mounts=(bind(volume, "/d", "ro"),))
    assert output.startswith("one\n")
    assert "Read-only file system" in output
    assert end.code != 0


@pytest.mark.skipif(os.access("/root", os.X_OK), reason="root's own directory may be entered")
async def test_a_volume_below_a_directory_that_is_another_users(isolated: Bench) -> None:
    volume = isolated.root / "volume"
    volume.mkdir()
    await isolated.sh("echo x > /root/.cache/hub/f", mounts=(bind(volume, "/root/.cache/hub"),))
    assert (volume / "f").read_text(encoding="utf-8") == "x\n"


async def test_shared_memory_can_be_a_volume(isolated: Bench) -> None:
    volume = isolated.root / "shm"
    volume.mkdir()
    await isolated.sh("echo x > /dev/shm/f", mounts=(bind(volume, "/dev/shm"),))
    assert (volume / "f").exists()


async def test_the_host_name_is_the_pods(isolated: Bench) -> None:
    assert await isolated.sh("cat /proc/sys/kernel/hostname") == "pod-1\n"


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("no-such-program",), 'exec: "no-such-program": executable file not found in $PATH'),
        (("/no/such",), 'exec: "/no/such": stat /no/such: no such file or directory'),
        (("/etc/passwd",), 'exec: "/etc/passwd": permission denied'),
    ],
)
async def test_a_program_that_cannot_be_run(bench: Bench, args: tuple[str, ...], message: str) -> None:
    with pytest.raises(ContainerError, match=re.escape(message)) as caught:
        await bench.runtime.start(bench.request(*args))
    assert caught.value.reason == "RunContainerError"


@pytest.mark.parametrize(
    ("signal", "expected"), [("TERM", 143), ("KILL", 137)], ids=["by a signal", "by the strongest"]
)
async def test_the_exit_code_tells_the_signal(bench: Bench, signal: str, expected: int) -> None:
    end, _ = await bench.run("sh", "-c", f"kill -{signal} $$")
    assert (end.code, end.signal) == (expected, expected - 128)


async def test_the_exit_code_is_the_programs(bench: Bench) -> None:
    assert (await bench.run("sh", "-c", "exit 7"))[0].code == 7


async def test_stop_asks_first(bench: Bench) -> None:
    container = await bench.runtime.start(
        bench.request("sh", "-c", "trap 'echo bye; exit 3' TERM; echo up; while :; do sleep 0.01; done")
    )
    while "up" not in bench.log.read_text(encoding="utf-8"):
        await asyncio.sleep(0.005)
    assert (await container.stop(30)).code == 3
    assert "bye" in bench.log.read_text(encoding="utf-8")


def is_alive(pid: str) -> bool:
    try:
        return Path("/proc", pid, "stat").read_text(encoding="utf-8").split()[2] != "Z"
    except OSError:
        return False


async def test_stop_does_not_ask_for_ever_and_leaves_nothing(bench: Bench) -> None:
    container = await bench.runtime.start(
        bench.request("sh", "-c", "trap '' TERM; sleep 1000 & echo $!; while :; do sleep 0.01; done")
    )
    while not (text := bench.log.read_text(encoding="utf-8")):
        await asyncio.sleep(0.005)
    assert (await container.stop(0.05)).code == 137
    async with asyncio.timeout(10):
        while is_alive(text.strip()):
            await asyncio.sleep(0.005)


async def test_commands_run_beside(bench: Bench) -> None:
    volume = bench.root / "v"
    volume.mkdir()
    mounts = () if bench.mode == "plain" else (bind(volume, "/probe"),)
    container = await bench.runtime.start(bench.request("sleep", "100", env={"A": "1"}, mounts=mounts))
    assert await bench.runtime.exec(container, ["sh", "-c", 'test "$A" = 1'], 10) == 0
    assert await bench.runtime.exec(container, ["sh", "-c", "exit 4"], 10) == 4
    assert await bench.runtime.exec(container, ["no-such-program"], 10) == 126
    assert await bench.runtime.exec(container, ["sleep", "10"], 0.05) == -1
    if mounts:
        assert await bench.runtime.exec(container, ["touch", "/probe/f"], 10) == 0
        assert (volume / "f").exists()


async def test_a_command_beside_finds_what_is_mounted(bench: Bench) -> None:
    tool = script(bench.root / "smi", 'echo "smi $A $*"; cat; exit 5')
    mounts = (bind(tool, "/usr/bin/nvidia-smi", "ro"),)
    container = await bench.runtime.start(bench.request("sleep", "100", env={"A": "1"}, mounts=mounts))
    command = await bench.runtime.attach(container, ["nvidia-smi", "-L"], stdin=True, tty=False)
    await command.write(b"in\n")
    command.end_input()
    seen = b""
    while data := await command.read(1):
        seen += data
    assert (seen, await command.wait()) == (b"smi 1 -L\nin\n", 5)
    await command.aclose()


async def test_hooks_get_the_bundle_and_the_state(bench: Bench) -> None:
    hook = script(bench.root / "hook", f'cat > {bench.root}/state; echo "$0 $* $X" > {bench.root}/args')
    edits = {"hooks": [{"hookName": "createContainer", "path": str(hook), "args": ["h", "a"], "env": ["X=1"]}]}
    spec = {
        "cdiVersion": "0.6.0",
        "kind": "ex.com/gpu",
        "devices": [{"name": "g0", "containerEdits": edits}],
    }
    bench.cdi_dirs[0].mkdir(parents=True)
    (bench.cdi_dirs[0] / "a.json").write_text(json.dumps(spec), encoding="utf-8")
    container = await bench.runtime.start(bench.request("true", cdi_devices=("ex.com/gpu=g0",)))
    await container.wait()
    if bench.mode != "plain":
        assert not (bench.root / "elsewhere").exists()
    state = json.loads((bench.root / "state").read_text(encoding="utf-8"))
    assert state["status"] == "creating"
    assert state["id"] == container.id
    assert json.loads(Path(state["bundle"], "config.json").read_text(encoding="utf-8"))["process"]["args"] == ["true"]
    assert (bench.root / "args").read_text(encoding="utf-8") == f"{hook} a 1\n"


async def test_a_bundle_is_removed_with_its_container(bench: Bench) -> None:
    container = await bench.runtime.start(bench.request("true"))
    await container.wait()
    assert container.bundle.exists()
    bench.runtime.remove(container)
    assert not container.bundle.exists()


async def test_the_mode_is_found_out(short_tmp: Path) -> None:
    runtime = ContainerRuntime(short_tmp / "c", cdi_dirs=())
    mode = await runtime.mode()
    assert mode in ("root", "user", "plain")
    assert mode == "plain" or await runtime.works(mode)
    assert list((short_tmp / "c").glob("*")) == []


@pytest.mark.parametrize(
    "edits",
    [
        {"env": ["A=\0"]},
        {"deviceNodes": [{"path": "/dev/x", "type": "c", "major": 1 << 70, "minor": 1}]},
        {"mounts": [{"hostPath": "/\0", "containerPath": "/x", "options": ["bind"]}]},
        {"mounts": [{"hostPath": "x", "containerPath": "/x", "type": "nofs"}]},
    ],
    ids=["environment", "device number", "path", "file system"],
)
async def test_edits_that_no_kernel_takes_are_refused(isolated: Bench, edits: dict[str, Any]) -> None:
    spec = {"cdiVersion": "0.6.0", "kind": "ex.com/gpu", "devices": [{"name": "g0", "containerEdits": edits}]}
    isolated.cdi_dirs[0].mkdir(parents=True)
    (isolated.cdi_dirs[0] / "a.json").write_text(json.dumps(spec), encoding="utf-8")
    with pytest.raises(ContainerError) as caught:
        await isolated.runtime.start(isolated.request("true", cdi_devices=("ex.com/gpu=g0",)))
    assert caught.value.reason == "RunContainerError"
