"""How plugins come, replace each other, and go."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from driver.localcluster.kubelet.dra_plugins import PluginError
from driver.localcluster.kubelet.times import Times
from tests.waiting import until

from .plugins import Recorder
from .test_claims import gone, names, running
from .test_recorded_calls import publish_slice

if TYPE_CHECKING:
    from .conftest import Bench


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"type_": "CSIPlugin"}, "no handler registered for plugin type: CSIPlugin"),
        ({"versions": ()}, "empty list of supported gRPC services"),
        ({"versions": ("v1alpha3.DRAPlugin", "v1.DRAResourceHealth")}, "is supported by this kubelet: v1.DRAPlugin"),
    ],
)
async def test_a_plugin_that_is_refused_is_told_why(bench: Bench, more: dict[str, Any], message: str) -> None:
    plugin = bench.dra(**more)
    await plugin.start()
    await until(lambda: len(plugin.status) >= 2, "told, and asked again later")
    assert not plugin.status[0][0]
    assert message in plugin.status[0][1]


async def test_a_plugin_that_refuses_the_notice_is_registered_anew(bench: Bench) -> None:
    plugin = bench.dra()
    plugin.refuse_notice = True
    await plugin.start()
    await until(lambda: len(plugin.status) >= 2, "asked again")
    plugin.refuse_notice = False
    await until(lambda: "DRAResourceHealth.NodeWatchResources" in plugin.recorder.methods(), "registered")
    assert plugin.status[0] == plugin.status[-1] == (True, "")


async def test_the_service_may_come_after_the_registration(bench: Bench) -> None:
    bench.cdi("gpu-0")
    plugin = bench.dra()
    await plugin.start_registrar()
    await until(lambda: plugin.status == [(True, "")], "registered")
    bench.claim("c1")
    bench.pod("p", "c1")
    await until(lambda: bench.events("FailedPrepareDynamicResources"), "nobody serves yet")
    await plugin.kill()
    await plugin.start()
    await running(bench, "p")


async def test_the_newest_connected_instance_is_called(bench: Bench) -> None:
    bench.cdi("gpu-0")
    older = await bench.registered(suffix="-a")
    newer = await bench.registered(suffix="-b")
    await until(lambda: bench.kubelet.plugins.get(newer.driver).connected, "one is connected")
    await until(lambda: bench.kubelet.plugins.get(newer.driver).endpoint == str(newer.service), "newer is connected")
    for name in ("c1", "c2", "c3"):
        bench.claim(name)
    bench.pod("p1", "c1")
    await running(bench, "p1")
    assert (names(older, "NodePrepareResources"), names(newer, "NodePrepareResources")) == ([], [["c1"]])

    await newer.stop()
    bench.pod("p2", "c2")
    await running(bench, "p2")
    assert names(older, "NodePrepareResources") == [["c2"]]
    bench.delete("p1")
    await gone(bench, "p1")
    assert names(older, "NodeUnprepareResources") == [["c1"]]


async def test_an_instance_that_hangs_on_a_dead_socket_is_passed_over(bench: Bench) -> None:
    bench.cdi("gpu-0")
    older = await bench.registered(suffix="-a")
    newer = await bench.registered(suffix="-b")
    await newer.kill()
    await until(lambda: bench.kubelet.plugins.get(newer.driver).endpoint == str(older.service), "older is chosen")
    bench.claim("c1")
    bench.pod("p", "c1")
    await running(bench, "p")
    assert names(older, "NodePrepareResources") == [["c1"]]


async def test_slices_of_a_driver_that_is_gone_are_deleted(bench: Bench) -> None:
    plugin = await bench.registered()
    publish_slice(bench)
    await plugin.stop()
    await until(lambda: bench.store.list("resourceslices") == [], "wiped")


def is_away(bench: Bench, driver: str) -> bool:
    try:
        return not bench.kubelet.plugins.get(driver).connected
    except PluginError:
        return True


@pytest.mark.parametrize("times", [replace(Times().scaled(0.01), wipe_after=1.0)])
async def test_slices_of_a_driver_that_comes_back_stay(bench: Bench) -> None:
    recorder = Recorder()
    plugin = await bench.registered(recorder)
    publish_slice(bench)
    await plugin.kill()
    await until(lambda: is_away(bench, plugin.driver), "the clock runs")
    await bench.registered(recorder)
    other = await bench.registered(driver="other.example")
    publish_slice(bench, other.driver)
    await other.stop()
    await until(lambda: len(bench.store.list("resourceslices")) < 2, "a clock that began later has run down")
    assert [item["spec"]["driver"] for item in bench.store.list("resourceslices")] == [plugin.driver]


async def test_a_socket_that_was_there_first_is_found(bench: Bench) -> None:
    await bench.kubelet.kill()
    plugin = bench.dra()
    await plugin.start()
    (bench.paths.plugins_registry / "no-socket").write_text("x", encoding="utf-8")
    (bench.paths.plugins_registry / ".hidden").write_text("x", encoding="utf-8")
    await bench.kubelet.start()
    await until(lambda: plugin.status == [(True, "")])


async def test_a_registration_socket_that_nobody_serves_harms_nobody(bench: Bench) -> None:
    dead = bench.dra(driver="dead.example")
    await dead.start()
    await dead.kill()
    plugin = await bench.registered()
    assert plugin.status == [(True, "")]


async def test_a_plugin_that_goes_during_a_call_costs_only_that_try(bench: Bench) -> None:
    bench.cdi("gpu-0")
    plugin = await bench.registered()
    plugin.hold.clear()
    bench.claim("c1")
    bench.pod("p", "c1")
    await until(lambda: plugin.recorder.of("NodePrepareResources"), "the call has begun")
    plugin.registration.unlink()
    text = await until(lambda: bench.events("FailedPrepareDynamicResources"))
    assert "the client connection is closing" in text[0]
    plugin.hold.set()
    await plugin.kill()
    await bench.registered()
    await running(bench, "p")
