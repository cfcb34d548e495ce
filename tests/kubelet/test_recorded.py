"""What a real kubelet asked, asked again: our answers carry what it was answered then."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from google.protobuf.json_format import MessageToDict, ParseDict

from driver._pb import dra_v1_pb2 as v1
from driver.claims.record import PreparedDevice
from driver.errors import ClaimRefusedError

if TYPE_CHECKING:
    from driver.kubelet.plugin import KubeletPlugin

    from .conftest import Kubelet, ScriptedClaims

RECORDING = Path(__file__).parent.parent / "data" / "recordings" / "kubelet-calls.jsonl"


def recorded(method: str) -> list[dict[str, Any]]:
    entries = [json.loads(line) for line in RECORDING.read_text().splitlines()]
    return [entry for entry in entries if entry.get("method") == method]


def outcome(entry: dict[str, Any]) -> Any:
    if "error" in entry:
        return ClaimRefusedError(entry["error"])
    return tuple(
        PreparedDevice(
            requests=tuple(device["request_names"]),
            pool=device["pool_name"],
            device=device["device_name"],
            cdi_ids=tuple(device["cdi_device_ids"]),
        )
        for device in entry.get("devices", ())
    )


def content(answer: Any) -> Any:
    return MessageToDict(answer, preserving_proto_field_name=True)


@pytest.mark.usefixtures("plugin")
@pytest.mark.parametrize("entry", recorded("NodePrepareResources"), ids=lambda entry: f"t={entry['t']}")
async def test_prepare(kubelet: Kubelet, claims: ScriptedClaims, entry: dict[str, Any]) -> None:
    claims.outcomes = {uid: outcome(one) for uid, one in entry["response"]["claims"].items()}
    request = ParseDict(entry["request"], v1.NodePrepareResourcesRequest())
    async with kubelet.connected() as stub:
        answer = await stub.NodePrepareResources(request, timeout=entry["deadline_s"])
    assert content(answer) == entry["response"]


@pytest.mark.usefixtures("plugin")
@pytest.mark.parametrize("entry", recorded("NodeUnprepareResources"), ids=lambda entry: f"t={entry['t']}")
async def test_unprepare(kubelet: Kubelet, entry: dict[str, Any]) -> None:
    request = ParseDict(entry["request"], v1.NodeUnprepareResourcesRequest())
    async with kubelet.connected() as stub:
        answer = await stub.NodeUnprepareResources(request, timeout=entry["deadline_s"])
    assert content(answer) == entry["response"]


async def test_registration(kubelet: Kubelet, plugin: KubeletPlugin) -> None:
    for entry in recorded("Registration.GetInfo"):
        told = content(await kubelet.get_info())
        assert told.keys() == entry["response"].keys()
        assert told["type"] == entry["response"]["type"]
        assert told["supported_versions"][0] == entry["response"]["supported_versions"][0]
    for entry in recorded("Registration.NotifyRegistrationStatus"):
        await kubelet.notify(entry["request"]["plugin_registered"])
    assert plugin.missing() == ""
