from __future__ import annotations

import asyncio
import signal
import socket
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from driver.errors import ServeError
from driver.kubelet.plugin import KubeletPlugin
from tests.waiting import until

from .conftest import Kubelet, ScriptedClaims, Seen, prepare_request, running


def leave_dead_socket(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
        dead.listen()


async def failure_of(plugin: KubeletPlugin) -> str:
    with pytest.RaisesGroup(pytest.RaisesExc(ServeError), flatten_subgroups=True) as caught:
        async with asyncio.timeout(10):
            await plugin.run()
    await plugin.stop(0)
    return str(caught.value.exceptions[0])


async def test_the_socket_is_private(kubelet: Kubelet, plugin: KubeletPlugin) -> None:
    for path in (kubelet.service, kubelet.registration):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(kubelet.service.parent.stat().st_mode) == 0o750


async def test_no_other_file_is_left_beside_the_sockets(kubelet: Kubelet, plugin: KubeletPlugin) -> None:
    assert list(kubelet.service.parent.iterdir()) == [kubelet.service]
    assert list(kubelet.registration.parent.iterdir()) == [kubelet.registration]


async def test_K3_sockets_of_a_dead_process_are_replaced(kubelet: Kubelet, claims: ScriptedClaims, seen: Seen) -> None:
    leave_dead_socket(kubelet.service)
    leave_dead_socket(kubelet.registration)
    async with running(KubeletPlugin(kubelet.paths, claims, seen, warn=seen.warn)):
        async with asyncio.timeout(10):
            while True:
                try:
                    info = await kubelet.get_info()
                    break
                except Exception:
                    await asyncio.sleep(0.01)
        assert info.name == "gpu.nvidia.com"
        async with kubelet.connected() as stub:
            assert "u1" in (await stub.NodePrepareResources(prepare_request("u1"), timeout=5)).claims


async def test_K3_a_live_instance_is_not_robbed(kubelet: Kubelet, plugin: KubeletPlugin, seen: Seen) -> None:
    before = kubelet.service.stat().st_ino
    message = await failure_of(KubeletPlugin(kubelet.paths, ScriptedClaims(), seen, warn=seen.warn))
    assert f"another process serves {kubelet.service}" in message
    assert "pod UID" in message
    assert kubelet.service.stat().st_ino == before
    assert (await kubelet.get_info()).name == "gpu.nvidia.com"


async def test_a_pods_own_name_may_be_taken_over(kubelet: Kubelet, claims: ScriptedClaims, seen: Seen) -> None:
    paths = replace(kubelet.paths, pod_uid="pod-uid")
    service = kubelet.service.with_name("dra-pod-uid.sock")
    service.parent.mkdir(parents=True)
    with socket.socket(socket.AF_UNIX) as stuck:
        stuck.bind(str(service))
        stuck.listen()
        async with running(KubeletPlugin(paths, claims, seen, warn=seen.warn)) as task:
            await until((kubelet.paths.registry / "gpu.nvidia.com-pod-uid-reg.sock").exists)
            async with kubelet.connected(service) as stub:
                assert "u1" in (await stub.NodePrepareResources(prepare_request("u1"), timeout=5)).claims
            assert not task.done()


async def test_what_is_no_socket_is_never_removed(kubelet: Kubelet, claims: ScriptedClaims, seen: Seen) -> None:
    kubelet.service.parent.mkdir(parents=True)
    kubelet.service.write_text("precious")
    message = await failure_of(KubeletPlugin(kubelet.paths, claims, seen, warn=seen.warn))
    assert "is no socket" in message
    assert kubelet.service.read_text() == "precious"


@pytest.mark.parametrize("which", ["service", "registration"])
async def test_a_deleted_socket_is_served_again(kubelet: Kubelet, plugin: KubeletPlugin, which: str) -> None:
    path: Path = getattr(kubelet, which)
    for _ in range(2):
        path.unlink()
        await until(path.exists)
        await until(plugin.serving.is_set)
    assert (await kubelet.get_info()).name == "gpu.nvidia.com"
    async with kubelet.connected() as stub:
        assert "u1" in (await stub.NodePrepareResources(prepare_request("u1"), timeout=5)).claims


async def test_a_deleted_plugin_directory_is_made_again(kubelet: Kubelet, plugin: KubeletPlugin) -> None:
    kubelet.service.unlink()
    kubelet.service.parent.rmdir()
    kubelet.paths.plugins.rmdir()
    await until(kubelet.service.exists)
    async with kubelet.connected() as stub:
        assert "u1" in (await stub.NodePrepareResources(prepare_request("u1"), timeout=5)).claims


async def test_a_call_survives_the_deletion_of_its_socket(
    kubelet: Kubelet, plugin: KubeletPlugin, claims: ScriptedClaims
) -> None:
    claims.gate = asyncio.Event()
    async with kubelet.connected() as stub:
        call = stub.NodePrepareResources(prepare_request("u1"), timeout=10)
        await until(lambda: claims.together == 1)
        kubelet.service.unlink()
        await until(kubelet.service.exists)
        claims.gate.set()
        assert (await call).claims["u1"].error == ""


async def test_a_socket_that_another_process_put_there_is_left_at_the_end(
    kubelet: Kubelet, claims: ScriptedClaims, seen: Seen
) -> None:
    plugin = KubeletPlugin(kubelet.paths, claims, seen, warn=seen.warn)
    task = asyncio.create_task(plugin.run())
    await until(kubelet.registration.exists)
    with socket.socket(socket.AF_UNIX) as other:
        path = kubelet.service.with_name("theirs")
        other.bind(str(path))
        other.listen()
        path.rename(kubelet.service)
        with pytest.RaisesGroup(pytest.RaisesExc(ServeError, match="another process serves"), flatten_subgroups=True):
            await task
        await plugin.stop(0)
        assert kubelet.service.exists()


async def test_a_plugin_directory_that_cannot_be_made(claims: ScriptedClaims, seen: Seen) -> None:
    message = await failure_of(KubeletPlugin(Kubelet(Path("/proc/kubelet")).paths, claims, seen, warn=seen.warn))
    assert "cannot create /proc/kubelet/plugins/gpu.nvidia.com for the driver's socket" in message


async def test_a_plugin_directory_that_is_a_file(kubelet: Kubelet, claims: ScriptedClaims, seen: Seen) -> None:
    kubelet.paths.plugins.write_text("")
    message = await failure_of(KubeletPlugin(kubelet.paths, claims, seen, warn=seen.warn))
    assert f"cannot create {kubelet.service.parent}" in message


async def test_K3_a_killed_process_leaves_sockets_that_the_next_one_replaces(
    kubelet: Kubelet, claims: ScriptedClaims, seen: Seen
) -> None:
    program = (
        "import asyncio, sys, pathlib\n"
        "from driver.kubelet.plugin import KubeletPlugin\n"
        "from tests.kubelet.conftest import Kubelet, ScriptedClaims, Seen\n"
        "seen = Seen()\n"
        "root = pathlib.Path(sys.argv[1])\n"
        "async def main():\n"
        "    await KubeletPlugin(Kubelet(root).paths, ScriptedClaims(), seen, warn=seen.warn).run()\n"
        "asyncio.run(main())\n"
    )
    with subprocess.Popen([sys.executable, "-c", program, str(kubelet.root)]) as process:
        await until(kubelet.registration.exists)
        process.send_signal(signal.SIGKILL)
        await asyncio.to_thread(process.wait)
    assert kubelet.service.exists()
    before = kubelet.service.stat().st_ino
    async with running(KubeletPlugin(kubelet.paths, claims, seen, warn=seen.warn)) as task:
        await until(lambda: task.done() or kubelet.service.stat().st_ino != before)
        async with kubelet.connected() as stub:
            assert "u1" in (await stub.NodePrepareResources(prepare_request("u1"), timeout=5)).claims
