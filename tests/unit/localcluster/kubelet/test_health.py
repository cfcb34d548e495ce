"""The health of devices, as it reaches the pod's status."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from driver.localcluster.apiserver.features import Features
from tests.waiting import until

from .conftest import NODE, Bench
from .test_claims import running

if TYPE_CHECKING:
    from .plugins import DraPlugin


def said(word: int, message: str = "", name: str = "gpu-0", **more: int) -> dict[str, Any]:
    return {"device": {"pool_name": NODE, "device_name": name}, "health": word, "message": message, **more}


def shown(bench: Bench) -> list[dict[str, Any]]:
    return [item for entry in bench.status("p").get("allocatedResourcesStatus", []) for item in entry["resources"]]


@pytest.fixture
async def plugin(bench: Bench) -> DraPlugin:
    bench.cdi("gpu-0")
    plugin = await bench.registered()
    bench.claim("c1")
    bench.pod("p", "c1")
    await running(bench, "p")
    return plugin


async def test_health_reaches_the_pods_status_goes_and_comes_back(bench: Bench, plugin: DraPlugin) -> None:
    cdi = "rec.example/gpu=gpu-0"
    assert bench.status("p")["allocatedResourcesStatus"] == [
        {"name": "claim:c1", "resources": [{"resourceID": cdi, "health": "Unknown"}]}
    ]
    plugin.report(said(1))
    await until(lambda: shown(bench) == [{"resourceID": cdi, "health": "Healthy"}])
    plugin.report(said(2, "XID 79"))
    await until(lambda: shown(bench) == [{"resourceID": cdi, "health": "Unhealthy", "message": "XID 79"}])
    await plugin.kill()
    await until(lambda: shown(bench) == [{"resourceID": cdi, "health": "Unknown"}])
    plugin.health = [said(1)]
    await plugin.start()
    await until(lambda: shown(bench) == [{"resourceID": cdi, "health": "Healthy"}])


async def test_silence_makes_a_device_unknown(bench: Bench, plugin: DraPlugin) -> None:
    plugin.report(said(1, health_check_timeout_seconds=1))
    await until(lambda: [item["health"] for item in shown(bench)] == ["Healthy"])
    await until(lambda: [item["health"] for item in shown(bench)] == ["Unknown"])


async def test_a_list_is_complete(bench: Bench, plugin: DraPlugin) -> None:
    plugin.report(said(1))
    await until(lambda: [item["health"] for item in shown(bench)] == ["Healthy"])
    plugin.report(said(1, name="gpu-7"))
    await until(lambda: [item["health"] for item in shown(bench)] == ["Unknown"])


@pytest.mark.parametrize(
    ("features", "versions", "streams"),
    [
        (Features(kubernetes="1.36"), ("v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth"), 1),
        (Features(kubernetes="1.37"), ("v1.DRAResourceHealth",), 1),
        (Features(kubernetes="1.36"), ("v1.DRAResourceHealth",), 0),
        (Features(kubernetes="1.36", gates={"ResourceHealthStatus": False}), ("v1alpha1.DRAResourceHealth",), 0),
        (Features(kubernetes="1.34"), ("v1alpha1.DRAResourceHealth",), 0),
    ],
)
async def test_the_stream_is_the_versions(
    bench: Bench, features: Features, versions: tuple[str, ...], streams: int
) -> None:
    plugin = await bench.registered(versions=("v1.DRAPlugin", *versions))
    bench.cdi("gpu-0")
    bench.claim("c1")
    bench.pod("p", "c1")
    await running(bench, "p")
    assert plugin.recorder.methods().count("DRAResourceHealth.NodeWatchResources") == streams
    assert bool(shown(bench)) is features.enabled("ResourceHealthStatus")


async def test_an_older_plugins_end_does_not_hide_the_newers_word(bench: Bench, plugin: DraPlugin) -> None:
    plugin.report(said(1, "older"))
    await until(lambda: [item.get("message") for item in shown(bench)] == ["older"])
    newer = await bench.registered(suffix="-b")
    newer.report(said(2, "newer"))
    await until(lambda: [item.get("message") for item in shown(bench)] == ["newer"])
    await plugin.stop()
    await until(lambda: plugin.recorder.methods() and not bench.kubelet.health.streams(str(plugin.service)))
    assert [item.get("message") for item in shown(bench)] == ["newer"]
