from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING

import pytest

from driver._pb import device_plugin_v1beta1_pb2 as pb
from driver.errors import DeviceNotReadyError
from driver.model.health import Health
from tests.kubelet.device_plugin.support import GPU, Kubelet, Plugins, drained, ids_of, offered
from tests.unit.deviceplugin.helpers import config, shared, snapshot
from tests.waiting import until

if TYPE_CHECKING:
    from driver.cdi.spec import ContainerEdits
    from driver.model.device import Device


# --- the list ---------------------------------------------------------------------------------------------------------


async def test_the_kubelet_gets_the_whole_list_with_numa_nodes(plugins: Plugins, kubelet: Kubelet) -> None:
    node = snapshot("h100:8")
    await offered(plugins, kubelet, node)
    assert plugins.heard.registered == [(GPU, True)]
    assert kubelet.manager.topology(GPU, node.gpus[7].uuid) == (node.gpus[7].numa_node,)
    assert plugins.plugins.missing() == ""


async def test_health_and_ownership_reach_every_open_list_complete_and_in_order(
    plugins: Plugins, kubelet: Kubelet
) -> None:
    node = snapshot("h100:3")
    await offered(plugins, kubelet, node)
    async with plugins.stub() as first, plugins.stub() as second:
        streams = [stub.ListAndWatch(pb.Empty()) for stub in (first, second)]
        for stream in streams:
            assert [one.ID for one in (await stream.read()).devices] == ids_of(node)
        health = {node.gpus[1].uuid: Health(healthy=False, reason="XID 79")}
        plugins.plugins.publish(replace(node, health=MappingProxyType(health)))
        for stream in streams:
            assert [one.health for one in (await stream.read()).devices] == ["Healthy", "Unhealthy", "Healthy"]
        plugins.plugins.publish(drained(node, 0))
        for stream in streams:
            assert [one.ID for one in (await stream.read()).devices] == ids_of(node)[1:]
    await until(lambda: kubelet.counts() == (2, 2))


async def test_a_list_ends_with_its_caller(plugins: Plugins, kubelet: Kubelet) -> None:
    await offered(plugins, kubelet, snapshot("h100"))
    service = next(iter(plugins.plugins._served.values())).service
    before = service.listeners.count
    async with plugins.stub() as stub:
        await stub.ListAndWatch(pb.Empty()).read()
        assert service.listeners.count == before + 1
    await until(lambda: service.listeners.count == before)


async def test_a_resource_that_is_gone_counts_none(plugins: Plugins, kubelet: Kubelet) -> None:
    node = snapshot("h100@mig=1g.10gb*2,h100")
    await offered(plugins, kubelet, node, mig_strategy="mixed")
    assert kubelet.counts("nvidia.com/mig-1g.10gb") == (2, 2)
    plugins.plugins.publish(snapshot("h100:2"))
    await until(lambda: kubelet.counts("nvidia.com/mig-1g.10gb") == (0, 0) and kubelet.counts() == (2, 2))


async def test_another_config_takes_effect(plugins: Plugins, kubelet: Kubelet) -> None:
    await offered(plugins, kubelet, snapshot("h100:2"))
    plugins.plugins.configure(config(shared(4, rename="slice")))
    await until(lambda: kubelet.counts("nvidia.com/slice") == (8, 8) and kubelet.counts() == (0, 0))


async def test_what_can_not_be_offered_is_told_once(plugins: Plugins, kubelet: Kubelet) -> None:
    await offered(plugins, kubelet, snapshot("h100:2"), shared(2, devices=5))
    plugins.plugins.publish(snapshot("h100:2", unhealthy={0: "XID 79"}))
    await until(lambda: kubelet.counts() == (4, 2))
    assert [reason for reason, _ in plugins.heard.events] == ["DevicePluginProblem"]


# --- Allocate ---------------------------------------------------------------------------------------------------------


