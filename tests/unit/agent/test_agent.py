"""The agent as a process of its own, between a real API server of the embedded cluster and a kubelet's calls."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import socket

import grpc.aio
import pytest

from driver._pb import dra_v1_pb2 as v1
from driver.inventory.faults import Faults, GpuFaults, save_faults
from tests.agent_process import DRA, NODE, Node, Process, agent, nothing_missing
from tests.kubelet.pods import Lister
from tests.waiting import until

# --- life -------------------------------------------------------------------------------------------------------------


async def test_from_start_to_end(node: Node) -> None:
    async with agent(node) as process:
        assert (await process.get("/healthz"))[0] == 200
        info = await node.register()
        assert info.endpoint == str(node.service)
        assert await until(node.devices) == ["gpu-0", "gpu-1", "gpu-2", "gpu-3"]
        await until(lambda: process.get("/readyz"))
        assert await process.missing() == {}
        claim = await node.claim("c1", "gpu-1", "gpu-2")
        prepared = (await node.prepare(claim))[claim.uid]
        assert prepared.error == ""
        assert [device.device_name for device in prepared.devices] == ["gpu-1", "gpu-2"]
        assert [list(device.request_names) for device in prepared.devices] == [["gpu"], ["gpu"]]
        [cdi_file] = list(node.cdi.iterdir())
        assert claim.uid in cdi_file.name
        metrics = (await process.get("/metrics"))[1]
        assert 'nvidia_dra_requests_total{driver="gpu.nvidia.com",operation="prepare"} 1.0' in metrics
        assert f'nvidia_dra_prepared_devices{{device_type="gpu",driver="gpu.nvidia.com",node="{NODE}"}} 2.0' in metrics
        assert "gpu_dra_registered 1.0" in metrics
        assert 'gpu_dra_slice_writes_total{verb="create"} 1.0' in metrics
        assert await node.unprepare(claim) == {claim.uid: ""}
        assert list(node.cdi.iterdir()) == []
        assert await process.end() == 0
    assert not node.service.exists()
    assert not node.registration.exists()
    assert await node.devices() == ["gpu-0", "gpu-1", "gpu-2", "gpu-3"]
    assert "Traceback" not in "".join(process.log)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_ends_it_even_with_a_call_under_way(node: Node, number: int) -> None:
    save_faults(node.faults, Faults(nvml_down=True))
    async with agent(node, shutdown_timeout="100ms") as process:
        await node.register()
        claim = await node.claim("c1", "gpu-0")
        call = asyncio.create_task(node.prepare(claim))
        await until(lambda: process.logged("Trying again"))
        assert await process.end(number) == 0
        with pytest.raises(grpc.aio.AioRpcError):
            await call
    assert not node.service.exists()
    assert not node.registration.exists()


async def test_a_hang_up_reads_the_gpus_again(node: Node) -> None:
    """As NVIDIA's device plugin is told to reload; by default it would kill the process."""
    async with agent(node) as process:
        await node.register()
        await until(node.devices)
        read = await _read_at(process)
        os.kill(process.child.pid, signal.SIGHUP)
        await until(lambda: process.logged("told to look again"))
        await until(lambda: _was_read_after(process, read))
        assert (await process.get("/healthz"))[0] == 200
        assert await process.end() == 0


async def _read_at(process: Process) -> float:
    metrics = (await process.get("/metrics"))[1]
    return float(metrics.partition("\ngpu_dra_inventory_read_timestamp_seconds ")[2].partition("\n")[0])


async def _was_read_after(process: Process, moment: float) -> bool:
    return await _read_at(process) > moment


async def test_every_line_of_a_call_has_its_id(node: Node) -> None:
    async with agent(node, log_format="json", log_level="debug") as process:
        await node.register()
        await until(node.devices)
        await node.prepare(v1.Claim(namespace="default", name="absent", uid="some-uid"))
        await until(lambda: process.logged("NodePrepareResources took"))
        await until(lambda: process.logged("does not exist any more"))  # what became of it is logged after the answer
    lines = [json.loads(line) for line in process.log]
    [call] = {line["call"] for line in lines if "NodePrepareResources" in line["message"]}
    about = [line["message"] for line in lines if line.get("call") == call]
    assert any("absent" in message and "does not exist any more" in message for message in about)


