"""The shape of a CDI file, decoded as Go's strict JSON decoder does it: unknown fields and wrong types are refused.

Pure. Written against the CDI specification 1.1.0; the words of the errors are containerd's, as recorded.
"""

from __future__ import annotations

import json
from typing import TypeAlias

from driver.localcluster.containers.errors import CdiError

Schema: TypeAlias = "type | list[Schema] | dict[str, Schema]"

_EDITS: dict[str, Schema] = {
    "env": [str],
    "deviceNodes": [
        {
            "path": str,
            "hostPath": str,
            "type": str,
            "major": int,
            "minor": int,
            "fileMode": int,
            "permissions": str,
            "uid": int,
            "gid": int,
        }
    ],
    "netDevices": [{"hostInterfaceName": str, "name": str}],
    "hooks": [{"hookName": str, "path": str, "args": [str], "env": [str], "timeout": int}],
    "mounts": [{"hostPath": str, "containerPath": str, "options": [str], "type": str}],
    "intelRdt": {
        "closID": str,
        "l3CacheSchema": str,
        "memBwSchema": str,
        "schemata": [str],
        "enableMonitoring": bool,
        "enableCMT": bool,
        "enableMBM": bool,
    },
    "additionalGids": [int],
}

SPEC: dict[str, Schema] = {
    "cdiVersion": str,
    "kind": str,
    "annotations": dict,
    "devices": [{"name": str, "annotations": dict, "containerEdits": _EDITS}],
    "containerEdits": _EDITS,
}

_GO_NAMES: dict[type, str] = {str: "string", int: "int64", bool: "bool", dict: "map[string]string"}


def decode(value: object, schema: Schema = SPEC, path: str = "Spec") -> object:
    """Return `value` with canonical field names.

    Like Go's decoder, field names match in any case and null leaves a field out.

    :raises CdiError: an unknown field or a wrong type, in the words of Go's decoder.
    """
    if isinstance(schema, dict):
        return _decode_object(value, schema, path)
    if isinstance(schema, list):
        if not isinstance(value, list):
            raise _mismatch(value, path, "[]" + _go_name(schema[0]))
        return [decode(item, schema[0], path) for item in value]
    # bool is an int in Python only
    if not isinstance(value, schema) or (schema is int and isinstance(value, bool)):
        raise _mismatch(value, path, _go_name(schema))
    return value


def _decode_object(value: object, schema: dict[str, Schema], path: str) -> dict[str, object]:
    if not isinstance(value, dict):
        raise _mismatch(value, path, "object")
    names = {name.lower(): name for name in schema}
    decoded: dict[str, object] = {}
    for key, item in value.items():
        name = names.get(str(key).lower())
        if name is None:
            raise CdiError(f"json: unknown field {json.dumps(str(key))}")
        if item is not None:
            decoded[name] = decode(item, schema[name], f"{path}.{name}")
    return decoded


def _mismatch(value: object, path: str, wanted: str) -> CdiError:
    return CdiError(f"json: cannot unmarshal {_json_name(value)} into Go struct field {path} of type {wanted}")


def _go_name(schema: Schema) -> str:
    return _GO_NAMES.get(schema, "object") if isinstance(schema, type) else "object"


def _json_name(value: object) -> str:
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, (int, float)):
        return "number"
    if isinstance(value, str):
        return "string"
    return "array" if isinstance(value, list) else "object"
