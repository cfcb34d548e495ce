"""Strategic merge patch: a merge patch that knows the types, so that lists merge by their keys. Pure.

Its directives: `$patch` (replace, delete, merge), `$retainKeys`, `$deleteFromPrimitiveList/F`, `$setElementOrder/F`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from driver.localcluster.apiserver.errors import bad_request
from driver.localcluster.apiserver.fields import Field, fields_of, type_name
from driver.localcluster.apiserver.objects import clone

if TYPE_CHECKING:
    from driver.localcluster.apiserver.objects import Object

_PATCH: Final = "$patch"
_RETAIN: Final = "$retainKeys"
_DELETE_FROM: Final = "$deleteFromPrimitiveList/"
_ORDER: Final = "$setElementOrder/"


def strategic_patch(api_version: str, kind: str, target: Object, patch: Object) -> Object:
    """Apply a strategic merge patch to an object in this version; neither is changed.

    :raises StatusError: 400 for directives and elements that can't be understood.
    """
    return _merge(type_name(api_version, kind), target, patch)


def _merge(type_: str | None, target: Any, patch: Object) -> Object:
    directive = patch.get(_PATCH)
    if directive == "delete":
        return {}
    if directive == "replace":
        return {key: clone(value) for key, value in patch.items() if key != _PATCH}
    if directive not in (None, "merge"):
        raise bad_request(f"Unknown patch type: {directive} in map")
    result: Object = dict(target) if isinstance(target, dict) else {}
    retained = patch.get(_RETAIN)
    if isinstance(retained, list):
        result = {key: value for key, value in result.items() if key in retained}
    fields = fields_of(type_) if type_ else {}
    for key, value in patch.items():
        if not key.startswith("$"):
            _set(result, key, value, fields.get(key))
    _apply_directives(result, patch, fields)
    return result


def _set(result: Object, key: str, value: Any, field: Field | None) -> None:
    if value is None:
        result.pop(key, None)
    elif isinstance(value, dict):
        inner = field.type if field is not None and field.is_message and not field.shape else None
        if field is not None and field.shape == "map" and field.is_message:
            result[key] = _merge_map(field, result.get(key), value)
        else:
            result[key] = _merge(inner, result.get(key), value)
    elif isinstance(value, list) and field is not None and field.merge_key is not None:
        result[key] = _merge_list(field, result.get(key) or [], value)
    else:
        result[key] = clone(value)


def _merge_map(field: Field, target: Any, patch: Object) -> Object:
    result: Object = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = _merge(field.type, result.get(key), value) if isinstance(value, dict) else clone(value)
    return result


def _merge_list(field: Field, target: list[Any], patch: list[Any]) -> list[Any]:
    if not field.merge_key:
        return [*target, *(item for item in patch if item not in target)]
    if any(isinstance(item, dict) and item.get(_PATCH) == "replace" for item in patch):
        return [clone(item) for item in patch if item.get(_PATCH) != "replace"]
    result = list(target)
    for item in patch:
        _merge_item(field, result, item)
    return result


def _merge_item(field: Field, result: list[Any], item: Any) -> None:
    key = field.merge_key or ""
    if not isinstance(item, dict) or key not in item:
        raise bad_request(f"map: {item} does not contain declared merge key: {key}")
    at = next((n for n, old in enumerate(result) if isinstance(old, dict) and old.get(key) == item[key]), None)
    if item.get(_PATCH) == "delete":
        if at is not None:
            del result[at]
    elif at is None:
        result.append(_merge(field.type if field.is_message else None, {}, item))
    else:
        result[at] = _merge(field.type if field.is_message else None, result[at], item)


def _apply_directives(result: Object, patch: Object, fields: Any) -> None:
    for key, value in patch.items():
        if key.startswith(_DELETE_FROM) and isinstance(value, list):
            name = key.removeprefix(_DELETE_FROM)
            result[name] = [item for item in result.get(name) or [] if item not in value]
        elif key.startswith(_ORDER) and isinstance(value, list):
            name = key.removeprefix(_ORDER)
            field = fields.get(name)
            if name in result and field is not None and field.merge_key is not None:
                result[name] = _ordered(field.merge_key, result[name], value)


def _ordered(key: str, items: list[Any], order: list[Any]) -> list[Any]:
    """Bring the named elements into order; those that only the server has keep their places."""
    wanted = [item.get(key) if key and isinstance(item, dict) else item for item in order]

    def place(item: Any) -> int | None:
        value = item.get(key) if key else item
        return wanted.index(value) if value in wanted else None

    slots = [at for at, item in enumerate(items) if place(item) is not None]
    named = sorted((items[at] for at in slots), key=lambda item: place(item) or 0)
    result = list(items)
    for at, item in zip(slots, named, strict=True):
        result[at] = item
    return result
