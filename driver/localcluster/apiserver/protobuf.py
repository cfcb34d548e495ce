"""Read Kubernetes' protobuf bodies, which `kubectl create namespace` and its like send without asking. Pure.

The envelope is `k8s`, a NUL and a `runtime.Unknown`; the types are those of the table. Answers are always JSON, which
every client of this encoding understands, too.
"""

from __future__ import annotations

import base64
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from driver.localcluster.apiserver.errors import bad_request
from driver.localcluster.apiserver.fields import Field, declared, type_name
from driver.model.wording import timestamp

if TYPE_CHECKING:
    from collections.abc import Iterator

    from driver.localcluster.apiserver.objects import Object

CONTENT_TYPE: Final = "application/vnd.kubernetes.protobuf"
_MAGIC: Final = b"k8s\x00"
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


def read(data: bytes) -> Object:
    """Return the object in a body.

    :raises StatusError: 400 for anything that is not one of the known types in this encoding.
    """
    if not data.startswith(_MAGIC):
        raise bad_request("provided data does not appear to be a protobuf message, expected prefix [107 56 115 0]")
    try:
        return _envelope(data[len(_MAGIC) :])
    except (IndexError, ValueError, OverflowError, RecursionError) as exc:
        raise bad_request(f"the protobuf body can't be read: {exc}") from exc


def _envelope(data: bytes) -> Object:
    parts = dict(_wire(data))
    about = {number: _bytes(value).decode() for number, value in _wire(_bytes(parts.get(1, b"")))}
    api_version, kind = about.get(1, ""), about.get(2, "")
    if api_version == "meta.k8s.io/v1" or kind == "DeleteOptions":
        type_: str | None = f"meta.{kind}"
    else:
        type_ = type_name(api_version, kind)
    if type_ is None or type_ not in declared():
        raise bad_request(f'no kind "{kind}" is registered for version "{api_version}" in the protobuf encoding')
    return {"apiVersion": api_version, "kind": kind, **_message(type_, _bytes(parts.get(2, b"")))}


def _bytes(value: Any) -> bytes:
    if not isinstance(value, bytes):
        raise ValueError("a number where a message is expected")  # noqa: TRY004 - mapped to a 400 above
    return value


def _number(value: Any) -> int:
    if not isinstance(value, int):
        raise ValueError("bytes where a number is expected")  # noqa: TRY004 - mapped to a 400 above
    return value


def _wire(data: bytes) -> Iterator[tuple[int, Any]]:
    """Yield field numbers and raw values (int or bytes)."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        number, kind = tag >> 3, tag & 7
        if kind == _VARINT:
            value, at = _varint(data, at)
            yield number, value
        elif kind == _BYTES:
            size, at = _varint(data, at)
            if at + size > len(data):
                raise ValueError("unexpected end of data")
            yield number, data[at : at + size]
            at += size
        elif kind in (_FIXED64, _FIXED32):
            size = 8 if kind == _FIXED64 else 4
            yield number, data[at : at + size]
            at += size
        else:
            raise ValueError(f"wire type {kind}")


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def _message(type_: str, data: bytes) -> Object:
    fields = {field.number: field for field in declared()[type_]}
    result: Object = {}
    for number, raw in _wire(data):
        field = fields.get(number)
        if field is None:
            continue
        if field.inline:
            result.update(_message(field.type, _bytes(raw)))
        elif field.shape == "map":
            pair = dict(_wire(_bytes(raw)))
            key = _bytes(pair.get(1, b"")).decode()
            result.setdefault(field.name, {})[key] = _value(field, pair.get(2, b""))
        elif field.shape == "list":
            result.setdefault(field.name, []).append(_value(field, raw))
        else:
            _set(result, field, _value(field, raw))
    return result


def _set(result: Object, field: Field, value: Any) -> None:
    """Leave out what Go encodes although it was not set: empty strings and zero times."""
    if value not in ("", None):
        result[field.name] = value


def _value(field: Field, raw: Any) -> Any:
    if field.is_message:
        return _message(field.type, _bytes(raw))
    if field.type == "bool":
        return bool(raw)
    if field.type == "int":
        number = _number(raw)
        return number - (1 << 64) if number >= 1 << 63 else number
    data = _bytes(raw)
    if field.type == "string":
        return data.decode()
    if field.type == "bytes":
        return base64.b64encode(data).decode()
    return _special(field.type, dict(_wire(data)))


def _special(type_: str, parts: dict[int, Any]) -> Any:
    if type_ == "quantity":
        return _bytes(parts.get(1, b"")).decode()
    if type_ == "intstr":
        return _bytes(parts.get(3, b"")).decode() if parts.get(1) else _number(parts.get(2, 0))
    if type_ in ("time", "microtime"):
        if not parts.get(1):
            return None
        return timestamp(datetime.fromtimestamp(_number(parts[1]), UTC))
    import json

    return json.loads(_bytes(parts.get(1, b"null")))
