from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio
import pytest

from driver._pb import dra_health_v1_pb2, dra_health_v1_pb2_grpc, dra_health_v1alpha1_pb2, dra_health_v1alpha1_pb2_grpc
from driver.inventory.fake_gpus import build_gpus
from driver.inventory.fake_spec import parse_node
from driver.inventory.profiles import load_products
from driver.kubelet.plugin import KubeletPlugin
from driver.kubelet.resource_health import ResourceHealth
from driver.model.device import MigDevice
from driver.model.health_facts import Fact, Kind
from driver.model.health_rules import judge
from driver.model.snapshot import Snapshot
from tests.waiting import until

from .conftest import Kubelet, ScriptedClaims, Seen, running

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

POOL = "node1"
NOW = 1_790_000_000.7
GPUS = build_gpus(parse_node("h100:2,a100-80@mig=1g.10gb*2", load_products()), "n")
WELL = Snapshot(gpus=GPUS)
BAD = judge([Fact(Kind.XID, 79)])
SICK = replace(WELL, health=MappingProxyType({GPUS[1].uuid: BAD}))
UNKNOWN, HEALTHY, UNHEALTHY = 0, 1, 2

VERSIONS = {
    "v1": (dra_health_v1_pb2, dra_health_v1_pb2_grpc.DRAResourceHealthStub),
    "v1alpha1": (dra_health_v1alpha1_pb2, dra_health_v1alpha1_pb2_grpc.DRAResourceHealthStub),
}


@pytest.fixture
def health() -> ResourceHealth:
    return ResourceHealth(POOL, timeout=3600, now=lambda: NOW)


@pytest.fixture
async def served(
    kubelet: Kubelet, claims: ScriptedClaims, seen: Seen, health: ResourceHealth
) -> AsyncIterator[KubeletPlugin]:
    plugin = KubeletPlugin(kubelet.paths, claims, seen, warn=seen.warn, health=health)
    async with running(plugin):
        await until(kubelet.registration.exists)
        yield plugin


@contextlib.asynccontextmanager
async def stream(kubelet: Kubelet, version: str = "v1") -> AsyncIterator[Any]:
    module, stub = VERSIONS[version]
    # Without this option a client's window grows to some megabytes before a server has to wait.
    options = [("grpc.http2.bdp_probe", 0)]
    async with grpc.aio.insecure_channel(f"unix:{kubelet.service}", options=options) as channel:
        call = stub(channel).NodeWatchResources(module.NodeWatchResourcesRequest())
        try:
            yield call
        finally:
            call.cancel()


async def read(call: Any) -> Any:
    async with asyncio.timeout(10):
        answer = await call.read()
    assert answer is not grpc.aio.EOF, "the stream ended"
    return answer


def said(answer: Any) -> dict[str, int]:
    assert {item.device.pool_name for item in answer.devices} == {POOL}
    return {item.device.device_name: item.health for item in answer.devices}


async def test_the_kubelet_is_offered_the_stream_after_the_calls(kubelet: Kubelet, served: KubeletPlugin) -> None:
    versions = list((await kubelet.get_info()).supported_versions)
    assert versions == ["v1.DRAPlugin", "v1beta1.DRAPlugin", "v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth"]


@pytest.mark.parametrize("version", VERSIONS)
async def test_every_message_is_the_complete_list(
    kubelet: Kubelet, served: KubeletPlugin, health: ResourceHealth, version: str
) -> None:
    names = {device.name for device in WELL.devices()}
    assert len(names) == 4
    health.publish(WELL)
    async with stream(kubelet, version) as call:
        assert said(await read(call)) == dict.fromkeys(names, HEALTHY)
        health.publish(SICK)
        answer = await read(call)
        assert said(answer) == {**dict.fromkeys(names, HEALTHY), "gpu-1": UNHEALTHY}
        (item,) = [item for item in answer.devices if item.health == UNHEALTHY]
        assert item.message == "XID 79: the GPU has fallen off the bus"
        assert (item.last_updated_time, item.health_check_timeout_seconds) == (int(NOW), 3600)
        health.publish(WELL)
        assert said(await read(call)) == dict.fromkeys(names, HEALTHY)


async def test_before_the_first_reading_nothing_is_said(
    kubelet: Kubelet, served: KubeletPlugin, health: ResourceHealth
) -> None:
    async with stream(kubelet) as call:
        await until(lambda: health._changed)
        health.publish(WELL)
        assert len(said(await read(call))) == 4


