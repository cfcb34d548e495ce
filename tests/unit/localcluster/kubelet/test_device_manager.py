"""Device plugins: registration, extended resources, devices for containers; held to the recorded calls."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from driver.localcluster.kubelet.times import Times
from tests.waiting import until

from .conftest import NODE, Bench

if TYPE_CHECKING:
    from .plugins import DevicePlugin

LINES = (Path(__file__).parents[3] / "data" / "recordings" / "device-plugin-calls.jsonl").read_text(encoding="utf-8")
RECORDED: list[dict[str, Any]] = [json.loads(line) for line in LINES.splitlines()]
FOUR = {f"GPU-{number}": "Healthy" for number in range(4)}
RESOURCE = "rec.example/gpu"


@pytest.fixture
async def plugin(bench: Bench) -> DevicePlugin:
    """A registered plugin with four devices."""
    plugin = bench.device_plugin()
    plugin.devices = dict(FOUR)
    await plugin.start()
    await plugin.register()
    await until(lambda: offered(bench) == ("4", "4"), "four devices are offered")
    return plugin


def offered(bench: Bench) -> tuple[str | None, str | None]:
    status = bench.store.get("nodes", NODE).get("status", {})
    return status["capacity"].get(RESOURCE), status["allocatable"].get(RESOURCE)


def container(name: str, count: int, script: str = "echo $REC_GPUS; sleep 100") -> dict[str, Any]:
    limits = {RESOURCE: str(count)}
    return {"name": name, "image": "x", "command": ["sh", "-c", script], "resources": {"limits": limits}}


async def running(bench: Bench, name: str) -> None:
    await until(lambda: bench.phase(name) == "Running" and bench.get(name)["status"]["conditions"], f"{name} runs")
    await until(
        lambda: all(item["ready"] for item in bench.get(name)["status"]["containerStatuses"]), f"{name} is ready"
    )


def recorded(call: str) -> list[tuple[int, float | None]]:
    """Return (number of devices, deadline) of the recorded calls of a kind, in a fixed order."""
    found = [line for line in RECORDED if line.get("call") == call]
    return sorted((sizes(line["request"]), line["deadline_s"]) for line in found)


def sizes(request: dict[str, Any]) -> int:
    requests = request.get("container_requests", [request])
    return sum(item.get("allocation_size") or len(item["devices_ids"]) for item in requests)


def ours(plugin: DevicePlugin, call: str) -> list[tuple[int, float | None]]:
    return sorted((sizes(item.request), item.deadline) for item in plugin.recorder.calls if item.method == call)


async def test_the_recorded_sequence(bench: Bench, plugin: DevicePlugin) -> None:
    assert plugin.recorder.methods()[:2] == ["GetDevicePluginOptions", "ListAndWatch: sent"]
    bench.pod("d1", containers=[container("c", 2)])
    bench.pod("d2", containers=[container("a", 1), container("b", 1)])
    await running(bench, "d1")
    await running(bench, "d2")
    for call in ("GetPreferredAllocation", "Allocate", "PreStartContainer"):
        assert ours(plugin, call) == recorded(call), call
    asked = [call for call in plugin.recorder.methods() if call in ("GetPreferredAllocation", "Allocate")]
    assert asked == ["GetPreferredAllocation", "Allocate"] * 3
    assert offered(bench) == ("4", "4")

    bench.delete("d2", grace=0)
    await until(lambda: bench.phase("d2") == "gone")
    plugin.report(**{name.replace("-", "_"): health for name, health in FOUR.items()} | {"GPU_3": "Unhealthy"})
    await until(lambda: offered(bench) == ("4", "3"), "allocatable now 3, capacity 4")

    await bench.kubelet.restart()
    assert not plugin.socket.exists(), "a starting kubelet deletes the plugins' sockets"
    await plugin.kill()
    await plugin.start()
    await plugin.register()
    await until(lambda: offered(bench) == ("4", "3"), "allocatable now 3")
    assert bench.phase("d1") == "Running"
    assert bench.status("d1")["restartCount"] == 0

    await plugin.kill()
    await until(lambda: offered(bench) == ("4", "0"), "allocatable 0, capacity 4")


async def test_what_is_given_reaches_the_container(bench: Bench, plugin: DevicePlugin) -> None:
    file = bench.paths.root / "f"
    file.write_text("from the plugin\n", encoding="utf-8")
    bench.cdi("gpu-0", kind="dp.example/gpu")
    plugin.respond = lambda ids: {
        "envs": {"IDS": ",".join(ids)},
        "mounts": [{"container_path": "/given", "host_path": str(file), "read_only": True}],
        "devices": [{"container_path": "/dev/rec0", "host_path": "/dev/null", "permissions": "rw"}],
        "cdi_devices": [{"name": "dp.example/gpu=gpu-0"}],
    }
    bench.pod("d", containers=[container("c", 2, "echo $IDS $GPU; cat /given; ls /dev/rec0")], restartPolicy="Never")
    await until(lambda: bench.phase("d") in ("Succeeded", "Failed"))
    expected = "GPU-0,GPU-1 gpu-0\nfrom the plugin\n/dev/rec0\n"
    mode = await bench.kubelet.runtime.mode()
    assert bench.log("d") == expected if mode != "plain" else "gpu-0" in bench.log("d")


async def test_cdi_names_in_annotations_are_resolved(bench: Bench, plugin: DevicePlugin) -> None:
    bench.cdi("gpu-0", kind="dp.example/gpu")
    plugin.respond = lambda ids: {"annotations": {"cdi.k8s.io/dp_1": "dp.example/gpu=gpu-0"}}
    bench.pod("d", containers=[container("c", 1, "echo $GPU")], restartPolicy="Never")
    await until(lambda: bench.phase("d") == "Succeeded")
    await until(lambda: bench.log("d") == "gpu-0\n", "the output")


async def test_the_preference_is_taken_and_filled_up(bench: Bench, plugin: DevicePlugin) -> None:
    plugin.prefer = lambda have, must, size: ["GPU-3", "GPU-9"]
    bench.pod("d", containers=[container("c", 2)])
    await running(bench, "d")
    assert plugin.recorder.of("Allocate") == [{"container_requests": [{"devices_ids": ["GPU-3", "GPU-0"]}]}]


async def test_devices_of_init_containers_are_used_again(bench: Bench, plugin: DevicePlugin) -> None:
    bench.pod("d", initContainers=[container("i", 3, "echo $REC_GPUS")], containers=[container("c", 4)])
    await running(bench, "d")
    assert plugin.recorder.of("GetPreferredAllocation")[1]["container_requests"] == [
        {
            "available_deviceIDs": ["GPU-0", "GPU-1", "GPU-2", "GPU-3"],
            "must_include_deviceIDs": ["GPU-0", "GPU-1", "GPU-2"],
            "allocation_size": 4,
        }
    ]


async def test_too_few_devices_fail_the_pod(bench: Bench, plugin: DevicePlugin) -> None:
    bench.pod("d1", containers=[container("c", 3)])
    await running(bench, "d1")
    bench.pod("d2", containers=[container("c", 2)])
    await until(lambda: bench.phase("d2") == "Failed")
    status = bench.get("d2")["status"]
    assert status["reason"] == "UnexpectedAdmissionError"
    assert f"unavailable for {RESOURCE}. Requested: 2, Available: 1" in status["message"]
    bench.delete("d1")
    await until(lambda: bench.phase("d1") == "gone")
    bench.pod("d3", containers=[container("c", 4)])
    await running(bench, "d3")


async def test_a_resource_that_nobody_has_fails_the_pod(bench: Bench) -> None:
    bench.pod("d", containers=[container("c", 1)])
    await until(lambda: bench.phase("d") == "Failed")
    assert bench.get("d")["status"]["reason"] == f"OutOf{RESOURCE}"


async def test_a_refused_start_is_tried_again(bench: Bench, plugin: DevicePlugin) -> None:
    plugin.pre_start = "not ready"
    bench.pod("d", containers=[container("c", 1)])
    await until(lambda: "not ready" in json.dumps(bench.status("d")))
    plugin.pre_start = ""
    await running(bench, "d")


async def test_running_pods_keep_their_devices_over_a_restart(bench: Bench, plugin: DevicePlugin) -> None:
    bench.pod("d1", containers=[container("c", 3)])
    await running(bench, "d1")
    await bench.kubelet.restart()
    await plugin.kill()
    await plugin.start()
    await plugin.register()
    await until(lambda: offered(bench) == ("4", "4"))
    bench.pod("d2", containers=[container("c", 1)])
    await running(bench, "d2")
    await until(lambda: bench.log("d2") == "GPU-3\n", "the output")


async def test_a_new_registration_replaces_the_old(bench: Bench, plugin: DevicePlugin) -> None:
    newer = bench.device_plugin(endpoint="newer.sock")
    newer.devices = {"GPU-7": "Healthy"}
    await newer.start()
    await newer.register()
    await until(lambda: offered(bench) == ("1", "1"))
    bench.pod("d", containers=[container("c", 1)])
    await running(bench, "d")
    assert newer.recorder.of("Allocate")
    assert not plugin.recorder.of("Allocate")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": "v1"}, "Supported version is 'v1beta1'"),
        ({"resource": "gpu"}, "ResourceName 'gpu' is invalid"),
        ({"resource": "x.kubernetes.io/gpu"}, "is invalid"),
        ({"endpoint": "../x.sock"}, "the endpoint '../x.sock' is invalid"),
    ],
)
async def test_a_bad_registration_is_refused(bench: Bench, change: dict[str, str], message: str) -> None:
    plugin = bench.device_plugin()
    await plugin.start()
    plugin.resource = change.get("resource", plugin.resource)
    plugin.endpoint = change.get("endpoint", plugin.endpoint)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await plugin.register(version=change.get("version", "v1beta1"))
    assert message in caught.value.details()


@pytest.mark.parametrize("times", [replace(Times(), dial=0.1)])
async def test_a_plugin_that_does_not_serve_is_refused(bench: Bench) -> None:
    plugin = bench.device_plugin()
    with pytest.raises(grpc.aio.AioRpcError, match=f"failed to dial device plugin for {RESOURCE}"):
        await plugin.register()
    assert offered(bench) == (None, None)


async def test_pod_resources_tell_who_holds_what(bench: Bench, plugin: DevicePlugin) -> None:
    from driver._pb import pod_resources_v1_pb2 as pb
    from driver._pb import pod_resources_v1_pb2_grpc as pb_grpc

    dra = await bench.registered()
    bench.cdi("gpu-0")
    bench.claim("c1")
    bench.pod("p", "c1")
    bench.pod("d", containers=[container("c", 2)])
    await running(bench, "p")
    await running(bench, "d")
    async with grpc.aio.insecure_channel(f"unix:{bench.paths.pod_resources / 'kubelet.sock'}") as channel:
        stub: Any = pb_grpc.PodResourcesListerStub(channel)
        listed = await stub.List(pb.ListPodResourcesRequest())
        pods = {pod.name: pod for pod in listed.pod_resources}
        [devices] = pods["d"].containers[0].devices
        assert (devices.resource_name, list(devices.device_ids)) == (RESOURCE, ["GPU-0", "GPU-1"])
        assert [node.ID for node in devices.topology.nodes] == [0]
        [claim] = pods["p"].containers[0].dynamic_resources
        assert (claim.claim_name, claim.claim_namespace) == ("c1", "default")
        [resource] = claim.claim_resources
        assert (resource.driver_name, resource.pool_name, resource.device_name) == (dra.driver, NODE, "gpu-0")
        assert [cdi.name for cdi in resource.cdi_devices] == ["rec.example/gpu=gpu-0"]
        assert not resource.HasField("share_id")
        one = await stub.Get(pb.GetPodResourcesRequest(pod_name="d", pod_namespace="default"))
        assert one.pod_resources == pods["d"]
        with pytest.raises(grpc.aio.AioRpcError, match="pod x in namespace default not found"):
            await stub.Get(pb.GetPodResourcesRequest(pod_name="x", pod_namespace="default"))
        rest = await stub.GetAllocatableResources(pb.AllocatableResourcesRequest())
        assert len(rest.devices) == 4
        bench.delete("d", grace=0)
        async with asyncio.timeout(10):
            while [pod.name for pod in (await stub.List(pb.ListPodResourcesRequest())).pod_resources] != ["p"]:
                await asyncio.sleep(0.005)
