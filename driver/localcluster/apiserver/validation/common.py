"""What all validation shares: the forms of messages and of names. Pure."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final

from driver.localcluster.apiserver.errors import Cause

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_LABEL: Final = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN: Final = rf"{_LABEL}(\.{_LABEL})*"
_NAME_PART: Final = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"
_LABEL_RE = re.compile(_LABEL)
_SUBDOMAIN_RE = re.compile(_SUBDOMAIN)
_NAME_PART_RE = re.compile(_NAME_PART)
_C_IDENTIFIER_MAX = 32  # bytes
_C_IDENTIFIER_RE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SEMVER = re.compile(
    r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)"
    r"(-(0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*)(\.(0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*))*)?"
    r"(\+[0-9a-zA-Z-]+(\.[0-9a-zA-Z-]+)*)?",
    re.ASCII,
)
_LABEL_MESSAGE: Final = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with "
    f"an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '{_LABEL}')"
)
_SUBDOMAIN_MESSAGE: Final = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and "
    f"end with an alphanumeric character (e.g. 'example.com', regex used for validation is '{_SUBDOMAIN}')"
)
_C_IDENTIFIER_MESSAGE: Final = (
    "a valid C identifier must start with alphabetic character or '_', followed by a string of alphanumeric characters "
    "or '_' (e.g. 'my_name',  or 'MY_NAME',  or 'MyName', regex used for validation is '[A-Za-z_][A-Za-z0-9_]*')"
)
_LABEL_VALUE_MESSAGE: Final = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and "
    "end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is "
    "'(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
)
_NAME_PART_MESSAGE: Final = (
    "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric "
    "character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is "
    "'([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
)


def required(field: str, detail: str = "") -> Cause:
    """Return the error of a missing field."""
    return Cause(field=field, reason="FieldValueRequired", text="Required value" + (f": {detail}" if detail else ""))


def invalid(field: str, value: Any, detail: str) -> Cause:
    """Return the error of a value that is not right."""
    shown = value if isinstance(value, Raw) else json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    return Cause(field=field, reason="FieldValueInvalid", text=f"Invalid value: {shown}: {detail}")


class Raw(str):
    """A value that a message shows as it is, without quotes."""

    __slots__ = ()


def too_long(field: str, limit: int) -> Cause:
    """Return the error of a string that is too long."""
    return Cause(field=field, reason="FieldValueTooLong", text=f"Too long: may not be more than {limit} bytes")


def too_many(field: str, count: int, limit: int) -> Cause:
    """Return the error of a list or map that has too many elements."""
    items = "item" if limit == 1 else "items"
    return Cause(field=field, reason="FieldValueTooMany", text=f"Too many: {count}: must have at most {limit} {items}")


def unsupported(field: str, value: Any, supported: Iterable[str]) -> Cause:
    """Return the error of a value that is none of a few."""
    known = ", ".join(json.dumps(word) for word in sorted(supported))
    return Cause(
        field=field,
        reason="FieldValueNotSupported",
        text=f"Unsupported value: {json.dumps(value)}: supported values: {known}",
    )


def duplicate(field: str, value: Any) -> Cause:
    """Return the error of an element that is there twice."""
    return Cause(field=field, reason="FieldValueDuplicate", text=f"Duplicate value: {json.dumps(value)}")


def not_found(field: str, value: Any) -> Cause:
    """Return the error of a name that refers to nothing."""
    return Cause(field=field, reason="FieldValueNotFound", text=f"Not found: {json.dumps(value)}")


def forbidden(field: str, detail: str) -> Cause:
    """Return the error of a field that must not be set here."""
    return Cause(field=field, reason="FieldValueForbidden", text=f"Forbidden: {detail}")


def dns_label(field: str, value: str) -> list[Cause]:
    """Check a lowercase RFC 1123 label."""
    found = []
    if len(value) > 63:
        found.append(invalid(field, value, "must be no more than 63 characters"))
    if not _LABEL_RE.fullmatch(value):
        found.append(invalid(field, value, _LABEL_MESSAGE))
    return found


def dns_subdomain(field: str, value: str, limit: int = 253) -> list[Cause]:
    """Check a lowercase RFC 1123 subdomain."""
    found = []
    if len(value) > limit:
        found.append(invalid(field, value, f"must be no more than {limit} characters"))
    if not _SUBDOMAIN_RE.fullmatch(value):
        found.append(invalid(field, value, _SUBDOMAIN_MESSAGE))
    return found


def driver_name(field: str, value: str) -> list[Cause]:
    """Check a driver's name, which may have capitals (`recordings: driver-uppercase`)."""
    if not value:
        return [required(field)]
    if len(value.encode()) > 63:
        return [too_long(field, 63)]
    return [Cause(field=c.field, reason=c.reason, text=c.text) for c in dns_subdomain(field, value.lower())]


def pool_name(field: str, value: str) -> list[Cause]:
    """Check a pool's name: subdomains joined by slashes."""
    if not value:
        return [required(field)]
    found = [too_long(field, 253)] if len(value.encode()) > 253 else []
    for part in value.split("/"):
        found += dns_subdomain(field, part)
    return found


def c_identifier(field: str, value: str) -> list[Cause]:
    """Check a C identifier."""
    found = [too_long(field, _C_IDENTIFIER_MAX)] if len(value.encode()) > _C_IDENTIFIER_MAX else []
    if not _C_IDENTIFIER_RE.fullmatch(value):
        found.append(invalid(field, value, _C_IDENTIFIER_MESSAGE))
    return found


def qualified_attribute(field: str, value: str) -> list[Cause]:
    """Check `[domain/]identifier`; the real one does not look at names with two slashes (`recordings`)."""
    parts = value.split("/")
    if not value:
        return [required(field)]
    if len(parts) == 1:
        return c_identifier(field, value)
    if len(parts) == 2:
        domain = driver_name(field, parts[0]) if parts[0] else [invalid(field, "", "the domain must not be empty")]
        name = c_identifier(field, parts[1]) if parts[1] else [invalid(field, "", "the name must not be empty")]
        return domain + name
    return []


def label_value(field: str, value: str) -> list[Cause]:
    """Check the value of a label."""
    found = []
    if len(value) > 63:
        found.append(invalid(field, value, "must be no more than 63 characters"))
    if value and not _NAME_PART_RE.fullmatch(value):
        found.append(invalid(field, value, _LABEL_VALUE_MESSAGE))
    return found


def qualified_name(field: str, value: str) -> list[Cause]:
    """Check `[prefix/]name`, the key of a label, annotation or taint."""
    prefix, slash, name = value.rpartition("/")
    found = []
    if slash and not prefix:
        found.append(invalid(field, value, "prefix part must be non-empty"))
    elif slash:
        found += [invalid(field, value, f"prefix part {_SUBDOMAIN_MESSAGE}")] if dns_subdomain(field, prefix) else []
    if not name:
        found.append(invalid(field, value, "name part must be non-empty"))
    elif len(name) > 63:
        found.append(invalid(field, value, "name part must be no more than 63 characters"))
    if not _NAME_PART_RE.fullmatch(name):
        found.append(invalid(field, value, _NAME_PART_MESSAGE))
    return found


def is_semver(value: str) -> bool:
    """Say whether a text is a version of semver.org 2.0.0."""
    return _SEMVER.fullmatch(value) is not None


def at_most(field: str, values: Sequence[Any] | dict[str, Any], limit: int) -> list[Cause]:
    """Check a number of elements."""
    return [too_many(field, len(values), limit)] if len(values) > limit else []
