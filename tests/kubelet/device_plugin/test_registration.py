"""Device plugins while the kubelet comes late, starts again, refuses, or has another plugin already."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.kubelet.device_plugin.support import Kubelet, Plugins, ids_of, offered
from tests.unit.deviceplugin.helpers import config, snapshot
from tests.waiting import until

if TYPE_CHECKING:
    from pathlib import Path


async def test_K5_the_kubelet_comes_late(short_tmp: Path) -> None:
    plugins, kubelet = Plugins(short_tmp), Kubelet(short_tmp)
    async with plugins.running():
        plugins.plugins.configure(config())
        plugins.plugins.publish(snapshot("h100:2"))
        await until(lambda: plugins.heard.offered)
        assert "the kubelet does not serve" in plugins.plugins.missing()
        await kubelet.start()
        await until(lambda: kubelet.counts() == (2, 2))
        await kubelet.stop()


async def test_several_starts_of_the_kubelet_in_a_row(plugins: Plugins, kubelet: Kubelet) -> None:
    node = snapshot("h100:2")
    await offered(plugins, kubelet, node)
    for _ in range(3):
        await kubelet.stop()
        await kubelet.start()  # deletes every socket
    await until(lambda: kubelet.counts() == (2, 2))
    await plugins.allocate(ids_of(node))


async def test_a_deleted_socket_is_served_and_registered_again(plugins: Plugins, kubelet: Kubelet) -> None:
    node = snapshot("h100:2")
    await offered(plugins, kubelet, node)
    registered = len(plugins.heard.registered)
    socket = plugins.directory / "nvidia-gpu.sock"
    socket.unlink()
    await until(lambda: socket.exists() and kubelet.counts() == (2, 2))
    await plugins.allocate(ids_of(node))
    assert len(plugins.heard.registered) == registered  # it was never unknown to the kubelet


async def test_a_refused_registration_is_told_and_tried_again(plugins: Plugins, kubelet: Kubelet, monkeypatch) -> None:
    monkeypatch.setattr("driver.kubelet.device_plugin.registrar.VERSION", "v9")
    plugins.plugins.configure(config())
    plugins.plugins.publish(snapshot("h100"))
    await until(lambda: plugins.heard.told("DevicePluginNotRegistered"))
    assert "API version 'v9' is not supported" in plugins.plugins.missing()
    monkeypatch.undo()
    await until(lambda: kubelet.counts() == (1, 1))
    assert plugins.plugins.missing() == ""


@pytest.mark.parametrize("pod_uid", ["", "some-uid"])
async def test_K6_another_device_plugin_is_not_robbed(short_tmp: Path, kubelet: Kubelet, pod_uid: str) -> None:
    peer, plugins = Plugins(short_tmp), Plugins(short_tmp, pod_uid)
    async with peer.running(), plugins.running():
        await offered(peer, kubelet, snapshot("h100:3"))
        plugins.plugins.configure(config())
        plugins.plugins.publish(snapshot("h100:2"))
        await until(lambda: plugins.heard.told("DevicePluginNotServed"))
        assert "nvidia-gpu.sock" in plugins.heard.told("DevicePluginNotServed")
        assert kubelet.counts() == (3, 3)


async def test_the_end_of_the_agent_is_seen_by_the_kubelet(short_tmp: Path, kubelet: Kubelet) -> None:
    plugins = Plugins(short_tmp)
    async with plugins.running():
        await offered(plugins, kubelet, snapshot("h100:2"))
    await until(lambda: kubelet.counts() == (2, 0))
    assert [path.name for path in plugins.directory.iterdir()] == ["kubelet.sock"]


async def test_two_instances_have_sockets_of_their_own(short_tmp: Path, kubelet: Kubelet) -> None:
    first, second = Plugins(short_tmp, "uid-1"), Plugins(short_tmp, "uid-2")
    async with first.running(), second.running():
        await offered(first, kubelet, snapshot("h100:2"))
        await offered(second, kubelet, snapshot("h100:2"))
        await until(lambda: first.heard.registered and second.heard.registered)
        assert len(list(first.directory.glob("nvidia-gpu-*.sock"))) == 2
