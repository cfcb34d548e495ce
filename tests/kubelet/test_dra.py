from __future__ import annotations

import asyncio
import logging

import grpc
import grpc.aio
import pytest

from driver import logs
from driver._pb import dra_v1_pb2 as v1
from driver._pb import dra_v1beta1_pb2 as v1beta1
from driver._pb import dra_v1beta1_pb2_grpc as v1beta1_grpc
from driver.errors import ClaimRefusedError, DriverError
from driver.kubelet.dra import LONGEST_CALL, deadline, line
from tests.waiting import until

from .conftest import Kubelet, ScriptedClaims, Seen, prepare_request, prepared, unprepare_request

pytestmark = pytest.mark.usefixtures("plugin")

SHARE = "3f0b2f0e-6f0e-4f0e-8f0e-3f0b2f0e6f0e"


async def test_prepare_answers_every_claim_with_its_devices(kubelet: Kubelet, claims: ScriptedClaims) -> None:
    claims.outcomes["u2"] = (prepared("u2", SHARE), prepared("u2"))
    async with kubelet.connected() as stub:
        answer = await stub.NodePrepareResources(prepare_request("u1", "u2"), timeout=45)
    assert set(answer.claims) == {"u1", "u2"}
    device = answer.claims["u1"].devices[0]
    assert list(device.request_names) == ["gpu"]
    assert (device.pool_name, device.device_name) == ("node1", "gpu-0")
    assert list(device.cdi_device_ids) == ["example.com/claim=u1-gpu-0"]
    assert not device.HasField("share_id")
    assert [one.share_id for one in answer.claims["u2"].devices] == [SHARE, ""]


async def test_v1beta1_is_served_without_share_ids(kubelet: Kubelet, claims: ScriptedClaims) -> None:
    claims.outcomes["u1"] = (prepared("u1", SHARE),)
    request = v1beta1.NodePrepareResourcesRequest(claims=[v1beta1.Claim(namespace="ns", name="c", uid="u1")])
    async with grpc.aio.insecure_channel(f"unix:{kubelet.service}") as channel:
        stub = v1beta1_grpc.DRAPluginStub(channel)
        answer = await stub.NodePrepareResources(request, timeout=45)
        undone = await stub.NodeUnprepareResources(
            v1beta1.NodeUnprepareResourcesRequest(claims=request.claims), timeout=45
        )
    newer = v1.NodePrepareResourcesResponse.FromString(answer.SerializeToString())
    assert newer.claims["u1"].devices[0].device_name == "gpu-0"
    assert not newer.claims["u1"].devices[0].HasField("share_id")
    assert isinstance(undone.claims["u1"].error, str)
    assert [operation for operation, _ in claims.calls] == ["prepare", "unprepare"]


async def test_one_claims_error_is_its_own_and_one_line(kubelet: Kubelet, claims: ScriptedClaims, seen: Seen) -> None:
    claims.outcomes["bad"] = ClaimRefusedError("gpu-0 is held\nby claim x/y")
    async with kubelet.connected() as stub:
        answer = await stub.NodePrepareResources(prepare_request("bad", "good"), timeout=45)
        undone = await stub.NodeUnprepareResources(unprepare_request("bad", "good"), timeout=45)
    assert answer.claims["bad"].error == "gpu-0 is held by claim x/y"
    assert not answer.claims["bad"].devices
    assert answer.claims["good"].error == ""
    assert (undone.claims["bad"].error, undone.claims["good"].error) == ("gpu-0 is held by claim x/y", "")
    assert seen.failures == [("prepare", "ClaimRefusedError"), ("unprepare", "ClaimRefusedError")]
    assert seen.started == seen.finished == ["prepare", "unprepare"]


