from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from driver.claims import record
from driver.claims.allocation import ClaimRef
from driver.claims.holding import Holding
from driver.claims.record import Record, RecordedDevice
from driver.errors import RecordError
from driver.model.mig import Placement
from tests.unit.claims.helpers import ref, uid

SHARE = "b98a178b-5be9-4ea2-99fc-1977135f03cc"

text = st.text(min_size=1, max_size=20)
holdings = st.builds(
    Holding,
    device=text,
    gpu_uuid=text,
    placement=st.none() | st.builds(Placement, st.integers(0, 7), st.integers(1, 8)),
    share_id=st.none() | st.just(SHARE),
    admin_access=st.booleans(),
)
records = st.builds(
    Record,
    claim=st.builds(ClaimRef, namespace=text, name=text, uid=st.just(uid(1))),
    boot_id=text,
    devices=st.lists(
        st.builds(RecordedDevice, request=text, pool=text, holding=holdings, kind=st.sampled_from(["gpu", "mig"])),
        max_size=4,
    ).map(tuple),
)


def sample() -> Record:
    device = RecordedDevice(
        request="gpus/large", pool="node-a", kind="gpu", holding=Holding(device="gpu-0", gpu_uuid="GPU-0")
    )
    return Record(claim=ref(1), boot_id="boot-1", devices=(device,))


def resign(payload: bytes, **head: Any) -> bytes:
    """A file with a right checksum around `payload`."""
    first = {
        "format": record.FORMAT,
        "version": 1,
        "reads": 1,
        "sha256": hashlib.sha256(payload).hexdigest(),
        **head,
    }
    return json.dumps(first).encode() + b"\n" + payload + b"\n"


@given(records)
def test_what_is_written_is_read_back(one: Record) -> None:
    assert record.decode(record.encode(one), uid(1)) == one


@given(records, st.data())
def test_any_flipped_byte_is_noticed_and_never_crashes(one: Record, data: st.DataObject) -> None:
    encoded = bytearray(record.encode(one))
    position = data.draw(st.integers(0, len(encoded) - 1))
    encoded[position] ^= data.draw(st.integers(1, 255))
    try:
        again = record.decode(bytes(encoded), uid(1))
    except RecordError:
        record.salvage(bytes(encoded), uid(1))
    else:  # only a flip within the first line that changes nothing that is used
        assert again == one


def test_the_answer_strips_the_subrequest_and_names_the_cdi_device() -> None:
    (answer,) = sample().answer
    assert answer.requests == ("gpus",)
    assert answer.cdi_ids == (f"k8s.gpu.nvidia.com/claim={uid(1)}-gpu-0",)


def test_two_shares_of_one_gpu_have_different_cdi_ids() -> None:
    one = RecordedDevice(
        request="r", pool="p", kind="gpu", holding=Holding(device="gpu-0", gpu_uuid="G", share_id=SHARE)
    )
    assert one.answer("u").cdi_ids == (f"k8s.gpu.nvidia.com/claim=u-gpu-0-{SHARE}",)
    assert one.answer("u").share_id == SHARE


def test_S1_a_flipped_digit_of_the_checksum_is_refused_but_salvaged() -> None:
    data = record.encode(sample())
    position = data.index(b'"sha256": "') + 11
    flipped = data[:position] + (b"0" if data[position : position + 1] != b"0" else b"1") + data[position + 1 :]
    with pytest.raises(RecordError, match="checksum"):
        record.decode(flipped, uid(1))
    assert record.salvage(flipped, uid(1)) == sample()


def test_S3_the_checksum_is_over_the_bytes_not_over_a_spelling_of_them() -> None:
    payload = record.encode(sample()).splitlines()[1]
    respelled = json.dumps(json.loads(payload), indent=None, separators=(" , ", " : "), sort_keys=True).encode()
    assert respelled != payload
    assert record.decode(resign(respelled), uid(1)) == sample()


def test_S4_a_newer_versions_fields_are_tolerated_and_kept() -> None:
    body = json.loads(record.encode(sample()).splitlines()[1])
    body["metadataFile"] = {"path": "/x"}
    body["devices"][0]["ncclRank"] = 3
    read = record.decode(resign(json.dumps(body).encode(), version=7, reads=1, signedBy="x"), uid(1))
    assert read.answer == sample().answer
    again = json.loads(record.encode(read).splitlines()[1])
    assert again["metadataFile"] == {"path": "/x"}
    assert again["devices"][0]["ncclRank"] == 3


GOOD = record.encode(sample())


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "it is empty"),
        (b"\n", "cut short"),
        (b'{"hello": "world"}', "it is no claim record"),
        (b"garbage", "it is no claim record"),
        (GOOD[:5], "cut short"),
        (GOOD[:-1], "cut short"),
        (GOOD[: len(GOOD) // 2], "cut short"),
        (GOOD.splitlines()[0] + b"\n", "cut short"),
        (b"garbage \x00\xff\n{}\n", "first line is no JSON"),
        (b"[]\n{}\n", "first line is no JSON object"),
        (resign(b"{}", format="other"), "no claim record"),
        (resign(b"{}", version=9, reads=9), "version 9, which this driver .* can't read"),
        (resign(b"{}", reads=None), "can't read"),
        (resign(b"{}"), "not that of a record"),
        (resign(b"[1]"), "content is no JSON object"),
        (resign(b"\xff"), "content is no JSON"),
        (resign(b'{"a":' * 100_000), "content is no JSON"),
        (b"[" * 100_000 + b"\n{}\n", "first line is no JSON"),
        (b"x" * (record.MAX_BYTES + 1), "more than any record"),
    ],
)
def test_what_is_no_sound_record_is_refused_with_the_reason(data: bytes, reason: str) -> None:
    with pytest.raises(RecordError, match=reason):
        record.decode(data, uid(1))


def test_another_claims_record_is_refused() -> None:
    with pytest.raises(RecordError, match="another claim"):
        record.decode(GOOD, uid(2))
    assert record.salvage(GOOD, uid(2)) is None


DEEP = b'{"devices":' + b"[" * 100_000
ENDLESS = GOOD.splitlines()[1].replace(b'"placement":null', b'"placement":[1e999,1]')
NO_TEXTS = GOOD.splitlines()[1].replace(b'"name":"claim-1"', b'"name":7').replace(b'"bootID":"boot-1"', b'"bootID":[]')
NO_LIMIT = GOOD.splitlines()[1].replace(b'"memoryLimit":null', b'"memoryLimit":{}')


@pytest.mark.parametrize("payload", [DEEP, ENDLESS, NO_LIMIT])
def test_S1_what_json_has_no_words_for_is_no_record_and_nothing_is_salvaged(payload: bytes) -> None:
    with pytest.raises(RecordError):
        record.decode(resign(payload), uid(1))
    assert record.salvage(resign(payload, sha256="0"), uid(1)) is None


def test_what_is_salvaged_has_texts_where_others_expect_them() -> None:
    found = record.salvage(resign(NO_TEXTS, sha256="0"), uid(1))
    assert found is not None
    assert (found.claim.name, found.boot_id) == ("7", "[]")