async def test_it_is_sent_again_in_time_with_nothing_new(kubelet: Kubelet, claims: ScriptedClaims, seen: Seen) -> None:
    clock = iter(range(1000, 2000))
    health = ResourceHealth(POOL, timeout=1, now=lambda: float(next(clock)))
    health.publish(WELL)
    async with running(KubeletPlugin(kubelet.paths, claims, seen, warn=seen.warn, health=health)):
        await until(kubelet.registration.exists)
        async with stream(kubelet) as call:
            times = [(await read(call)).devices[0].last_updated_time for _ in range(3)]
    assert times == [1000, 1001, 1002]


@pytest.mark.parametrize(("timeout", "told"), [(0.4, 1), (30.0, 30), (7.6, 8)])
def test_the_time_limit_is_in_whole_seconds(timeout: float, told: int) -> None:
    health = ResourceHealth(POOL, timeout=timeout)
    assert health._message(WELL).devices[0].health_check_timeout_seconds == told


async def test_a_tenants_fault_is_told_of_its_mig_device_which_stays_healthy(
    kubelet: Kubelet, served: KubeletPlugin, health: ResourceHealth
) -> None:
    mig = GPUS[2].mig
    assert mig is not None
    device = MigDevice(gpu=GPUS[2], instance=mig.instances[0])
    fault = judge([Fact(Kind.XID, 31, "GPU instance 7")])
    health.publish(replace(WELL, device_health=MappingProxyType({device.name: fault})))
    async with stream(kubelet) as call:
        answer = await read(call)
    assert {*said(answer).values()} == {HEALTHY}
    assert [item.device.device_name for item in answer.devices if item.message] == [device.name]


def test_a_message_is_never_too_long() -> None:
    long = replace(BAD, reason="ä" * 2000)
    answer = ResourceHealth(POOL)._message(replace(WELL, health=MappingProxyType({GPUS[0].uuid: long})))
    assert all(len(item.message.encode()) <= 1024 for item in answer.devices)
    assert answer.devices[0].message.endswith("...")


async def test_a_stream_ends_with_its_caller(kubelet: Kubelet, served: KubeletPlugin, health: ResourceHealth) -> None:
    health.publish(WELL)
    async with stream(kubelet) as call, stream(kubelet) as other:
        await read(call)
        await read(other)
        assert len(health._changed) == 2
        call.cancel()
        await until(lambda: len(health._changed) == 1)
        health.publish(SICK)
        assert said(await read(other))["gpu-1"] == UNHEALTHY
    await until(lambda: not health._changed)


async def test_a_subscriber_that_reads_nothing_costs_one_message(
    kubelet: Kubelet, served: KubeletPlugin, health: ResourceHealth, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Messages are made when they can be sent: not for each of many Snapshots."""
    made = []
    message = health._message

    def count(snapshot: Snapshot) -> Any:
        made.append(snapshot)
        return message(snapshot)

    monkeypatch.setattr(health, "_message", count)
    gpus = build_gpus(parse_node("h100:64", load_products()), "n")
    many = [
        Snapshot(
            gpus=gpus, health=MappingProxyType({gpus[0].uuid: judge([Fact(Kind.PROBE, detail=f"{number:01000}")])})
        )
        for number in range(500)
    ]
    health.publish(many[0])
    async with stream(kubelet):
        await until(lambda: made)
        for snapshot in many[1:]:
            health.publish(snapshot)
            await asyncio.sleep(0.001)  # time enough to make one each
        assert len(made) < len(many) / 2
        async with stream(kubelet) as reader:  # others are served all the while
            assert (await read(reader)).devices[0].message.endswith("499")
    await until(lambda: not health._changed)


async def test_streams_do_not_hold_up_the_end(
    kubelet: Kubelet, claims: ScriptedClaims, seen: Seen, health: ResourceHealth
) -> None:
    plugin = KubeletPlugin(kubelet.paths, claims, seen, warn=seen.warn, health=health)
    health.publish(WELL)
    async with running(plugin):
        await until(kubelet.registration.exists)
        async with stream(kubelet) as call:
            await read(call)
            async with asyncio.timeout(10):
                await plugin.stop(3600)  # as long as the calls under way need, and a stream needs for ever
                assert await call.read() is grpc.aio.EOF
