"""JSON merge patch (RFC 7386) and JSON patch (RFC 6902). Pure; neither changes its arguments."""

from __future__ import annotations

from typing import Any

from driver.localcluster.apiserver.errors import StatusError, bad_request
from driver.localcluster.apiserver.objects import clone

_MOST_OPERATIONS = 10_000


def merge_patch(target: Any, patch: Any) -> Any:
    """Apply a JSON merge patch: null removes, objects merge, all else replaces."""
    if not isinstance(patch, dict):
        return clone(patch)
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merge_patch(result.get(key), value)
    return result


def json_patch(target: Any, operations: Any) -> Any:
    """Apply a JSON patch.

    :raises StatusError: 400 if it is not a patch, 422 if it can't be applied to this object.
    """
    if not isinstance(operations, list) or len(operations) > _MOST_OPERATIONS:
        raise bad_request(f"a JSON patch is a list of at most {_MOST_OPERATIONS} operations")
    result = clone(target)
    for operation in operations:
        result = _apply(result, operation)
    return result


def _unable(why: str) -> StatusError:
    return StatusError(422, "Invalid", f"the server rejected our request due to an error in our request: {why}")


def _apply(document: Any, operation: Any) -> Any:
    if not isinstance(operation, dict) or not isinstance(operation.get("path"), str):
        raise bad_request(f"not a JSON patch operation: {operation!r}")
    name, path = operation.get("op"), _steps(operation["path"])
    if name == "test":
        if _at(document, path) != operation.get("value"):
            raise _unable(f"testing value {operation['path']} failed")
        return document
    if name in ("move", "copy"):
        source = _steps(str(operation.get("from", "")))
        value = clone(_at(document, source))
        document = _remove(document, source) if name == "move" else document
        return _put(document, path, value, replace=False)
    if name == "remove":
        return _remove(document, path)
    if name in ("add", "replace"):
        return _put(document, path, clone(operation.get("value")), replace=name == "replace")
    raise bad_request(f"unknown JSON patch operation {name!r}")


def _steps(path: str) -> list[str]:
    if path and not path.startswith("/"):
        raise bad_request(f"a JSON pointer starts with a slash: {path!r}")
    return [step.replace("~1", "/").replace("~0", "~") for step in path.split("/")[1:]]


def _index(container: list[Any], step: str, last: int) -> int:
    if step.isdecimal() and int(step) <= last:
        return int(step)
    raise _unable(f"no element {step!r} in a list of {len(container)}")


def _at(document: Any, path: list[str]) -> Any:
    for step in path:
        if isinstance(document, list):
            document = document[_index(document, step, len(document) - 1)]
        elif isinstance(document, dict) and step in document:
            document = document[step]
        else:
            raise _unable(f"no value at {'/'.join(path)}")
    return document


def _remove(document: Any, path: list[str]) -> Any:
    _at(document, path)
    if not path:
        raise _unable("the whole object can't be removed")
    parent = _at(document, path[:-1])
    if isinstance(parent, list):
        del parent[int(path[-1])]
    else:
        del parent[path[-1]]
    return document


def _put(document: Any, path: list[str], value: Any, *, replace: bool) -> Any:
    if replace:
        _at(document, path)
    if not path:
        return value
    parent = _at(document, path[:-1])
    if isinstance(parent, dict):
        parent[path[-1]] = value
    elif isinstance(parent, list) and replace:
        parent[_index(parent, path[-1], len(parent) - 1)] = value
    elif isinstance(parent, list):
        at = len(parent) if path[-1] == "-" else _index(parent, path[-1], len(parent))
        parent.insert(at, value)
    else:
        raise _unable(f"no object or list at {'/'.join(path[:-1])}")
    return document