async def test_allocate_by_cdi_names_that_the_static_file_has(plugins: Plugins, kubelet: Kubelet) -> None:
    node = snapshot("h100:4")
    await offered(plugins, kubelet, node)
    first, second = await plugins.allocate(ids_of(node)[:2], ids_of(node)[3:])
    assert [one.name for one in first.cdi_devices] == [
        f"k8s.device-plugin.nvidia.com/gpu={uuid}" for uuid in ids_of(node)[:2]
    ]
    assert not first.envs
    assert not first.mounts
    assert not first.annotations
    assert len(second.cdi_devices) == 1
    spec = json.loads((plugins.cdi / "k8s.device-plugin.nvidia.com-gpu.json").read_bytes())
    assert [one["name"] for one in spec["devices"]] == ids_of(node)
    assert plugins.heard.given == [set(ids_of(node)) - {ids_of(node)[2]}]


@pytest.mark.parametrize(
    ("flags", "env", "targets"),
    [
        ({"device_list_strategy": "envvar"}, "{0},{1}", []),
        ({"device_list_strategy": "envvar", "device_id_strategy": "index"}, "0,1", []),
        (
            {"device_list_strategy": "volume-mounts"},
            "/var/run/nvidia-container-devices",
            ["/var/run/nvidia-container-devices/{0}", "/var/run/nvidia-container-devices/{1}"],
        ),
    ],
)
async def test_the_older_strategies(
    plugins: Plugins, kubelet: Kubelet, flags: dict[str, str], env: str, targets: list[str]
) -> None:
    node = snapshot("h100:2")
    await offered(plugins, kubelet, node, **flags)
    (answer,) = await plugins.allocate(ids_of(node))
    assert dict(answer.envs) == {"NVIDIA_VISIBLE_DEVICES": env.format(*ids_of(node))}
    assert [mount.container_path for mount in answer.mounts] == [one.format(*ids_of(node)) for one in targets]
    assert {mount.host_path for mount in answer.mounts} <= {"/dev/null"}
    assert not answer.cdi_devices


@pytest.mark.parametrize(
    ("strategies", "env", "targets"),
    [
        ("envvar", {"NVIDIA_VISIBLE_DEVICES": "0", "NVIDIA_IMEX_CHANNELS": "0"}, []),
        ("volume-mounts", {"NVIDIA_VISIBLE_DEVICES": "/var/run/nvidia-container-devices"}, ["0", "imex/0"]),
        (
            "volume-mounts,envvar",
            {"NVIDIA_VISIBLE_DEVICES": "/var/run/nvidia-container-devices", "NVIDIA_IMEX_CHANNELS": "0"},
            ["0", "imex/0"],
        ),
    ],
)
async def test_imex_channels_by_the_older_strategies(
    plugins: Plugins, kubelet: Kubelet, strategies: str, env: dict[str, str], targets: list[str]
) -> None:
    node = snapshot("h100")
    flags = {"device_list_strategy": strategies, "device_id_strategy": "index"}
    await offered(plugins, kubelet, node, {"imex": {"channelIDs": [0]}}, **flags)
    (answer,) = await plugins.allocate(ids_of(node))
    assert dict(answer.envs) == env
    folder = "/var/run/nvidia-container-devices"
    assert [mount.container_path for mount in answer.mounts] == [f"{folder}/{one}" for one in targets]


async def test_annotations_and_several_strategies_at_once(plugins: Plugins, kubelet: Kubelet) -> None:
    node = snapshot("h100:2")
    strategies = {"device_list_strategy": "cdi-annotations,envvar", "cdi_annotation_prefix": "example.com/"}
    await offered(plugins, kubelet, node, {"flags": {"gdsEnabled": True}}, **strategies)
    (answer,) = await plugins.allocate(ids_of(node))
    ((key, value),) = answer.annotations.items()
    assert key.startswith("example.com/nvidia-device-plugin_")
    assert value == ",".join(f"k8s.device-plugin.nvidia.com/gpu={uuid}" for uuid in ids_of(node))
    assert dict(answer.envs) == {"NVIDIA_VISIBLE_DEVICES": ",".join(ids_of(node)), "NVIDIA_GDS": "enabled"}