# --- what it can't survive --------------------------------------------------------------------------------------------


async def test_a_port_in_use_ends_it_with_one_line(node: Node) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        async with agent(node, http_address=f"127.0.0.1:{port}") as process:
            assert await process.child.wait() == 1
    [line] = [line for line in process.log if "CRITICAL" in line]
    assert f"cannot go on: cannot serve health and metrics on 127.0.0.1:{port}" in line
    assert "Traceback" not in "".join(process.log)


async def test_K3_a_live_instance_ends_the_second(node: Node) -> None:
    async with agent(node) as first:
        await node.register()
        async with agent(node) as second:
            assert await second.child.wait() == 1
        assert "another process serves" in second.logged("CRITICAL")
        assert (await first.get("/healthz"))[0] == 200
        assert node.registration.exists()
        assert await node.unprepare(v1.Claim(uid="u")) == {"u": ""}


async def test_a_state_directory_that_cannot_be_used_ends_it(node: Node) -> None:
    (node.kubelet_root / "plugins").write_text("")
    async with agent(node) as process:
        assert await process.child.wait() == 1
    assert str(node.kubelet_root / "plugins") in process.logged("cannot go on")


@pytest.mark.parametrize(
    ("flag", "words"),
    [
        ("kubeconfig", "absent"),
        ("boot_id_file", "cannot read the boot id from"),
        ("gpus", "h1000"),
    ],
)
async def test_settings_that_cannot_work_end_it(node: Node, flag: str, words: str) -> None:
    value = "h1000:2" if flag == "gpus" else str(node.root / "absent")
    async with agent(node, **{flag: value}) as process:
        assert await process.child.wait() == 2
    assert words in process.logged("CRITICAL")


# --- what it survives -------------------------------------------------------------------------------------------------


async def test_K3_a_killed_agents_sockets_are_replaced(node: Node) -> None:
    async with agent(node) as first:
        await node.register()
        await first.end(signal.SIGKILL)
    assert node.service.exists()
    async with agent(node) as second:
        await until(lambda: second.logged("-reg.sock") and second.logged("serving"))
        await until(lambda: len([line for line in second.log if " serving /" in line]) == 2)
        await node.register()
        assert await second.end() == 0


async def test_the_api_server_is_down_at_the_start(node: Node) -> None:
    await node.api.stop()
    async with agent(node) as process:
        await node.register()
        assert await node.unprepare(v1.Claim(namespace="default", name="c", uid="gone")) == {"gone": ""}
        answer = await node.prepare(v1.Claim(namespace="default", name="c", uid="u1"), timeout=2)
        assert "127.0.0.1" in answer["u1"].error
        await until(lambda: process.logged("ResourceSlice"))
        assert set(await process.missing()) == {"slices"}
        await node.api.start()
        assert len(await until(node.devices)) == 4
        await until(lambda: nothing_missing(process))


async def test_an_api_server_that_never_answers_holds_up_nothing(node: Node) -> None:
    await node.api.stop()
    with socket.create_server(("127.0.0.1", int(node.api.url.rpartition(":")[2]))):
        async with agent(node) as process:
            await node.register()
            assert await node.unprepare(v1.Claim(namespace="default", name="c", uid="gone")) == {"gone": ""}
            assert set(await process.missing()) == {"slices"}
            call = asyncio.create_task(node.prepare(v1.Claim(namespace="default", name="c", uid="u1")))
            await until(lambda: process.logged("serving"))
            assert await process.end() == 0
            await asyncio.wait([call])
            assert isinstance(call.exception(), grpc.aio.AioRpcError)


async def test_the_kubelets_registry_comes_late(node: Node) -> None:
    (node.kubelet_root / "plugins_registry").rmdir()
    async with agent(node) as process:
        await until(node.devices)
        assert "plugins_registry" in (await process.missing())["kubelet"]
        (node.kubelet_root / "plugins_registry").mkdir()
        await node.register()
        await until(lambda: nothing_missing(process))


