"""The kubelet's DRA calls: prepare and unprepare, v1 once, v1beta1 wrapped around it.

Each requested UID gets an entry in the answer, and each claim's failure is its own: a gRPC error would fail all claims
of the pod, and the kubelet comes back only after 70 s or more.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Protocol

from driver._pb import dra_v1_pb2 as v1
from driver._pb import dra_v1_pb2_grpc as v1_grpc
from driver._pb import dra_v1beta1_pb2 as v1beta1
from driver._pb import dra_v1beta1_pb2_grpc as v1beta1_grpc
from driver.claims.allocation import ClaimRef
from driver.errors import DriverError, InvalidValueError
from driver.logs import call_id
from driver.model.names import check_uid, is_dns_label, is_dns_subdomain

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

    import grpc.aio

    from driver.claims.record import PreparedDevice

log = logging.getLogger(__name__)

LONGEST_CALL = 45.0
"""Seconds that the kubelet gives each call (seen; it sets the deadline itself)."""

_MARGIN = 1.0  # seconds before the deadline at which the answer must be under way
_LONGEST_ERROR = 1024  # characters; it ends in a pod's Event


class ClaimService(Protocol):
    """Who prepares claims (claims.engine). Keys of the answers are UIDs; one claim's failure is a value, not raised."""

    async def prepare(
        self, refs: Sequence[ClaimRef], *, deadline: float
    ) -> Mapping[str, tuple[PreparedDevice, ...] | DriverError]:
        """Prepare claims until `deadline` (the event loop's time)."""
        ...

    async def unprepare(self, refs: Sequence[ClaimRef], *, deadline: float) -> Mapping[str, DriverError | None]:
        """Undo what was prepared; an unknown claim is a success."""
        ...


class FailureObserver(Protocol):
    """Who counts failures."""

    def claim_failed(self, operation: str, error_type: str) -> None:
        """Note a claim that was refused or failed."""
        ...


class DraPlugin(v1_grpc.DRAPluginServicer):
    """The service `v1.DRAPlugin`."""

    def __init__(self, claims: ClaimService, failures: FailureObserver) -> None:
        self._claims = claims
        self._failures = failures

    def add_to(self, server: grpc.aio.Server) -> None:
        """Add this service, and its older version, to a server."""
        v1_grpc.add_DRAPluginServicer_to_server(self, server)  # type: ignore[no-untyped-call]
        v1beta1_grpc.add_DRAPluginServicer_to_server(DraPluginV1Beta1(self), server)  # type: ignore[no-untyped-call]

    async def NodePrepareResources(  # noqa: N802 (the wire's name)
        self, request: v1.NodePrepareResourcesRequest, context: Any
    ) -> v1.NodePrepareResourcesResponse:
        """Prepare the claims of one pod."""
        outcomes = await self._serve("prepare", request.claims, context, self._claims.prepare, _prepare_ref)
        entries = {uid: _prepared(outcome) for uid, outcome in outcomes.items()}
        return v1.NodePrepareResourcesResponse(claims=entries)

    async def NodeUnprepareResources(  # noqa: N802 (the wire's name)
        self, request: v1.NodeUnprepareResourcesRequest, context: Any
    ) -> v1.NodeUnprepareResourcesResponse:
        """Unprepare claims that no pod uses any more."""
        outcomes = await self._serve("unprepare", request.claims, context, self._claims.unprepare, _unprepare_ref)
        entries = {uid: _unprepared(outcome) for uid, outcome in outcomes.items()}
        return v1.NodeUnprepareResourcesResponse(claims=entries)

    async def _serve(
        self,
        operation: str,
        claims: Iterable[v1.Claim],
        context: Any,
        work: Callable[..., Awaitable[Mapping[str, Any]]],
        check: Callable[[v1.Claim], ClaimRef],
    ) -> dict[str, Any]:
        refs, outcomes = _checked(claims, check)
        if log.isEnabledFor(logging.DEBUG):
            log.debug("%s of %s", operation, ", ".join(map(str, refs.values())) or "nothing")
        answers: Mapping[str, Any] = {}
        if refs:
            answers = await _guarded(work(tuple(refs.values()), deadline=deadline(context.time_remaining())), refs)
        for uid in refs:
            outcomes[uid] = answers[uid] if uid in answers else DriverError("internal error: no answer for this claim")
        # After the answer is on its way: the kubelet need not wait for a log line.
        asyncio.get_running_loop().call_soon(self._note, operation, refs, outcomes)
        return outcomes

    def _note(self, operation: str, refs: Mapping[str, ClaimRef], outcomes: Mapping[str, Any]) -> None:
        for uid, outcome in outcomes.items():
            if isinstance(outcome, DriverError):
                self._failures.claim_failed(operation, type(outcome).__name__)
                log.warning("claim %s: %s failed: %s", refs.get(uid) or repr(uid), operation, line(outcome))
            else:
                log.info("claim %s: %sd", refs[uid], operation)


