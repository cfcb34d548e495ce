"""MPS control daemons as processes: started, dying, stopped; with a fake control program."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from driver.errors import DeviceNotReadyError, GpuToolError, InvalidValueError, SettingNotSupportedError, StorageError
from driver.inventory.driver_root import DriverRoot
from driver.sharing.base import MpsSpec
from driver.sharing.tools import Tools
from tests.fakes.install import FakeDriver
from tests.unit.sharing.conftest import GPU, OTHER
from tests.unit.sharing.daemons import SPEC, UID
from tests.waiting import until

if TYPE_CHECKING:
    from tests.unit.sharing.conftest import Node

PRIVATE = pytest.mark.skipif(os.geteuid() != 0, reason="a mount namespace takes root's rights")


# --- starting --------------------------------------------------------------------------------------------------------


async def test_a_daemon_gets_its_devices_and_limits_before_start_returns(node: Node) -> None:
    daemons = node.agent()
    await daemons.start(UID, SPEC)
    (started,) = node.driver.daemons()
    assert started["daemon"] == ["-f"]
    assert started["env"]["CUDA_VISIBLE_DEVICES"] == f"{GPU},{OTHER}"
    assert node.driver.commands()[-3:] == [
        "set_default_active_thread_percentage 25",
        f"set_default_device_pinned_mem_limit {GPU} 512M",
        "get_default_active_thread_percentage",
    ]
    assert daemons.running() == {UID}
    assert node.processes() == [started["pid"]]
    await daemons.stop(UID)


async def test_one_for_all_users_is_started_so(node: Node) -> None:
    daemons = node.agent()
    await daemons.start(UID, MpsSpec(devices=(GPU,), multi_user=True))
    assert node.driver.daemons()[0]["daemon"] == ["-f", "-multiuser-server"]
    await daemons.stop(UID)


async def test_starting_again_changes_nothing(node: Node) -> None:
    daemons = node.agent()
    await daemons.start(UID, SPEC)
    await asyncio.gather(*(daemons.start(UID, SPEC) for _ in range(3)))
    assert len(node.driver.daemons()) == 1
    await daemons.stop(UID)


async def test_other_limits_replace_the_daemon_but_not_its_directories(node: Node) -> None:
    daemons = node.agent()
    await daemons.start(UID, SPEC)
    mounted = os.stat(daemons.edits(UID).mounts[0].host_path).st_ino
    await daemons.start(UID, replace(SPEC, active_thread_percentage=50))
    assert [call["pid"] for call in node.driver.daemons()][1:] == node.processes()
    assert os.stat(daemons.edits(UID).mounts[0].host_path).st_ino == mounted
    assert node.deaths == []
    await daemons.stop(UID)


@PRIVATE
async def test_shared_memory_is_the_daemons_and_its_clients_only(node: Node) -> None:
    daemons = node.agent(private_shm=True)
    await daemons.start(UID, SPEC)
    pipe, shm = daemons.edits(UID).mounts
    assert (pipe.container_path, shm.container_path) == ("/tmp/nvidia-mps", "/dev/shm")
    assert node.driver.daemons()[0]["shm"] == os.stat(shm.host_path).st_ino
    assert os.stat(shm.host_path).st_mode & 0o7777 == 0o1777
    assert os.path.exists(f"{pipe.host_path}/control")
    await daemons.stop(UID)
    assert node.leftovers() == []


async def test_edits_name_the_pipe_directory_in_the_container(node: Node) -> None:
    edits = node.agent(private_shm=True).edits(UID)
    assert edits.env == {"CUDA_MPS_PIPE_DIRECTORY": "/tmp/nvidia-mps"}
    assert [mount.host_path for mount in edits.mounts] == [str(node.root / UID / "p"), str(node.shm_root / UID)]
    assert node.agent().edits(UID).mounts[1].host_path == "/dev/shm"


@pytest.mark.parametrize(
    ("start", "message"),
    [
        ("fail", "exited with status 1 at its start: An instance of this daemon is already running"),
        ("die", "was killed by signal 11 at its start"),
        ("hang", r"does not answer 0\.5 s after its start: .*Cannot find MPS control daemon process"),
        ("mute", r"does not answer 0\.5 s after its start: .*did not end within"),
    ],
)
async def test_a_daemon_that_does_not_come_up_leaves_nothing(node: Node, start: str, message: str) -> None:
    node.driver.control(mps={"start": start})
    daemons = node.agent(ready_timeout=20.0 if start in ("fail", "die") else 0.5)
    with pytest.raises(GpuToolError, match=f"MPS control daemon {UID} {message}"):
        await daemons.start(UID, SPEC)
    assert daemons.running() == frozenset()
    assert node.leftovers() == []
    assert node.deaths == []
    node.driver.control()
    await daemons.start(UID, SPEC)
    await daemons.stop(UID)


@pytest.mark.parametrize("wanted", [{"refuse": True}, {"forget": True}])
async def test_refused_limits_are_an_error_of_the_claim(node: Node, wanted: dict[str, bool]) -> None:
    node.driver.control(mps=wanted)
    with pytest.raises(SettingNotSupportedError, match=r"Invalid device GPU-1111|percentage of 100\.0 in spite of"):
        await node.agent().start(UID, SPEC)
    assert node.leftovers() == []


async def test_without_the_driver_nothing_is_made(node: Node) -> None:
    node.driver.uninstall()
    with pytest.raises(DeviceNotReadyError, match="no nvidia-cuda-mps-control"):
        await node.agent().start(UID, SPEC)
    assert node.leftovers() == []


async def test_a_cancelled_start_leaves_nothing(node: Node) -> None:
    node.driver.control(mps={"start": "hang"})
    task = asyncio.create_task(node.agent().start(UID, SPEC))
    await until(node.driver.daemons)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert node.leftovers() == []


@pytest.mark.parametrize("name", ["", "..", "a/b", "x" * 200])
async def test_an_id_is_a_file_name(node: Node, name: str) -> None:
    daemons = node.agent()
    for call in (daemons.start(name, SPEC), daemons.adopt(name, SPEC), daemons.stop(name)):
        with pytest.raises(InvalidValueError, match="MPS daemon"):
            await call


async def test_a_path_too_long_for_sockets_is_refused(node: Node) -> None:
    with pytest.raises(InvalidValueError, match="as sockets are made there"):
        await node.agent(root=node.root / ("d" * 60)).start(UID, SPEC)


async def test_directories_that_can_not_be_made_are_an_error(node: Node) -> None:
    file = node.root.parent / "file"
    file.touch()
    with pytest.raises(StorageError, match="cannot make the directories of an MPS daemon"):
        await node.agent(shm_root=file).start(UID, SPEC)
    assert node.leftovers() == []


async def test_several_claims_at_once(node: Node) -> None:
    daemons = node.agent()
    names = [f"claim-{number}" for number in range(4)]
    await asyncio.gather(*(daemons.start(name, SPEC) for name in names))
    assert daemons.running() == set(names)
    assert len(node.processes()) == 4
    await asyncio.gather(*(daemons.stop(name) for name in names))
    assert node.leftovers() == []


# --- ending ----------------------------------------------------------------------------------------------------------


async def test_stopping_leaves_nothing_and_can_be_repeated(node: Node) -> None:
    daemons = node.agent()
    await daemons.start(UID, SPEC)
    await asyncio.gather(daemons.stop(UID), daemons.stop(UID))
    await daemons.stop(UID)
    await daemons.stop("never-seen")
    assert node.leftovers() == []
    assert daemons.running() == frozenset()
    assert node.deaths == []
    assert node.driver.commands().count("quit") == 1


@pytest.mark.parametrize(("term", "ending"), [({}, "SIGTERM"), ({"term": "ignore"}, "SIGKILL")])
async def test_one_that_does_not_quit_is_killed(node: Node, term: dict[str, str], ending: str) -> None:
    node.driver.control(mps={"quit": "ignore", **term})
    daemons = node.agent(quit_timeout=0.2)
    await daemons.start(UID, SPEC)
    await daemons.stop(UID)
    assert node.leftovers() == [], ending


async def test_stopping_needs_no_driver(node: Node) -> None:
    daemons = node.agent()
    await daemons.start(UID, SPEC)
    node.driver.uninstall()
    await daemons.stop(UID)
    assert node.leftovers() == []


async def test_servers_end_with_their_daemon(node: Node) -> None:
    daemons = node.agent()
    await daemons.start(UID, SPEC)
    await ask(node, UID, "server")
    assert len(node.processes()) == 2
    os.kill(node.driver.daemons()[0]["pid"], signal.SIGKILL)
    await until(lambda: node.deaths)
    assert len(node.processes()) == 1
    await daemons.stop(UID)
    assert node.leftovers() == []


async def ask(node: Node, daemon_id: str, command: str) -> None:
    """Talk to a daemon as anybody can."""
    process = await asyncio.create_subprocess_exec(
        node.driver.bin / "nvidia-cuda-mps-control",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env={"CUDA_MPS_PIPE_DIRECTORY": str(node.root / daemon_id / "p")},
    )
    assert (await process.communicate(f"{command}\n".encode()))[0]


# --- dying -----------------------------------------------------------------------------------------------------------


async def test_a_death_is_told_once_with_its_cause(node: Node) -> None:
    daemons = node.agent()
    await daemons.start(UID, SPEC)
    os.kill(node.driver.daemons()[0]["pid"], signal.SIGKILL)
    await until(lambda: node.deaths)
    ((name, message),) = node.deaths
    assert name == UID
    assert message.startswith(f"MPS control daemon {UID} was killed by signal 9: ")
    assert daemons.running() == frozenset()
    await daemons.stop(UID)
    assert node.leftovers() == []
    assert len(node.deaths) == 1


async def test_a_dead_one_is_started_anew_in_the_directories_that_containers_have(node: Node) -> None:
    daemons = node.agent()
    await daemons.start(UID, SPEC)
    mounted = os.stat(node.root / UID / "p").st_ino
    os.kill(node.driver.daemons()[0]["pid"], signal.SIGKILL)
    await until(lambda: node.deaths)
    await daemons.start(UID, SPEC)
    assert daemons.running() == {UID}
    assert os.stat(node.root / UID / "p").st_ino == mounted
    await daemons.stop(UID)


async def test_a_failed_restart_keeps_the_directories_that_containers_have(node: Node) -> None:
    daemons = node.agent()
    await daemons.start(UID, SPEC)
    os.kill(node.driver.daemons()[0]["pid"], signal.SIGKILL)
    await until(lambda: node.deaths)
    node.driver.control(mps={"start": "fail"})
    with pytest.raises(GpuToolError):
        await daemons.start(UID, SPEC)
    assert (node.root / UID / "p").is_dir()
    await daemons.stop(UID)
    assert node.leftovers() == []


# --- another root directory ------------------------------------------------------------------------------------------


@PRIVATE
async def test_with_a_whole_driver_root_the_tools_run_in_it(node: Node) -> None:
    """The root is this system's own by another name, since the fakes need an interpreter there."""
    elsewhere = Path(tempfile.mkdtemp(prefix="g", dir="/var/tmp"))  # the daemon has a /tmp of its own
    try:
        node.driver = FakeDriver(elsewhere)
        program = Path(f"/proc/self/root{elsewhere}/usr/bin/nvidia-cuda-mps-control")
        tools = Tools(DriverRoot(Path("/proc/self/root")), {"nvidia-cuda-mps-control": program})
        daemons = node.agent(private_shm=True, tools=tools)
        await daemons.start(UID, SPEC)
        started = node.driver.daemons()[0]
        assert started["env"]["CUDA_MPS_PIPE_DIRECTORY"] == "/tmp/nvidia-mps"
        assert (node.root / UID / "p" / "control").exists()
        assert started["shm"] == os.stat(node.shm_root / UID).st_ino
        assert await node.agent(private_shm=True, tools=tools).adopt(UID, SPEC)
        await daemons.stop(UID)
        assert node.leftovers() == []
        assert not os.path.exists("/tmp/nvidia-mps-log")
    finally:
        shutil.rmtree(elsewhere)