@pytest.mark.parametrize(
    ("claim", "words"),
    [
        (v1.Claim(namespace="ns", name="c", uid="../../etc/passwd"), "claim uid"),
        (v1.Claim(namespace="ns", name="c", uid=""), "claim uid"),
        (v1.Claim(namespace="ns", name="c", uid="a/b"), "claim uid"),
        (v1.Claim(namespace="ns", name="c", uid="u" * 129), "claim uid"),
        (v1.Claim(namespace="Not a namespace", name="c", uid="u9"), "claim namespace"),
        (v1.Claim(namespace="ns", name="../c", uid="u9"), "claim name"),
        (v1.Claim(namespace="ns", name="", uid="u9"), "claim name"),
    ],
)
async def test_malformed_references_are_refused_alone(
    kubelet: Kubelet, claims: ScriptedClaims, claim: v1.Claim, words: str
) -> None:
    request = prepare_request("good")
    request.claims.append(claim)
    async with kubelet.connected() as stub:
        answer = await stub.NodePrepareResources(request, timeout=45)
    assert words in answer.claims[claim.uid].error
    assert answer.claims["good"].error == ""
    assert [ref.uid for _, refs in claims.calls for ref in refs] == ["good"]


async def test_unprepare_needs_a_sound_uid_only(kubelet: Kubelet, claims: ScriptedClaims) -> None:
    request = v1.NodeUnprepareResourcesRequest(
        claims=[v1.Claim(namespace="Not One", name="", uid="u1"), v1.Claim(namespace="ns", name="c", uid="x/y")]
    )
    async with kubelet.connected() as stub:
        answer = await stub.NodeUnprepareResources(request, timeout=45)
    assert answer.claims["u1"].error == ""
    assert "claim uid" in answer.claims["x/y"].error
    assert len(claims.calls) == 1


async def test_duplicates_in_one_request(kubelet: Kubelet, claims: ScriptedClaims) -> None:
    request = prepare_request("twice", "twice", "torn")
    request.claims.append(v1.Claim(namespace="ns", name="other", uid="torn"))
    async with kubelet.connected() as stub:
        answer = await stub.NodePrepareResources(request, timeout=45)
    assert answer.claims["twice"].error == ""
    assert "names both ns/c-torn (uid torn) and ns/other (uid torn)" in answer.claims["torn"].error
    assert [ref.uid for ref in claims.calls[0][1]] == ["twice"]


async def test_an_empty_request_reaches_nobody(kubelet: Kubelet, claims: ScriptedClaims) -> None:
    async with kubelet.connected() as stub:
        answer = await stub.NodePrepareResources(prepare_request(), timeout=45)
    assert not answer.claims
    assert claims.calls == []


async def test_a_claim_without_an_answer_still_gets_an_entry(kubelet: Kubelet, claims: ScriptedClaims) -> None:
    claims.outcomes["lost"] = ...
    async with kubelet.connected() as stub:
        answer = await stub.NodePrepareResources(prepare_request("lost", "good"), timeout=45)
    assert "no answer for this claim" in answer.claims["lost"].error
    assert answer.claims["good"].error == ""


async def test_a_bug_fails_the_claims_and_not_the_process(
    kubelet: Kubelet, claims: ScriptedClaims, caplog: pytest.LogCaptureFixture
) -> None:
    def burst() -> None:
        raise ZeroDivisionError("a bug")

    claims.during = burst
    async with kubelet.connected() as stub:
        answer = await stub.NodePrepareResources(prepare_request("u1", "u2"), timeout=45)
        claims.during = None
        again = await stub.NodePrepareResources(prepare_request("u1"), timeout=45)
    for uid in ("u1", "u2"):
        assert "ZeroDivisionError: a bug" in answer.claims[uid].error
        assert "\n" not in answer.claims[uid].error
    assert again.claims["u1"].error == ""
    assert "Traceback" in caplog.text


async def test_calls_run_side_by_side(kubelet: Kubelet, claims: ScriptedClaims) -> None:
    claims.gate = asyncio.Event()
    async with kubelet.connected() as stub:
        calls = [stub.NodePrepareResources(prepare_request(f"u{n}"), timeout=45) for n in range(8)]
        await until(lambda: claims.together == 8)
        claims.gate.set()
        answers = await asyncio.gather(*calls)
    assert [next(iter(answer.claims)) for answer in answers] == [f"u{n}" for n in range(8)]
    assert claims.most_together == 8