async def test_H6_no_nvml_library_means_no_devices_and_K2_unprepare_works(node: Node) -> None:
    empty = node.root / "empty"
    empty.mkdir()
    async with agent(node, gpus="", inventory="nvml", driver_root=str(empty)) as process:
        await node.register()
        assert (await process.get("/healthz"))[0] == 200
        await until(node.slices)
        assert await node.devices() == []
        assert "libnvidia-ml" in (await process.missing())["inventory"]
        assert await node.unprepare(v1.Claim(namespace="default", name="c", uid="u")) == {"u": ""}
        assert "InventoryProblem" in await until(node.events)


async def test_H8_a_slow_driver_blocks_neither_health_nor_unprepare(node: Node) -> None:
    save_faults(node.faults, Faults(nvml_slow=3600))
    async with agent(node, nvml_timeout="600s") as process:
        await node.register()
        assert (await process.get("/healthz"))[0] == 200
        assert "have not been read yet" in (await process.missing())["inventory"]
        assert await node.unprepare(v1.Claim(namespace="default", name="c", uid="u")) == {"u": ""}
        answer = await node.prepare(v1.Claim(namespace="default", name="c", uid="u"), timeout=0.5)
        assert "has not told yet which GPUs there are" in answer["u"].error
        assert await process.end() == 0


async def test_C1_a_cdi_file_that_somebody_removes_is_rebuilt_without_a_call(node: Node) -> None:
    async with agent(node) as process:
        await node.register()
        await until(node.devices)
        claim = await node.claim("c1", "gpu-0")
        await node.prepare(claim)
        (file,) = node.cdi.iterdir()
        content = file.read_bytes()
        file.unlink()
        await until(file.exists)
        assert file.read_bytes() == content
        shutil.rmtree(node.cdi)
        await until(file.exists)
        assert await node.unprepare(claim) == {claim.uid: ""}
        assert list(node.cdi.iterdir()) == []
        assert not process.logged("CRITICAL")


async def test_A10_a_lost_gpu_keeps_its_place_and_is_tainted(node: Node) -> None:
    async with agent(node) as process:
        await node.register()
        await until(node.devices)
        save_faults(node.faults, Faults())
        uuid = next(
            device["attributes"]["uuid"]["string"]
            for spec in await node.slices()
            for device in spec["devices"]
            if device["name"] == "gpu-2"
        )
        save_faults(node.faults, Faults(gpus={uuid: GpuFaults(lost=True)}))

        async def tainted() -> list[str]:
            return [
                device["name"] for spec in await node.slices() for device in spec["devices"] if device.get("taints")
            ]

        assert await until(tainted) == ["gpu-2"]
        assert await node.devices() == ["gpu-0", "gpu-1", "gpu-2", "gpu-3"]
        claim = await node.claim("c1", "gpu-2")
        assert "unhealthy" in (await node.prepare(claim))[claim.uid].error
        node.faults.unlink()
        await until(lambda: process.logged("GPURecovered"))
        assert (await node.prepare(claim))[claim.uid].error == ""


async def test_P7_nvml_comes_back_within_a_call(node: Node) -> None:
    save_faults(node.faults, Faults(nvml_down=True))
    async with agent(node) as process:
        await node.register()
        claim = await node.claim("c1", "gpu-0")
        call = asyncio.create_task(node.prepare(claim))
        await until(lambda: process.logged("Trying again"))
        node.faults.unlink()
        assert (await call)[claim.uid].error == ""


async def test_S1_an_unreadable_record_is_told(node: Node) -> None:
    records = node.service.parent / "claims"
    records.mkdir(parents=True)
    (records / "some-uid.json").write_text("{")
    async with agent(node) as process:
        await node.register()

        async def told() -> bool:
            return "RecordQuarantined" in await node.events()

        await until(told)
        assert "gpu_dra_quarantined_records 1.0" in (await process.get("/metrics"))[1]


