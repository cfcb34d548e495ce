"""Bodies in Kubernetes' protobuf encoding, written here by hand from its documentation."""

from __future__ import annotations

import pytest

from driver.localcluster.apiserver import StatusError
from driver.localcluster.apiserver.protobuf import read


def varint(value):
    out = b""
    while True:
        value, low = value >> 7, value & 0x7F
        if not value:
            return out + bytes([low])
        out += bytes([low | 0x80])


def number(field, value):
    return varint(field << 3) + varint(value)


def text(field, value):
    data = value if isinstance(value, bytes) else value.encode()
    return varint(field << 3 | 2) + varint(len(data)) + data


def envelope(api_version, kind, raw):
    return b"k8s\0" + text(1, text(1, api_version) + text(2, kind)) + text(2, raw) + text(3, "") + text(4, "")


def test_names_maps_and_bytes():
    meta = text(1, "x") + text(2, "") + text(3, "default") + text(11, text(1, "k") + text(2, "v")) + text(8, b"")
    secret = text(1, meta) + text(2, text(1, "a") + text(2, b"\x00\x01"))
    assert read(envelope("v1", "Secret", secret)) == {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "x", "namespace": "default", "labels": {"k": "v"}},
        "data": {"a": "AAE="},
    }


def test_inline_fields_lists_quantities_and_numbers():
    container = text(1, "c") + text(8, text(1, text(1, "cpu") + text(2, text(1, "500m"))))
    port = number(1, 1) + text(3, "http")  # an IntOrString that is a string
    probe = text(1, text(2, text(1, "/") + text(2, port))) + number(3, 7)
    container += text(11, probe)
    volume = text(1, "v") + text(2, text(2, b""))
    spec = text(1, volume) + text(2, container) + number(4, 30) + number(11, 1)
    assert read(envelope("v1", "Pod", text(2, spec)))["spec"] == {
        "volumes": [{"name": "v", "emptyDir": {}}],
        "containers": [
            {
                "name": "c",
                "resources": {"limits": {"cpu": "500m"}},
                "readinessProbe": {"httpGet": {"path": "/", "port": "http"}, "timeoutSeconds": 7},
            }
        ],
        "terminationGracePeriodSeconds": 30,
        "hostNetwork": True,
    }


def test_negative_numbers_and_times():
    meta = text(8, number(1, 1_767_225_600))
    found = read(envelope("scheduling.k8s.io/v1", "PriorityClass", text(1, meta) + number(2, (1 << 64) - 5)))
    assert (found["value"], found["metadata"]["creationTimestamp"]) == (-5, "2026-01-01T00:00:00Z")


def test_unknown_numbers_are_skipped():
    raw = (
        text(1, text(1, "x"))
        + text(99, "y")
        + number(98, 1)
        + varint(97 << 3 | 1)
        + bytes(8)
        + varint(96 << 3 | 5)
        + bytes(4)
    )
    assert read(envelope("v1", "ConfigMap", raw))["metadata"] == {"name": "x"}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{}",
        b"k8s\0\xff",
        b"k8s\0" + varint(1 << 3 | 2) + varint(100),
        b"k8s\0" + number(1, 5),
        b"k8s\0" + varint(1 << 3 | 7),
        envelope("v1", "Nothing", b""),
        envelope("v1", "ConfigMap", number(1, 5)),
        envelope("v1", "ConfigMap", text(1, text(1, b"\xff\xfe"))),
    ],
)
def test_what_can_not_be_read_is_400(data):
    with pytest.raises(StatusError) as caught:
        read(data)
    assert caught.value.code == 400