class DraPluginV1Beta1(v1beta1_grpc.DRAPluginServicer):
    """The service `v1beta1.DRAPlugin`: the same messages, without share ids."""

    def __init__(self, newer: DraPlugin) -> None:
        self._newer = newer

    async def NodePrepareResources(  # noqa: N802 (the wire's name)
        self, request: v1beta1.NodePrepareResourcesRequest, context: Any
    ) -> v1beta1.NodePrepareResourcesResponse:
        """Prepare the claims of one pod."""
        newer = v1.NodePrepareResourcesRequest.FromString(request.SerializeToString())
        answer = await self._newer.NodePrepareResources(newer, context)
        for entry in answer.claims.values():
            for device in entry.devices:
                device.ClearField("share_id")
        return v1beta1.NodePrepareResourcesResponse.FromString(answer.SerializeToString())

    async def NodeUnprepareResources(  # noqa: N802 (the wire's name)
        self, request: v1beta1.NodeUnprepareResourcesRequest, context: Any
    ) -> v1beta1.NodeUnprepareResourcesResponse:
        """Unprepare claims that no pod uses any more."""
        newer = v1.NodeUnprepareResourcesRequest.FromString(request.SerializeToString())
        answer = await self._newer.NodeUnprepareResources(newer, context)
        return v1beta1.NodeUnprepareResourcesResponse.FromString(answer.SerializeToString())


def deadline(remaining: float | None) -> float:
    """Return when work has to end, in the event loop's time, for a call with `remaining` seconds left."""
    seconds = LONGEST_CALL if remaining is None else min(max(remaining, 0.0), LONGEST_CALL)
    return asyncio.get_running_loop().time() + seconds - min(_MARGIN, seconds / 4)


def line(error: BaseException) -> str:
    """Return an error as one line for a pod's Event. What is no text, and so can't be sent, is replaced."""
    text = " ".join(str(error).split()).encode(errors="replace").decode() or type(error).__name__
    return text if len(text) <= _LONGEST_ERROR else f"{text[: _LONGEST_ERROR - 3]}..."


def _checked(
    claims: Iterable[v1.Claim], check: Callable[[v1.Claim], ClaimRef]
) -> tuple[dict[str, ClaimRef], dict[str, Any]]:
    """Tell sound references from unsound ones; the same one twice is once, a UID with two names is neither."""
    sound: dict[str, ClaimRef] = {}
    failed: dict[str, Any] = {}
    for claim in claims:
        try:
            ref = check(claim)
        except InvalidValueError as exc:
            failed[claim.uid] = exc
            continue
        if sound.setdefault(ref.uid, ref) != ref:
            failed[ref.uid] = InvalidValueError("claim uid", ref.uid, f"names both {sound[ref.uid]} and {ref}")
    for uid in failed:
        sound.pop(uid, None)
    return sound, failed


def _prepare_ref(claim: v1.Claim) -> ClaimRef:
    if not is_dns_label(claim.namespace):
        raise InvalidValueError("claim namespace", claim.namespace, "a namespace is a DNS label")
    if not is_dns_subdomain(claim.name):
        raise InvalidValueError("claim name", claim.name, "a claim's name is a DNS subdomain")
    return _unprepare_ref(claim)


def _unprepare_ref(claim: v1.Claim) -> ClaimRef:
    # Only the UID becomes a path. Names are not checked: what was prepared must always be possible to undo.
    return ClaimRef(namespace=claim.namespace, name=claim.name, uid=check_uid(claim.uid, "claim uid"))


async def _guarded(work: Awaitable[Mapping[str, Any]], refs: Iterable[str]) -> Mapping[str, Any]:
    """Turn a bug into an error per claim: the kubelet's pods say so, the process lives."""
    try:
        return await work
    except Exception as exc:
        log.exception("internal error")
        shown = DriverError(
            f"internal error, see the agent's log for call {call_id.get()}: {type(exc).__name__}: {exc}"
        )
        return dict.fromkeys(refs, shown)


def _prepared(outcome: tuple[PreparedDevice, ...] | DriverError) -> v1.NodePrepareResourceResponse:
    if isinstance(outcome, DriverError):
        return v1.NodePrepareResourceResponse(error=line(outcome))
    return v1.NodePrepareResourceResponse(devices=[_device(device) for device in outcome])


def _device(device: PreparedDevice) -> v1.Device:
    return v1.Device(
        request_names=device.requests,
        pool_name=device.pool,
        device_name=device.device,
        cdi_device_ids=device.cdi_ids,
        share_id=device.share_id,
    )


def _unprepared(outcome: DriverError | None) -> v1.NodeUnprepareResourceResponse:
    return v1.NodeUnprepareResourceResponse(error="" if outcome is None else line(outcome))