async def test_with_cdi_what_is_beside_gpus_is_given_too(plugins: Plugins, kubelet: Kubelet) -> None:
    for path in ("dev/infiniband/uverbs0", "dev/nvidia-fs0", "etc/cufile.json"):
        (plugins.root / path).parent.mkdir(parents=True, exist_ok=True)
        (plugins.root / path).touch()
    document = {"flags": {"gdsEnabled": True, "mofedEnabled": True}, "imex": {"channelIDs": [0]}}
    node = snapshot("h100:2")
    await offered(plugins, kubelet, node, document)
    (answer,) = await plugins.allocate(ids_of(node))
    given = [(one.container_path, one.host_path, one.permissions) for one in answer.devices]
    assert given == [
        (f"/dev/{name}", f"{plugins.root}/dev/{name}", "rw") for name in ("nvidia-fs0", "infiniband/uverbs0")
    ]
    (mount,) = answer.mounts
    assert (mount.container_path, mount.host_path, mount.read_only) == (
        "/etc/cufile.json",
        f"{plugins.root}/etc/cufile.json",
        True,
    )


async def test_an_imex_channel_that_is_required_is_waited_for(plugins: Plugins, kubelet: Kubelet) -> None:
    node = snapshot("h100:2")
    await offered(plugins, kubelet, node, {"imex": {"channelIDs": [0], "required": True}})
    code, message = await plugins.refused(ids_of(node))
    assert code == "UNAVAILABLE"
    assert "IMEX channel 0 is required" in message
    channel = plugins.root / "dev/nvidia-caps-imex-channels/channel0"
    channel.parent.mkdir(parents=True)
    channel.touch()
    (answer,) = await plugins.allocate(ids_of(node))
    assert [one.host_path for one in answer.devices] == [str(channel)]


async def test_replicas_of_one_gpu_give_it_once(plugins: Plugins, kubelet: Kubelet) -> None:
    node = snapshot("h100:2")
    await offered(plugins, kubelet, node, shared(4))
    first = ids_of(node)[0]
    (answer,) = await plugins.allocate([f"{first}::0", f"{first}::3"])
    assert [one.name for one in answer.cdi_devices] == [f"k8s.device-plugin.nvidia.com/gpu={first}"]


async def test_bad_requests_are_refused_and_say_why(plugins: Plugins, kubelet: Kubelet) -> None:
    node = snapshot("h100:5", dra=(3,), unhealthy={2: "XID 79: fallen off the bus"})
    await offered(plugins, kubelet, node)
    uuids = ids_of(node)
    table = [
        ([["GPU-unknown"]], "NOT_FOUND", "GPU-unknown is not on this node"),
        ([[""]], "NOT_FOUND", "is not on this node"),
        ([[f"{uuids[0]}::1"]], "NOT_FOUND", "is not one of this resource"),
        ([[uuids[3]]], "NOT_FOUND", "is not offered through the device-plugin API: its GPU's owner is dra"),
        ([[uuids[2]]], "FAILED_PRECONDITION", "is unhealthy: XID 79: fallen off the bus"),
        ([[uuids[0], uuids[0]]], "INVALID_ARGUMENT", f"asked for twice: {uuids[0]}"),
        ([[uuids[0]], [uuids[0]]], "INVALID_ARGUMENT", "by two containers"),
        ([[uuids[0]], ["GPU-unknown"]], "NOT_FOUND", "GPU-unknown"),
        ([[*uuids, *uuids]], "INVALID_ARGUMENT", "10 devices are asked for, but there are 4"),
        ([[]], "INVALID_ARGUMENT", "no device is asked for"),
    ]
    for containers, code, words in table:
        found_code, message = await plugins.refused(*containers)
        assert (found_code, words in message) == (code, True), message
        assert message.startswith(f"{GPU}: ")
    assert plugins.heard.refused == [code for _, code, _ in table if code]
    assert plugins.heard.given == []


async def test_several_replicas_are_refused_where_so_set(plugins: Plugins, kubelet: Kubelet) -> None:
    document = shared(4)
    document["sharing"]["timeSlicing"]["failRequestsGreaterThanOne"] = True
    node = snapshot("h100:2")
    await offered(plugins, kubelet, node, document)
    code, message = await plugins.refused([f"{uuid}::0" for uuid in ids_of(node)])
    assert code == "INVALID_ARGUMENT"
    assert "ask for 1" in message
    await plugins.allocate([f"{ids_of(node)[0]}::0"])


