"""Claims of pods on a node: what a plugin is called with, and when."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from driver.localcluster.apiserver.objects import clone
from driver.localcluster.kubelet.times import Times
from tests.waiting import until

from .plugins import DraPlugin, device

if TYPE_CHECKING:
    from .conftest import Bench


async def running(bench: Bench, name: str) -> None:
    await until(lambda: bench.phase(name) == "Running" and bench.status(name)["ready"], f"{name} runs")


async def gone(bench: Bench, name: str) -> None:
    await until(lambda: bench.phase(name) == "gone", f"{name} is gone")


def names(plugin: DraPlugin, method: str) -> list[list[str]]:
    return [[claim["name"] for claim in request["claims"]] for request in plugin.recorder.of(method)]


@pytest.fixture
async def plugin(bench: Bench) -> DraPlugin:
    bench.cdi("gpu-0", "gpu-1")
    return await bench.registered()


async def test_a_claim_reaches_the_container(bench: Bench, plugin: DraPlugin) -> None:
    claim = bench.claim("c1")
    bench.pod("p1", "c1", script="echo gpu is $GPU", restartPolicy="Never")
    await until(lambda: bench.phase("p1") == "Succeeded", "the pod ends")
    await until(lambda: bench.log("p1") == "gpu is gpu-0\n", "the output")
    asked = {"claims": [{"namespace": "default", "uid": claim["metadata"]["uid"], "name": "c1"}]}
    assert plugin.recorder.of("NodePrepareResources") == [asked]
    await until(lambda: plugin.recorder.of("NodeUnprepareResources") == [asked], "unprepared when the pod has ended")
    bench.delete("p1")
    await gone(bench, "p1")
    assert len(plugin.recorder.of("NodeUnprepareResources")) == 1


async def test_all_claims_of_a_pod_come_in_one_call_per_driver(bench: Bench, plugin: DraPlugin) -> None:
    other = await bench.registered(driver="other.example")
    bench.claim("a1")
    bench.claim("a2")
    bench.claim("b", driver="other.example")
    bench.pod("p", "a1", "b", "a2")
    await running(bench, "p")
    assert names(plugin, "NodePrepareResources") == [["a1", "a2"]]
    assert names(other, "NodePrepareResources") == [["b"]]
    bench.delete("p")
    await gone(bench, "p")
    assert names(plugin, "NodeUnprepareResources") == [["a1", "a2"]]
    assert names(other, "NodeUnprepareResources") == [["b"]]


async def test_a_claim_is_prepared_even_if_no_container_uses_it(bench: Bench, plugin: DraPlugin) -> None:
    bench.claim("c1")
    container = {"name": "c", "image": "x", "command": ["sh", "-c", "echo gpu=$GPU; sleep 100"]}
    bench.pod("p", "c1", containers=[container])
    await running(bench, "p")
    assert names(plugin, "NodePrepareResources") == [["c1"]]
    await until(lambda: bench.log("p") == "gpu=\n", "the output")


async def test_only_what_a_container_asks_for_reaches_it(bench: Bench, plugin: DraPlugin) -> None:
    plugin.answer = lambda method, claim: {"devices": [device("gpu-0", "r"), device("gpu-1", "s")]}
    bench.claim("c1")

    def container(name: str, **use: str) -> dict[str, Any]:
        claims = [{"name": "c1", **use}]
        return {"name": name, "command": ["sh", "-c", "echo $GPU; sleep 100"], "resources": {"claims": claims}}

    containers = [
        container("r", request="r"),
        container("s", request="s"),
        container("all"),
        container("x", request="x"),
    ]
    bench.pod("p", "c1", containers=[{**item, "image": "x"} for item in containers])
    await until(lambda: all(bench.log("p", name) for name in ("r", "s", "all", "x")), "the output")
    assert [bench.log("p", name) for name in ("r", "s", "all", "x")] == ["gpu-0\n", "gpu-1\n", "gpu-1\n", "\n"]


async def test_a_pod_waits_while_prepare_fails_and_says_why(bench: Bench, plugin: DraPlugin) -> None:
    failing = asyncio.Event()
    plugin.answer = lambda method, claim: {"devices": [device()]} if failing.is_set() else {"error": "GPU is on fire"}
    bench.claim("c1")
    bench.pod("p", "c1")
    text = (
        "Failed to prepare dynamic resources: prepare dynamic resources: "
        "NodePrepareResources failed for ResourceClaim c1: GPU is on fire"
    )
    await until(lambda: bench.status("p").get("state", {}).get("waiting", {}).get("message") == text)
    assert bench.status("p")["state"]["waiting"]["reason"] == "ContainerCreating"
    assert bench.phase("p") == "Pending"
    await until(lambda: text in bench.events("FailedPrepareDynamicResources"))
    await until(lambda: len(plugin.recorder.of("NodePrepareResources")) >= 2, "it is tried again")
    failing.set()
    await running(bench, "p")


async def test_a_failed_prepare_is_unprepared_with_the_pod(bench: Bench, plugin: DraPlugin) -> None:
    plugin.answer = lambda method, claim: {"error": "no"} if method == "prepare" else {}
    bench.claim("c1")
    bench.pod("p", "c1")
    await until(lambda: bench.events("FailedPrepareDynamicResources"))
    bench.delete("p")
    await gone(bench, "p")
    assert names(plugin, "NodeUnprepareResources") == [["c1"]]


@pytest.mark.parametrize("times", [replace(Times().scaled(0.01), prepare=0.2)])
async def test_a_call_has_a_deadline(bench: Bench, plugin: DraPlugin) -> None:
    plugin.hold.clear()
    bench.claim("c1")
    bench.pod("p", "c1")
    await until(lambda: any("DeadlineExceeded" in text for text in bench.events("FailedPrepareDynamicResources")))
    plugin.hold.set()
    await running(bench, "p")


async def test_a_deletion_ends_the_call(bench: Bench, plugin: DraPlugin) -> None:
    plugin.hold.clear()
    bench.claim("c1")
    bench.pod("p", "c1")
    await until(lambda: plugin.recorder.of("NodePrepareResources"))
    bench.delete("p")
    await gone(bench, "p")
    assert names(plugin, "NodeUnprepareResources") == [["c1"]]


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (lambda method, claim: None, "NodePrepareResources skipped 1 ResourceClaims"),
        (lambda method, claim: {"error": "bad"}, "NodePrepareResources failed for ResourceClaim c1: bad"),
    ],
)
async def test_what_is_wrong_with_an_answer_is_told(bench: Bench, plugin: DraPlugin, answer: Any, message: str) -> None:
    plugin.answer = answer
    bench.claim("c1")
    bench.pod("p", "c1")
    await until(lambda: any(message in text for text in bench.events("FailedPrepareDynamicResources")))
    plugin.answer = lambda method, claim: {}


async def test_a_driver_that_is_missing_is_named(bench: Bench) -> None:
    bench.cdi("gpu-0")
    bench.claim("c1")
    bench.pod("p", "c1")
    message = "DRA driver gpu.rec.example is not registered"
    await until(lambda: any(message in text for text in bench.events("FailedPrepareDynamicResources")))
    await bench.registered()
    await running(bench, "p")


async def test_a_claim_not_reserved_for_the_pod_is_refused(bench: Bench, plugin: DraPlugin) -> None:
    claim = clone(bench.claim("c1"))
    bench.pod("p", "c1")
    claim = clone(bench.store.get("resourceclaims", "c1", "default"))
    del claim["status"]["reservedFor"]
    bench.store.update_status("resourceclaims", claim)
    bench.pod("q", spec={})
    await until(lambda: plugin.status)
    texts = await until(lambda: bench.events("FailedPrepareDynamicResources") or bench.phase("p") == "Running")
    assert texts is True or "is not allowed to use ResourceClaim c1" in texts[0]


async def test_a_shared_claim_is_prepared_once_and_unprepared_with_its_last_pod(
    bench: Bench, plugin: DraPlugin
) -> None:
    bench.claim("c1")
    for name in ("p", "q"):
        bench.pod(name, "c1")
        await running(bench, name)
    bench.delete("p")
    await gone(bench, "p")
    assert names(plugin, "NodePrepareResources") == [["c1"]]
    assert names(plugin, "NodeUnprepareResources") == []
    bench.delete("q")
    await gone(bench, "q")
    assert names(plugin, "NodeUnprepareResources") == [["c1"]]


async def test_unprepare_is_tried_until_it_works(bench: Bench, plugin: DraPlugin) -> None:
    left = [{"error": "busy"}, {"error": "busy"}, {}]
    plugin.answer = lambda method, claim: left.pop(0) if method == "unprepare" else {"devices": [device()]}
    bench.claim("c1")
    bench.pod("p", "c1")
    await running(bench, "p")
    bench.delete("p")
    await gone(bench, "p")
    assert names(plugin, "NodeUnprepareResources") == [["c1"]] * 3
    assert any("busy" in text for text in bench.events("FailedUnprepareDynamicResources"))


async def test_a_force_deleted_pod_is_unprepared_too(bench: Bench, plugin: DraPlugin) -> None:
    bench.claim("c1")
    bench.pod("p", "c1")
    await running(bench, "p")
    bench.delete("p", grace=0)
    assert bench.phase("p") == "gone"
    await until(lambda: names(plugin, "NodeUnprepareResources") == [["c1"]])


async def test_unprepare_needs_no_claim_object(bench: Bench, plugin: DraPlugin) -> None:
    bench.claim("c1")
    bench.pod("p", "c1")
    await running(bench, "p")
    claim = clone(bench.store.get("resourceclaims", "c1", "default"))
    claim["metadata"]["finalizers"] = []
    bench.store.delete("resourceclaims", "c1", "default")
    bench.delete("p")
    await until(lambda: names(plugin, "NodeUnprepareResources") == [["c1"]])


async def test_share_ids_are_kept_apart(bench: Bench, plugin: DraPlugin) -> None:
    shares = ["11111111-1111-1111-1111-111111111111", "22222222-2222-2222-2222-222222222222"]
    plugin.answer = lambda method, claim: {"devices": [device(share_id=share) for share in shares]}
    bench.claim("c1")
    bench.pod("p", "c1", script="echo $GPU; sleep 100")
    await running(bench, "p")
    info = bench.kubelet.claims.cache.get("default", "c1")
    assert info is not None
    assert [item.share for item in info.devices[plugin.driver]] == shares
    await until(lambda: bench.log("p") == "gpu-0\n", "the output")


async def test_a_cdi_device_that_is_missing_stops_the_start_and_says_so(bench: Bench, plugin: DraPlugin) -> None:
    plugin.answer = lambda method, claim: {"devices": [device("gpu-9")]}
    bench.claim("c1")
    bench.pod("p", "c1")
    waiting = await until(
        lambda: [
            w
            for w in [bench.status("p").get("state", {}).get("waiting", {})]
            if w.get("reason") == "CreateContainerError"
        ]
    )
    assert "unresolvable CDI devices rec.example/gpu=gpu-9" in waiting[0]["message"]
    bench.cdi("gpu-9")
    await running(bench, "p")


async def test_a_v1beta1_plugin_works(bench: Bench) -> None:
    bench.cdi("gpu-0")
    plugin = await bench.registered(versions=("v1beta1.DRAPlugin",))
    bench.claim("c1")
    bench.pod("p", "c1")
    await running(bench, "p")
    assert names(plugin, "NodePrepareResources") == [["c1"]]
    assert bench.log("p") == ""


async def test_a_pod_has_not_ended_before_its_claims_are_released(bench: Bench, plugin: DraPlugin) -> None:
    """Its phase would let the claim be deallocated and given away, while the driver still has it prepared."""
    seen: list[str] = []

    def answer(method: str, claim: Any) -> dict[str, Any]:
        if method == "unprepare":
            seen.append(bench.phase("p"))
        return {"devices": [device()]} if method == "prepare" else {}

    plugin.answer = answer
    bench.claim("c1")
    bench.pod("p", "c1", script="exit 0", restartPolicy="Never")
    await until(lambda: bench.phase("p") == "Succeeded")
    assert len(seen) == 1
    assert seen[0] not in ("Succeeded", "Failed")


async def test_a_claim_for_an_extended_resource_reaches_its_container(bench: Bench, plugin: DraPlugin) -> None:
    """What the scheduler notes in the pod's status stands in for `resources.claims`."""
    bench.claim("special")
    limits = {"nvidia.com/gpu": "1"}
    container = {
        "name": "c",
        "image": "x",
        "command": ["sh", "-c", "echo $GPU; sleep 100"],
        "resources": {"limits": limits},
    }
    pod = clone(bench.store.create("pods", {"metadata": {"name": "p"}, "spec": {"containers": [container]}}, "default"))
    bench.reserve("special", pod)
    mapping = {"containerName": "c", "resourceName": "nvidia.com/gpu", "requestName": "r"}
    pod["status"] = {"extendedResourceClaimStatus": {"resourceClaimName": "special", "requestMappings": [mapping]}}
    bench.store.update_status("pods", pod)
    bench.store.bind("p", "default", "node1")
    await running(bench, "p")
    await until(lambda: bench.log("p") == "gpu-0\n", "the output")
    assert bench.get("p")["status"]["extendedResourceClaimStatus"]["requestMappings"] == [mapping]
    bench.delete("p")
    await gone(bench, "p")
    assert names(plugin, "NodeUnprepareResources") == [["special"]]
