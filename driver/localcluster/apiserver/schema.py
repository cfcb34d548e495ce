"""Check an object against the table of types: unknown and repeated fields, wrong types, quantities. Pure.

The result is a copy in the server's own spelling: unknown fields, nulls and empty lists are gone, quantities are
canonical (`recordings: unknown-field, empty-devices-list, capacity-bad-suffix`).
"""

from __future__ import annotations

import base64
import binascii
import re
from typing import TYPE_CHECKING, Any

from driver.errors import InvalidValueError
from driver.localcluster.apiserver import repeated
from driver.localcluster.apiserver.errors import StatusError, bad_request
from driver.localcluster.apiserver.fields import OPEN, Field, fields_of, type_name
from driver.localcluster.apiserver.objects import clone
from driver.localcluster.apiserver.quantities import PATTERN, canonical

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from driver.localcluster.apiserver.objects import Object

_TIME = re.compile(r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)")
_MODES = ("Strict", "Warn", "Ignore")
_TYPE_META = ("apiVersion", "kind")


class _WrongTypeError(Exception):
    """Carries the part of the message after `cannot be handled as a KIND: `."""


def check(api_version: str, kind: str, obj: Object, field_validation: str = "Ignore") -> tuple[Object, list[str]]:
    """Return a copy without the fields that the API does not know, and warnings about them and about repeated ones.

    :raises StatusError: 400 for a value of a wrong type, and for such fields if `field_validation` is Strict.
    """
    if field_validation not in _MODES:
        raise bad_request(
            f'fieldValidation: Unsupported value: "{field_validation}": supported values: "Ignore", "Strict", "Warn"'
        )
    type_ = type_name(api_version, kind)
    if type_ is None:
        return clone(obj), []
    walk = _Walk()
    try:
        checked = walk.message(type_, obj, "")
    except _WrongTypeError as error:
        raise _unfit(api_version, kind, str(error)) from error
    lines = repeated.lines(obj)
    if field_validation == "Strict" and (lines or walk.found):
        raise _unfit(api_version, kind, strict_error([*repeated.as_error(lines), *walk.found]))
    return checked, [*lines, *walk.found] if field_validation == "Warn" else []


def strict_error(found: Iterable[str]) -> str:
    """Return what a strict client is told."""
    return f"strict decoding error: {', '.join(found)}"


def _unfit(api_version: str, kind: str, why: str) -> StatusError:
    version = api_version.rpartition("/")[2]
    return bad_request(f'{kind} in version "{version}" cannot be handled as a {kind}: {why}')


class _Walk:
    def __init__(self) -> None:
        self.found: list[str] = []

    def message(self, type_: str, value: Any, path: str) -> Object:
        fields, again = fields_of(type_), repeated.keys_again(value)
        result: Object = {}
        for name, item in value.items():
            field = fields.get(name)
            if field is None:
                if not path and name in _TYPE_META:
                    result[name] = item
                else:
                    self.found.append(f'unknown field "{_plain(path)}{name}"')
                continue
            if item is not None:
                found = self._field(type_, field, item, f"{path}{name}")
                if found or not field.shape:
                    result[name] = found
            if name in again:
                self.found.append(repeated.again(_plain(path) + name))
        return result

    def _field(self, owner: str, field: Field, value: Any, path: str) -> Any:
        if not field.shape:
            return self._single(owner, field, value, path)
        if field.shape == "list":
            if not isinstance(value, list):
                raise _mismatch(owner, path, value, f"[]{_go_type(field)}")
            return [self._single(owner, field, item, f"{path}[{at}]") for at, item in enumerate(value)]
        if not isinstance(value, dict):
            raise _mismatch(owner, path, value, f"map[string]{_go_type(field)}")
        self.found += [repeated.again(f"{_plain(path)}.{key}") for key in value if key in repeated.keys_again(value)]
        return {key: self._single(owner, field, item, f"{path}[{key}]") for key, item in value.items()}

    def _single(self, owner: str, field: Field, value: Any, path: str) -> Any:
        if field.type == OPEN:
            return clone(value)
        if not field.is_message:
            return _READERS[field.type](owner, field, value, path)
        if value is None:
            value = {}
        if not isinstance(value, dict):
            raise _mismatch(owner, path, value, _go_type(field))
        return self.message(field.type, value, f"{path}.")


def _plain(path: str) -> str:
    """Return a path in which the keys of maps look like fields."""
    return re.sub(r"\[([^\]]*[^\]\d][^\]]*)\]", r".\1", path)


def _go_type(field: Field) -> str:
    if field.is_message:
        package, _, name = field.type.rpartition(".")
        return f"{package.split('/')[-1]}.{name}"
    return {"int": "int64", "number": "float64", "bytes": "[]uint8"}.get(field.type, field.type)


def _mismatch(owner: str, path: str, value: Any, wanted: str) -> _WrongTypeError:
    kinds = {bool: "bool", str: "string", int: "number", float: "number", list: "array", dict: "object"}
    plain = re.sub(r"\[[^\]]*\]", "", path)
    where = f"{owner.rpartition('.')[2]}.{plain}"
    given = kinds.get(type(value), "null")
    return _WrongTypeError(f"json: cannot unmarshal {given} into Go struct field {where} of type {wanted}")


def _read_string(owner: str, field: Field, value: Any, path: str) -> Any:
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    raise _mismatch(owner, path, value, "string")


def _read_bool(owner: str, field: Field, value: Any, path: str) -> Any:
    if isinstance(value, bool):
        return value
    raise _mismatch(owner, path, value, "bool")


def _read_int(owner: str, field: Field, value: Any, path: str) -> Any:
    if isinstance(value, int) and not isinstance(value, bool) and -(1 << 63) <= value < 1 << 63:
        return value
    raise _mismatch(owner, path, value, "int64")


def _read_number(owner: str, field: Field, value: Any, path: str) -> Any:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return value
    raise _mismatch(owner, path, value, "float64")


def _read_quantity(owner: str, field: Field, value: Any, path: str) -> Any:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        value = str(value)
    try:
        return canonical(value)
    except (InvalidValueError, TypeError, AttributeError) as error:
        raise _WrongTypeError(f"quantities must match the regular expression '{PATTERN}'") from error


def _read_intstr(owner: str, field: Field, value: Any, path: str) -> Any:
    if isinstance(value, (int, str)) and not isinstance(value, bool):
        return value
    raise _mismatch(owner, path, value, "intstr.IntOrString")


def _read_time(owner: str, field: Field, value: Any, path: str) -> Any:
    if isinstance(value, str) and _TIME.fullmatch(value):
        return value
    if not isinstance(value, str):
        raise _mismatch(owner, path, value, "string")
    raise _WrongTypeError(f'parsing time "{value}" as "2006-01-02T15:04:05Z07:00": cannot parse "{value}" as "2006"')


def _read_bytes(owner: str, field: Field, value: Any, path: str) -> Any:
    if not isinstance(value, str):
        raise _mismatch(owner, path, value, "[]uint8")
    try:
        base64.b64decode(value, validate=True)
    except binascii.Error as error:
        raise _WrongTypeError(f"illegal base64 data in {path}") from error
    return value


_READERS: Mapping[str, Callable[[str, Field, Any, str], Any]] = {
    "string": _read_string,
    "bool": _read_bool,
    "int": _read_int,
    "number": _read_number,
    "quantity": _read_quantity,
    "intstr": _read_intstr,
    "time": _read_time,
    "microtime": _read_time,
    "bytes": _read_bytes,
}