async def test_S10_a_call_whose_client_has_gone_is_cancelled(
    kubelet: Kubelet, claims: ScriptedClaims, seen: Seen, caplog: pytest.LogCaptureFixture
) -> None:
    claims.gate = asyncio.Event()
    async with kubelet.connected() as stub:
        call = stub.NodePrepareResources(prepare_request("u1"), timeout=45)
        await until(lambda: claims.together == 1)
        call.cancel()
        await until(lambda: claims.cancelled == 1)
        await until(lambda: seen.finished == ["prepare"])
        assert "cancelled by its caller" in caplog.text
        claims.gate = None
        assert (await stub.NodePrepareResources(prepare_request("u1"), timeout=45)).claims["u1"].error == ""


async def test_S10_a_call_over_its_deadline_is_cancelled(kubelet: Kubelet, claims: ScriptedClaims) -> None:
    claims.gate = asyncio.Event()
    async with kubelet.connected() as stub:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.NodePrepareResources(prepare_request("u1"), timeout=0.2)
        assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        await until(lambda: claims.cancelled == 1)


async def test_the_engine_gets_the_callers_deadline_with_a_margin(kubelet: Kubelet, claims: ScriptedClaims) -> None:
    async with kubelet.connected() as stub:
        await stub.NodePrepareResources(prepare_request("u1"), timeout=20)
        await stub.NodePrepareResources(prepare_request("u1"), timeout=3600)
        await stub.NodePrepareResources(prepare_request("u1"))
    short, capped, absent = claims.deadlines
    assert short < 20  # before the caller's own; not 19, as gRPC rounds what it sends up, to a tenth of a second here
    assert 19 < capped <= LONGEST_CALL - 1
    assert 19 < absent <= LONGEST_CALL - 1


@pytest.mark.parametrize(
    ("remaining", "expected"), [(None, 44), (45, 44), (1e9, 44), (2, 1.5), (0.4, 0.3), (0, 0), (-3, 0)]
)
async def test_deadline(remaining: float | None, expected: float) -> None:
    loop = asyncio.get_running_loop()
    before = loop.time()
    found = deadline(remaining)
    assert before + expected <= found <= loop.time() + expected


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (DriverError("a\n\tb  c"), "a b c"),
        (DriverError(""), "DriverError"),
        (DriverError("x" * 2000), "x" * 1021 + "..."),
        (DriverError("the server said \ud800"), "the server said ?"),
    ],
)
async def test_errors_are_one_bounded_line(error: DriverError, text: str) -> None:
    assert line(error) == text


async def test_every_log_line_of_a_call_has_its_id(kubelet: Kubelet, claims: ScriptedClaims) -> None:
    lines: list[tuple[str, str]] = []

    class Keeper(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append((record.call, record.getMessage()))  # type: ignore[attr-defined]

    handler = Keeper()
    handler.addFilter(logs.CallIdFilter())
    root = logging.getLogger("driver")
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    claims.during = lambda: logging.getLogger("driver.claims.engine").info("deep inside")
    try:
        async with kubelet.connected() as stub:
            await asyncio.gather(*(stub.NodePrepareResources(prepare_request(f"u{n}"), timeout=45) for n in range(3)))
        await until(lambda: sum("took" in text for _, text in lines) == 3)
    finally:
        root.removeHandler(handler)
        root.setLevel(logging.NOTSET)
    by_call: dict[str, list[str]] = {}
    for call, text in lines:
        by_call.setdefault(call, []).append(text)
    assert "" not in by_call
    assert len(by_call) == 3
    for texts in by_call.values():
        assert "deep inside" in texts
        assert any("took" in text for text in texts)
        assert len({text for text in texts if text.startswith("claim ns/")}) == 1


async def test_an_unknown_method_is_refused(kubelet: Kubelet) -> None:
    async with grpc.aio.insecure_channel(f"unix:{kubelet.service}") as channel:
        call = channel.unary_unary("/k8s.io.kubelet.pkg.apis.dra.v9.DRAPlugin/NodePrepareResources")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(b"", timeout=5)
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_garbage_on_the_wire_costs_one_call(kubelet: Kubelet) -> None:
    async with grpc.aio.insecure_channel(f"unix:{kubelet.service}") as channel:
        call = channel.unary_unary("/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodePrepareResources")
        with pytest.raises(grpc.aio.AioRpcError):
            await call(b"\xff\xff\xff", timeout=5)
    async with kubelet.connected() as stub:
        answer = await stub.NodePrepareResources(prepare_request("u1"), timeout=45)
    assert answer.claims["u1"].error == ""