async def test_S1_what_a_pod_uses_is_not_given_up_though_its_record_is_lost_or_broken(node: Node) -> None:
    """The kubelet names claims, not UIDs; and of these claims no sound record tells both."""
    async with agent(node, dynamic_mig="0") as first:
        await node.register()
        await until(lambda: nothing_missing(first))
        lost, broken = await node.claim("lost", "gpu-0-mig-1g10gb-19-0"), await node.claim("broken", "gpu-1")
        assert not any(entry.error for entry in (await node.prepare(lost, broken)).values())
        await first.end()
    records = node.service.parent / "claims"
    (records / f"{lost.uid}.json").unlink()
    path = records / f"{broken.uid}.json"
    path.write_bytes(path.read_bytes().replace(b'"sha256": "', b'"sha256": "0'))
    await node.client.delete(f"{DRA}/namespaces/default/resourceclaims/broken")
    lister = Lister()
    async with lister.serving(node.kubelet_root / "pod-resources/kubelet.sock"):
        lister.use("lost", "default")
        lister.use("broken", "default")
        async with agent(node, dynamic_mig="0") as second:
            await until(lambda: second.logged("but a pod may use it: it is left for now"))
            other = await node.claim("other", "gpu-1")
            assert "is held by" in (await node.prepare(other, timeout=2))[other.uid].error
            lister.pods.clear()
            assert (await node.prepare(other))[other.uid].error == ""


async def test_S7_a_gone_claim_is_given_up_unless_a_pod_uses_it(node: Node) -> None:
    async with agent(node) as first:
        await node.register()
        await until(node.devices)
        claim = await node.claim("c1", "gpu-0")
        assert (await node.prepare(claim))[claim.uid].error == ""
        await first.end()
    await node.client.delete(f"{DRA}/namespaces/default/resourceclaims/c1")
    record = node.service.parent / "claims" / f"{claim.uid}.json"
    lister = Lister()
    async with lister.serving(node.kubelet_root / "pod-resources/kubelet.sock"):
        lister.use("c1", "default")
        async with agent(node):
            await node.register()
            await until(lambda: lister.asked)
            assert record.exists()
        lister.pods.clear()
        async with agent(node):
            await until(lambda: not record.exists())
            assert list(node.cdi.iterdir()) == []


async def test_C1_cdi_files_are_rebuilt_at_the_start(node: Node) -> None:
    async with agent(node) as first:
        await node.register()
        await until(node.devices)
        claim = await node.claim("c1", "gpu-0")
        assert (await node.prepare(claim))[claim.uid].error == ""
        await first.end()
    [file] = list(node.cdi.iterdir())
    before = file.read_bytes()
    file.unlink()
    async with agent(node):
        await until(file.exists)
        assert file.read_bytes() == before


async def test_C6_a_runtime_with_cdi_off_is_told(node: Node) -> None:
    config = node.root / "config.toml"
    config.write_text('version = 2\n[plugins."io.containerd.grpc.v1.cri"]\nenable_cdi = false\n')
    async with agent(node, container_runtime_configs=str(config)) as process:

        async def told() -> bool:
            return "CDINotEnabled" in await node.events()

        await until(told)
        assert "enable_cdi" in process.logged("WARNING driver.agent.agent")


async def test_a_rolling_update_shares_the_state(node: Node) -> None:
    plugins = node.service.parent
    async with agent(node, pod_uid="old") as old:
        await until((node.kubelet_root / "plugins_registry/gpu.nvidia.com-old-reg.sock").exists)
        await until(node.devices)
        claim = await node.claim("c1", "gpu-0")
        first = await node.prepare(claim, service=plugins / "dra-old.sock")
        async with agent(node, pod_uid="new"):
            await until((node.kubelet_root / "plugins_registry/gpu.nvidia.com-new-reg.sock").exists)
            assert await node.prepare(claim, service=plugins / "dra-new.sock") == first
            other = await node.claim("c2", "gpu-0")
            assert claim.uid in (await node.prepare(other, service=plugins / "dra-new.sock"))[other.uid].error
            assert await old.end() == 0
            assert await node.unprepare(claim, service=plugins / "dra-new.sock") == {claim.uid: ""}
            assert (await node.prepare(other, service=plugins / "dra-new.sock"))[other.uid].error == ""


async def test_idle_means_no_write(node: Node) -> None:
    async with agent(node, resync_interval="1s") as process:
        await node.register()
        await until(lambda: nothing_missing(process))
        await until(lambda: node.api.audit.counts["patch", "nodes"])  # the labels
        before = len(node.api.audit.calls)
        reads = (await process.get("/metrics"))[1]
        stamp = next(line for line in reads.splitlines() if line.startswith("gpu_dra_inventory_read_timestamp"))

        async def read_again() -> bool:
            return stamp not in (await process.get("/metrics"))[1]

        await until(read_again)
        assert [call for call in list(node.api.audit.calls)[before:] if call.writes] == []
