"""The agent as a process of its own that is a device plugin, or is beside another one."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import TYPE_CHECKING

import grpc.aio
import pytest

from driver._pb import device_plugin_v1beta1_pb2 as dp
from driver._pb import device_plugin_v1beta1_pb2_grpc as dp_grpc
from driver.inventory.faults import Faults, GpuFaults, save_faults
from tests.agent_process import Node, agent, nothing_missing
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextlib.contextmanager
def another_plugin(node: Node) -> Iterator[None]:
    """Serve as NVIDIA's device plugin does."""
    path = node.kubelet_root / "device-plugins/nvidia-gpu.sock"
    path.parent.mkdir(exist_ok=True)
    with socket.socket(socket.AF_UNIX) as peer:
        peer.bind(str(path))
        peer.listen()
        yield
    path.unlink()


async def test_K6_beside_another_device_plugin_nobody_else_gets_its_gpus(node: Node) -> None:
    def is_told() -> bool:
        return any("all GPUs are withheld from claims" in line for line in process.log)

    with another_plugin(node):
        async with agent(node) as process:
            await node.register()
            await until(lambda: nothing_missing(process))
            await until(is_told)
            assert "AnotherDevicePlugin" in await until(node.events)
            assert await node.devices() == []


async def test_K6_who_says_that_dra_has_them_is_warned(node: Node) -> None:
    with another_plugin(node):
        async with agent(node, ownership="dra") as process:
            await node.register()
            await until(node.devices)
            await until(lambda: any("may be given twice" in line for line in process.log))


async def test_K6_gpus_are_withdrawn_when_another_device_plugin_comes(node: Node) -> None:
    async with agent(node):
        await node.register()
        await until(node.devices)
        with another_plugin(node):

            async def withdrawn() -> bool:
                return await node.devices() == []

            await until(withdrawn)


# --- device plugin ----------------------------------------------------------------------------------------------------


async def test_H9_preferred_allocation_asks_nothing_of_a_driver_that_is_slow(node: Node) -> None:
    (node.kubelet_root / "device-plugins").mkdir()
    socket_path = node.kubelet_root / "device-plugins/nvidia-gpu.sock"
    async with agent(node, gpus="a100-80:8@pairs", ownership="device-plugin") as process:
        await until(socket_path.exists)
        async with grpc.aio.insecure_channel(f"unix:{socket_path}") as channel:
            stub = dp_grpc.DevicePluginStub(channel)
            listed = await anext(aiter(stub.ListAndWatch(dp.Empty())))
            ids = [device.ID for device in listed.devices]
            assert len(ids) == 8
            save_faults(node.faults, Faults(nvml_slow=3600))
            await until(lambda: process.logged("faults of fake GPUs"))
            wanted = dp.ContainerPreferredAllocationRequest(available_deviceIDs=ids, allocation_size=4)
            answer = await stub.GetPreferredAllocation(
                dp.PreferredAllocationRequest(container_requests=[wanted] * 16), timeout=30
            )
    assert [len(set(one.deviceIDs)) for one in answer.container_responses] == [4] * 16


async def test_the_device_plugins_config_says_what_is_healthy(node: Node) -> None:
    (node.kubelet_root / "device-plugins").mkdir()
    config = node.root / "config.yaml"
    config.write_text("version: v1\nhealth: {ignoredXIDs: [79]}\n")

    async def noticed() -> bool:
        return "GPUHealthNotice" in await node.events()

    async with agent(node, gpus="h100:2", device_plugin_config=str(config)):
        path = node.kubelet_root / "device-plugins/nvidia-gpu.sock"
        await until(path.exists)
        async with grpc.aio.insecure_channel(f"unix:{path}") as channel:
            lists = aiter(dp_grpc.DevicePluginStub(channel).ListAndWatch(dp.Empty()))
            first, second = (device.ID for device in (await anext(lists)).devices)
            save_faults(node.faults, Faults(gpus={first: GpuFaults(xids=(79,))}))
            await until(noticed)
            assert "GPUUnhealthy" not in await node.events()
            config.write_text("version: v1\n")
            async with asyncio.timeout(30):
                async for listed in lists:
                    health = {device.ID: device.health for device in listed.devices}
                    if health == {first: "Unhealthy", second: "Healthy"}:
                        break
                else:
                    pytest.fail("the list ended")