async def test_K6_a_gpu_is_refused_from_the_moment_that_it_is_withdrawn(plugins: Plugins, kubelet: Kubelet) -> None:
    node = snapshot("h100:2")
    await offered(plugins, kubelet, node)
    plugins.plugins.publish(drained(node, 0))  # the list is not changed before the loop turns
    code, message = await plugins.refused([ids_of(node)[0]])
    assert code in ("FAILED_PRECONDITION", "NOT_FOUND")
    assert "its GPU's owner is withheld, and is to be dra" in message


async def test_C1_an_emptied_cdi_directory_is_filled_again_by_allocate(plugins: Plugins, kubelet: Kubelet) -> None:
    node = snapshot("h100:2")
    await offered(plugins, kubelet, node)
    (file,) = plugins.cdi.iterdir()
    before = file.read_bytes()
    file.unlink()
    await plugins.allocate(ids_of(node)[:1])
    assert file.read_bytes() == before


@pytest.mark.parametrize("which", [[0], [0, 1]])
async def test_C2_what_is_not_ready_yet_is_unhealthy_rather_than_refused(
    plugins: Plugins, kubelet: Kubelet, monkeypatch: pytest.MonkeyPatch, which: list[int]
) -> None:
    """The kubelet fails a pod for good whose Allocate is refused; one that waits for a healthy GPU is fine."""
    monkeypatch.setattr("driver.kubelet.device_plugin.plugins._FILES_AGAIN", 0.01)
    node = snapshot("h100:2")
    absent = {node.gpus[index].uuid for index in which}
    make = plugins.files._edits.device

    def device(one: Device) -> ContainerEdits:
        if one.gpu.uuid in absent:
            raise DeviceNotReadyError(f"/dev/nvidia{one.gpu.minor} is not there (yet)")
        return make(one)

    monkeypatch.setattr(plugins.files._edits, "device", device)
    plugins.plugins.configure(config())
    plugins.plugins.publish(node)
    await until(lambda: kubelet.counts() == (2, 2 - len(which)))
    code, message = await plugins.refused([node.gpus[0].uuid])
    assert code == "FAILED_PRECONDITION"
    assert "is unhealthy" in message
    absent.clear()
    await until(lambda: kubelet.counts() == (2, 2))
    await plugins.allocate(ids_of(node))


async def test_without_cdi_no_file_is_waited_for(
    plugins: Plugins, kubelet: Kubelet, monkeypatch: pytest.MonkeyPatch
) -> None:
    def common() -> ContainerEdits:
        raise DeviceNotReadyError("no libraries yet")

    monkeypatch.setattr(plugins.files._edits, "common", common)
    node = snapshot("h100:2")
    await offered(plugins, kubelet, node, device_list_strategy="envvar")
    await plugins.allocate(ids_of(node))


async def test_preferred_allocation_and_pre_start(plugins: Plugins, kubelet: Kubelet) -> None:
    node = snapshot("h100:4")
    await offered(plugins, kubelet, node)
    uuids = ids_of(node)
    async with plugins.stub() as stub:
        wanted = pb.ContainerPreferredAllocationRequest(
            available_deviceIDs=uuids, must_include_deviceIDs=[uuids[2]], allocation_size=2
        )
        answer = await stub.GetPreferredAllocation(pb.PreferredAllocationRequest(container_requests=[wanted] * 2))
        assert [len(one.deviceIDs) for one in answer.container_responses] == [2, 2]
        assert uuids[2] in answer.container_responses[0].deviceIDs
        options = await stub.GetDevicePluginOptions(pb.Empty())
        assert (options.pre_start_required, options.get_preferred_allocation_available) == (False, True)
        await stub.PreStartContainer(pb.PreStartContainerRequest(devices_ids=uuids))


async def test_a_thousand_replicas_in_one_list(plugins: Plugins, kubelet: Kubelet) -> None:
    await offered(plugins, kubelet, snapshot("l4:4"), shared(250))
    assert kubelet.counts() == (1000, 1000)
    async with asyncio.timeout(5), plugins.stub() as stub:
        assert len({one.ID for one in (await stub.ListAndWatch(pb.Empty()).read()).devices}) == 1000
