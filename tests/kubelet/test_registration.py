from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

from driver.kubelet.plugin import KubeletPlugin
from tests.waiting import until

from .conftest import Kubelet, ScriptedClaims, Seen, prepare_request, running

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


async def test_the_kubelet_learns_who_we_are(kubelet: Kubelet, plugin: KubeletPlugin) -> None:
    info = await kubelet.get_info()
    assert info.type == "DRAPlugin"
    assert info.name == "gpu.nvidia.com"
    assert info.endpoint == str(kubelet.service)
    assert list(info.supported_versions) == ["v1.DRAPlugin", "v1beta1.DRAPlugin"]


async def test_the_service_answers_before_the_kubelet_can_find_it(
    kubelet: Kubelet, claims: ScriptedClaims, seen: Seen
) -> None:
    plugin = KubeletPlugin(kubelet.paths, claims, seen, warn=seen.warn)
    async with running(plugin):
        await until(kubelet.registration.exists)
        assert plugin.serving.is_set()
        async with kubelet.connected() as stub:
            assert "u1" in (await stub.NodePrepareResources(prepare_request("u1"), timeout=5)).claims


async def test_registration_is_told(kubelet: Kubelet, plugin: KubeletPlugin, seen: Seen) -> None:
    assert "not registered the driver yet" in plugin.missing()
    await kubelet.notify(True)
    assert plugin.missing() == ""
    assert seen.registrations == [True]
    assert seen.warnings == []


async def test_a_refused_registration_is_told_and_recovers(
    kubelet: Kubelet, plugin: KubeletPlugin, seen: Seen, caplog: pytest.LogCaptureFixture
) -> None:
    await kubelet.notify(False, "version\nmismatch")
    assert "version mismatch" in plugin.missing()
    assert seen.registrations == [False]
    assert seen.warnings == [("RegistrationFailed", "the kubelet did not register the driver: version mismatch")]
    assert "version mismatch" in caplog.text
    await kubelet.notify(True)
    assert plugin.missing() == ""
    assert seen.registrations == [False, True]


async def test_K5_the_kubelet_comes_late(short_tmp: Path, claims: ScriptedClaims, seen: Seen) -> None:
    kubelet = Kubelet(short_tmp / "not" / "yet")
    plugin = KubeletPlugin(kubelet.paths, claims, seen, warn=seen.warn)
    async with running(plugin):
        await until(plugin.serving.is_set)
        assert str(kubelet.registration) in plugin.missing()
        kubelet.paths.registry.mkdir(parents=True)
        await until(kubelet.registration.exists)
        await kubelet.notify(True)
        assert plugin.missing() == ""


async def test_K4_the_kubelet_root_is_one_setting(short_tmp: Path, claims: ScriptedClaims, seen: Seen) -> None:
    kubelet = Kubelet(short_tmp / "mnt" / "kubelet")
    kubelet.paths.registry.mkdir(parents=True)
    plugin = KubeletPlugin(kubelet.paths, claims, seen, warn=seen.warn)
    async with running(plugin):
        await until(kubelet.registration.exists)
        info = await kubelet.get_info()
    assert info.endpoint == str(short_tmp / "mnt/kubelet/plugins/gpu.nvidia.com/dra.sock")


async def test_K4_a_kubelet_that_never_comes_is_remarked_on(
    short_tmp: Path,
    claims: ScriptedClaims,
    seen: Seen,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr("driver.kubelet.plugin._PATIENCE", 0.05)
    kubelet = Kubelet(short_tmp)
    async with running(KubeletPlugin(kubelet.paths, claims, seen, warn=seen.warn)):
        await until(lambda: seen.warnings)
    [(reason, message)] = seen.warnings
    assert reason == "NotRegistered"
    assert str(kubelet.paths.registry) in message
    assert "waiting for the kubelet to create it; is the kubelet root right?" in caplog.text


async def test_a_restarted_kubelet_finds_the_plugin_again(kubelet: Kubelet, plugin: KubeletPlugin) -> None:
    for _ in range(3):
        await kubelet.get_info()
        await kubelet.notify(True)
    assert plugin.missing() == ""


async def test_the_registry_is_wiped_and_made_again(kubelet: Kubelet, plugin: KubeletPlugin) -> None:
    for _ in range(3):
        before = kubelet.registration.stat().st_ino
        kubelet.registration.unlink()
        kubelet.paths.registry.rmdir()
        kubelet.paths.registry.mkdir()
        await until(kubelet.registration.exists)
        assert kubelet.registration.stat().st_ino != before or plugin.missing()
        assert (await kubelet.get_info()).name == "gpu.nvidia.com"


async def test_two_instances_of_a_rolling_update(kubelet: Kubelet, seen: Seen) -> None:
    pods = ("11111111-2222-3333-4444-555555555555", "66666666-7777-8888-9999-000000000000")
    engines = [ScriptedClaims(), ScriptedClaims()]
    plugins = [
        KubeletPlugin(replace(kubelet.paths, pod_uid=pod), engine, seen, warn=seen.warn)
        for pod, engine in zip(pods, engines, strict=True)
    ]
    registrations = [kubelet.paths.registry / f"gpu.nvidia.com-{pod}-reg.sock" for pod in pods]
    services = [kubelet.service.with_name(f"dra-{pod}.sock") for pod in pods]
    async with running(plugins[0]):
        await until(registrations[0].exists)
        async with running(plugins[1]):
            await until(registrations[1].exists)
            for registration, service, engine in zip(registrations, services, engines, strict=True):
                assert (await kubelet.get_info(registration)).endpoint == str(service)
                async with kubelet.connected(service) as stub:
                    await stub.NodePrepareResources(prepare_request("u1"), timeout=5)
                assert len(engine.calls) == 1
        assert registrations[0].exists()
        assert services[0].exists()
        assert not registrations[1].exists()
        assert not services[1].exists()
    assert sorted(kubelet.paths.registry.iterdir()) == []


async def test_the_end_removes_both_sockets(kubelet: Kubelet, claims: ScriptedClaims, seen: Seen) -> None:
    plugin = KubeletPlugin(kubelet.paths, claims, seen, warn=seen.warn)
    async with running(plugin):
        await until(kubelet.registration.exists)
        assert kubelet.service.exists()
    assert not kubelet.service.exists()
    assert list(kubelet.paths.registry.iterdir()) == []


async def test_a_call_under_way_at_the_end_may_finish(kubelet: Kubelet, claims: ScriptedClaims, seen: Seen) -> None:
    claims.gate = asyncio.Event()
    plugin = KubeletPlugin(kubelet.paths, claims, seen, warn=seen.warn)
    task = asyncio.create_task(plugin.run())
    await until(kubelet.registration.exists)
    async with kubelet.connected() as stub:
        call = stub.NodePrepareResources(prepare_request("u1"), timeout=5)
        await until(lambda: claims.together == 1)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        ending = asyncio.create_task(plugin.stop(5))
        await until(lambda: not kubelet.registration.exists())
        claims.gate.set()
        assert (await call).claims["u1"].error == ""
        await ending
