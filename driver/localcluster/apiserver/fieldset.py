"""Sets of fields in the form of `managedFields`: `f:NAME`, `k:{"KEY":VALUE}`, `v:VALUE`. Pure.

A set is a nested mapping; an empty mapping is a leaf, that is a field owned as a whole.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from driver.localcluster.apiserver.fields import Field, fields_of

if TYPE_CHECKING:
    from collections.abc import Iterator

FieldSet = dict[str, Any]
Path = tuple[str, ...]

SELF = "."
"""Marks that an element itself is owned, beside fields of it."""


def of(type_: str | None, value: Any) -> FieldSet:
    """Return the fields that a configuration of a type sets."""
    fields = fields_of(type_) if type_ else {}
    return {f"f:{key}": _of_field(fields.get(key), item) for key, item in value.items()}


def _of_field(field: Field | None, value: Any) -> FieldSet:
    inner = field.type if field is not None and field.is_message else None
    if isinstance(value, dict):
        if field is not None and field.shape == "map":
            return {f"f:{key}": of(inner, item) if inner and item else {} for key, item in value.items()}
        return of(inner, value) if inner else {f"f:{key}": {} for key in value}
    if isinstance(value, list) and field is not None and field.keys:
        return {element(field, item): {SELF: {}, **of(inner, item)} for item in value if isinstance(item, dict)}
    if isinstance(value, list) and field is not None and field.is_set:
        return {element(field, item): {} for item in value}
    return {}


def element(field: Field, item: Any) -> str:
    """Return the path element of a list's element."""
    if not field.keys:
        return f"v:{json.dumps(item)}"
    keys = {key: item[key] for key in sorted(field.keys) if key in item}
    return f"k:{json.dumps(keys, separators=(',', ':'))}"


def paths(fields: FieldSet, prefix: Path = ()) -> Iterator[Path]:
    """Yield the leaves of a set."""
    for key, inner in fields.items():
        if inner:
            yield from paths(inner, (*prefix, key))
        else:
            yield (*prefix, key)


def from_paths(leaves: Iterator[Path] | list[Path]) -> FieldSet:
    """Return the set with these leaves."""
    result: FieldSet = {}
    for path in leaves:
        at = result
        for key in path:
            at = at.setdefault(key, {})
    return result


_MISSING = object()


def lookup(type_: str | None, value: Any, path: Path) -> Any:
    """Return the value at a path, an own marker if there is none: compare with `is_missing`."""
    field: Field | None = None
    for step in path:
        if step == SELF:
            return True
        value, field = _step(type_, field, value, step)
        if value is _MISSING:
            return _MISSING
        type_ = field.type if field is not None and field.is_message else None
    return value


def _step(type_: str | None, field: Field | None, value: Any, step: str) -> tuple[Any, Field | None]:
    if step.startswith("f:") and isinstance(value, dict):
        name = step[2:]
        if field is not None and field.shape == "map":
            found = Field(number=0, name=name, type=field.type)
        else:
            found = fields_of(type_).get(name) if type_ else None  # type: ignore[assignment] # None: not in the table
        return value.get(name, _MISSING), found
    if field is not None and isinstance(value, list):
        item = next((item for item in value if element(field, item) == step), _MISSING)
        return item, Field(number=0, name="", type=field.type)
    return _MISSING, None


def is_missing(value: Any) -> bool:
    """Say whether `lookup` found nothing."""
    return value is _MISSING


def remove(type_: str | None, value: Any, path: Path, field: Field | None = None) -> None:
    """Remove what is at a path, in place; what is not there is fine."""
    step = path[0]
    if len(path) == 1 or path[1] == SELF:
        _remove_here(field, value, step)
        return
    inner, found = _step(type_, field, value, step)
    if inner is not _MISSING:
        remove(found.type if found is not None and found.is_message else None, inner, path[1:], found)


def _remove_here(field: Field | None, value: Any, step: str) -> None:
    if isinstance(value, dict):
        value.pop(step[2:], None)
    elif isinstance(value, list) and field is not None:
        value[:] = [item for item in value if element(field, item) != step]
