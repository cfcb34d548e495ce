"""Telling, in the agent as a whole: nothing of it is on the way of a call of the kubelet, and each part can be off."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import aiohttp

from driver.localcluster.apiserver import Fault
from tests.agent_process import DRA, Node, agent, nothing_missing
from tests.waiting import until


async def entries(node: Node, name: str) -> list[dict[str, Any]]:
    claim = await node.client.get(f"{DRA}/namespaces/default/resourceclaims/{name}")
    found: list[dict[str, Any]] = claim["status"].get("devices") or []
    return found


async def status(node: Node) -> dict[str, Any]:
    connector = aiohttp.UnixConnector(str(node.kubelet_root / "plugins/gpu.nvidia.com/status.sock"))
    async with aiohttp.ClientSession(connector=connector) as session, session.get("http://agent/status") as answer:
        found: dict[str, Any] = await answer.json()
        return found


async def test_a_prepare_waits_for_no_status(node: Node) -> None:
    release = asyncio.Event()
    fault = node.api.faults.add(Fault.on("patch", "resourceclaims/status", until=release))
    async with agent(node) as process:
        await node.register()
        await until(lambda: nothing_missing(process))
        for number in range(3):
            await node.prepare(await node.claim(f"c{number}", f"gpu-{number}"))
        await fault.reached.wait()
        await node.prepare(await node.claim("c3", "gpu-3"))
        assert await entries(node, "c3") == []
        node.api.faults.clear()
        release.set()
        for number in range(4):
            await until(lambda name=f"c{number}": entries(node, name))
        metrics = (await process.get("/metrics"))[1]
        assert 'gpu_dra_claim_status_writes_total{result="OK"}' in metrics
        assert await process.end() == 0


async def test_a_scrape_waits_for_no_gpu(node: Node) -> None:
    node.faults.write_text("nvml: {slow: 3600}\n")
    async with agent(node, nvml_timeout="0.5", telemetry_interval="1") as process:
        code, text = await process.get("/metrics")
        assert code == 200
        assert "DCGM_FI_DEV_GPU_UTIL" not in text
        await node.register()
        node.faults.unlink()

        async def told() -> bool:
            return "DCGM_FI_DEV_GPU_UTIL" in (await process.get("/metrics"))[1]

        await until(told)
        assert await process.end() == 0


async def test_each_part_can_be_off(node: Node) -> None:
    async with agent(node, telemetry="off", claim_status="off") as process:
        await node.register()
        await until(lambda: nothing_missing(process))
        await node.prepare(await node.claim("c", "gpu-0"))
        found = await status(node)  # a person is told all the same
        held = next(gpu for gpu in found["gpus"] if gpu["holders"])
        assert held["name"] == "gpu-0"
        assert held["use"]["utilization"] == 0
        assert held["holders"][0]["since"]
        text = (await process.get("/metrics"))[1]
        assert "DCGM_" not in text
        assert text.count("\ngpu_dra_gpu_healthy{") == len(found["gpus"])
        assert "nvidia_dra_requests_total" in text
        assert await entries(node, "c") == []
        assert await process.end() == 0
    assert not (node.kubelet_root / "plugins/gpu.nvidia.com/status.sock").exists()


async def test_the_status_of_an_agent_that_is_not_ready_says_so(node: Node) -> None:
    async with agent(node) as process:
        await process.listening()
        await until((node.kubelet_root / "plugins/gpu.nvidia.com/status.sock").exists)
        found = await status(node)
        assert found["agent"]["ready"] is False
        assert "kubelet" in found["agent"]["missing"]
        assert json.dumps(found)


async def test_S2_the_status_says_what_is_to_be_done_with_an_unreadable_record(node: Node) -> None:
    records = node.service.parent / "claims"
    async with agent(node) as process:
        await node.register()
        await until(lambda: nothing_missing(process))
        claim = await node.claim("c", "gpu-0")
        await node.prepare(claim)
        (records / f"{claim.uid}.json").write_text("garbage")
        refused = (await node.unprepare(claim))[claim.uid]
        (problem,) = (await status(node))["problems"]
        assert refused == f"{problem['object']}: {problem['message']}"
        [kept] = (records / "quarantine").iterdir()
        assert refused.endswith(f"uses the claim's GPUs: rm {kept}")
        kept.unlink()
        assert await node.unprepare(claim) == {claim.uid: ""}
        assert (await status(node))["problems"] == []

        async def messages() -> list[str]:
            events = (await node.client.list("/api/v1/namespaces/default/events"))["items"]
            return [one["message"] for one in events if one["reason"] == "RecordQuarantined"]

        assert await until(messages) == [refused]
        assert await process.end() == 0
