r"""The record of a claim: what is on disk about it, `<plugin dir>/claims/<uid>.json`. Pure.

Two lines of JSON. The first says what the second is: `{"format": "gpu-dra-claim", "version": 1, "reads": 1,
"sha256": "…"}`; the checksum is over the second line's very bytes, so no other spelling of the same JSON can fail it
(S3). `reads` is the oldest version of this code that can use the file: a newer driver may add fields without locking
out an older one (S4), and what this version does not know is kept when the record is written again.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TypeVar

from driver.claims import effect
from driver.claims.allocation import ClaimRef
from driver.claims.holding import Holding
from driver.errors import InvalidValueError, RecordError
from driver.model import names
from driver.model.json_object import parse_json
from driver.model.mig import Placement

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from driver.claims.effect import Effect, Partition

T = TypeVar("T")

FORMAT: Final = "gpu-dra-claim"
VERSION: Final = 1
_BEGIN: Final = b'{"format": "%s"' % FORMAT.encode()
MAX_BYTES: Final = 1 << 20
"""A record of 32 devices has some 10 KB; what is larger is not ours."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedDevice:
    """One allocated device as answered to the kubelet."""

    requests: tuple[str, ...]  # request names without the subrequest
    pool: str
    device: str
    cdi_ids: tuple[str, ...]
    share_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedDevice:
    """One prepared result: all that a repeated answer and the defence against double use need."""

    request: str
    pool: str
    holding: Holding
    kind: str  # gpu, mig
    memory_limit: int | None = None  # bytes that the container is told it may use; None: all
    thread_percentage: int | None = None
    unknown: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))

    def answer(self, claim_uid: str) -> PreparedDevice:
        """Return what the kubelet is told, each time the same."""
        return PreparedDevice(
            requests=(self.request.partition("/")[0],),
            pool=self.pool,
            device=self.holding.device,
            cdi_ids=(names.cdi_id(claim_uid, self.holding.device, self.holding.share_id),),
            share_id=self.holding.share_id,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A prepared claim. `boot_id` voids it after a reboot (S6); `unknown` keeps a newer version's fields."""

    claim: ClaimRef
    boot_id: str
    devices: tuple[RecordedDevice, ...]
    effects: tuple[Effect, ...] = ()
    ready: bool = True  # False: the effects are being done, or were when the driver died
    pod_claim: str = ""  # the name that the pod has for a claim made of a template
    unknown: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def answer(self) -> tuple[PreparedDevice, ...]:
        """What the kubelet is told."""
        return tuple(device.answer(self.claim.uid) for device in self.devices)

    @property
    def holdings(self) -> tuple[Holding, ...]:
        """What the claim holds."""
        return tuple(device.holding for device in self.devices)

    def partition(self, device: str) -> Partition | None:
        """Return the MIG device that the claim makes of a device, if it makes one; without a UUID until it is made."""
        return next((one for one in self.effects if isinstance(one, effect.Partition) and one.device == device), None)


def encode(record: Record) -> bytes:
    """Return the file's bytes."""
    body = {
        **record.unknown,
        **({"podClaim": record.pod_claim} if record.pod_claim else {}),
        "claim": {"namespace": record.claim.namespace, "name": record.claim.name, "uid": record.claim.uid},
        "bootID": record.boot_id,
        "ready": record.ready,
        "devices": [_encode_device(device) for device in record.devices],
        "effects": [effect.encode(one) for one in record.effects],
    }
    payload = json.dumps(body, separators=(",", ":")).encode()
    head = {"format": FORMAT, "version": VERSION, "reads": 1, "sha256": hashlib.sha256(payload).hexdigest()}
    return b"%s\n%s\n" % (json.dumps(head).encode(), payload)


def decode(data: bytes, uid: str) -> Record:
    """Return the record of claim `uid` from its file's bytes.

    :raises RecordError: it can't be trusted; says what is wrong.
    """
    head, payload = _split(data)
    if head.get("format") != FORMAT:
        raise RecordError(f"it is no claim record: its format is {head.get('format')!r}, not {FORMAT!r}")
    reads, version = head.get("reads"), head.get("version")
    if not isinstance(reads, int) or reads > VERSION:
        raise RecordError(f"it is of version {version!r}, which this driver (version {VERSION}) can't read: upgrade it")
    if head.get("sha256") != hashlib.sha256(payload).hexdigest():
        raise RecordError("its checksum does not match its content")
    record = _decode_body(payload)
    if record.claim.uid != uid:
        raise RecordError(f"it is of another claim, {record.claim}")
    return record


def salvage(data: bytes, uid: str) -> Record | None:
    """Return what a record that failed `decode` still says, if its content is whole but for the checksum.

    Good enough to keep its devices from being given away (S1), never to answer from.
    """
    try:
        record = _decode_body(_split(data)[1])
    except RecordError:
        return None
    return record if record.claim.uid == uid else None


def _split(data: bytes) -> tuple[Mapping[str, Any], bytes]:
    if not data:
        raise RecordError("it is empty")
    if len(data) > MAX_BYTES:
        raise RecordError(f"it has {len(data)} bytes, more than any record ({MAX_BYTES})")
    first, newline, rest = data.partition(b"\n")
    if not newline or not rest.endswith(b"\n"):
        raise RecordError("it is cut short" if first.startswith(_BEGIN[: len(first)]) else "it is no claim record")
    return _json_object(first, "its first line"), rest[:-1]


def _decode_body(payload: bytes) -> Record:
    body = dict(_json_object(payload, "its content"))
    try:
        claim = body.pop("claim")
        return Record(
            claim=ClaimRef(
                namespace=str(claim["namespace"]), name=str(claim["name"]), uid=names.check_uid(claim["uid"])
            ),
            boot_id=str(body.pop("bootID")),
            ready=body.pop("ready") is True,
            pod_claim=str(body.pop("podClaim", "")),
            devices=tuple(_decode_device(device) for device in body.pop("devices")),
            effects=tuple(effect.decode(one) for one in body.pop("effects")),
            unknown=MappingProxyType(body),
        )
    except (LookupError, TypeError, ValueError, AttributeError, InvalidValueError) as exc:
        raise RecordError(f"its content is not that of a record: {exc!r}") from exc


def _encode_device(device: RecordedDevice) -> dict[str, Any]:
    holding = device.holding
    placement = holding.placement
    return {
        **device.unknown,
        "request": device.request,
        "pool": device.pool,
        "device": holding.device,
        "kind": device.kind,
        "gpu": holding.gpu_uuid,
        "placement": [placement.start, placement.size] if placement else None,
        "shareID": holding.share_id,
        "adminAccess": holding.admin_access,
        "memoryLimit": device.memory_limit,
        "threadPercentage": device.thread_percentage,
    }


def _decode_device(item: Mapping[str, Any]) -> RecordedDevice:
    rest = dict(item)
    placement = rest.pop("placement")
    holding = Holding(
        device=str(rest.pop("device")),
        gpu_uuid=str(rest.pop("gpu")),
        placement=Placement(int(placement[0]), int(placement[1])) if placement else None,
        share_id=_optional(str, rest.pop("shareID")),
        admin_access=rest.pop("adminAccess") is True,
    )
    return RecordedDevice(
        request=str(rest.pop("request")),
        pool=str(rest.pop("pool")),
        kind=str(rest.pop("kind")),
        holding=holding,
        memory_limit=_optional(int, rest.pop("memoryLimit")),
        thread_percentage=_optional(int, rest.pop("threadPercentage")),
        unknown=MappingProxyType(rest),
    )


def _optional(kind: Callable[[Any], T], value: Any) -> T | None:
    return None if value is None else kind(value)


def _json_object(data: bytes, what: str) -> Mapping[str, Any]:
    try:
        value = parse_json(data)
    except ValueError as exc:
        raise RecordError(f"{what} is no JSON ({exc})") from exc
    if not isinstance(value, dict):
        raise RecordError(f"{what} is no JSON object")
    return value
