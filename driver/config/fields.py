"""What a parameter may hold: how it is decoded, and the JSON Schema that says the same. Pure.

A parameter is a field of a dataclass, declared by `parameter`, so that decoding and the schema that is shipped can't
drift apart. `null` is the same as nothing, as in Kubernetes.
"""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TypeVar

from driver.errors import InvalidValueError
from driver.model import quantity
from driver.model.decode import boolean, integer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from driver.model.decode import Fields

T = TypeVar("T")
Schema = dict[str, Any]

MIN_MEMORY_LIMIT: Final = quantity.MI
"""The smallest memory limit that MPS takes, in bytes."""

_DEVICE_KEY: Final = re.compile(r"\d{1,2}|(GPU|MIG)-[0-9a-f-]{36}", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of value. `decode` gets the value, never None, and its path, and raises `InvalidValueError`."""

    decode: Callable[[object, str], Any]
    schema: Schema


def parameter(name: str, kind: Kind, description: str, **default: Any) -> Any:
    """Declare a field of a dataclass that comes from the parameter `name`; `default` as of `dataclasses.field`."""
    return dataclasses.field(metadata={"name": name, "kind": kind, "description": description}, **default)


def decode(cls: type[T], fields: Fields) -> T:
    """Return an instance of a dataclass of parameters.

    :raises InvalidValueError: naming the field.
    """
    values = {}
    for one in dataclasses.fields(cls):  # type: ignore[arg-type]  # typeshed has no name for "a dataclass"
        name = one.metadata["name"]
        value = fields.take(name, None)
        if value is not None:
            values[one.name] = one.metadata["kind"].decode(value, fields.at(name))
    fields.done()
    return cls(**values)


def schema(cls: type[Any]) -> Schema:
    """Return the JSON Schema of what `decode` takes; null is allowed for each."""
    properties = {
        one.metadata["name"]: optional({**one.metadata["kind"].schema, "description": one.metadata["description"]})
        for one in dataclasses.fields(cls)
    }
    return {"type": "object", "properties": properties, "additionalProperties": False}


def optional(content: Schema) -> Schema:
    """Return a schema that allows null, too."""
    types = content["type"]
    changed = {**content, "type": [*([types] if isinstance(types, str) else types), "null"]}
    if "enum" in content:
        changed["enum"] = [*content["enum"], None]
    return changed


def choice(options: Iterable[str]) -> Kind:
    """Return the kind of one of some words; decoded as what `options` has."""
    known = {str(option): option for option in options}

    def one_of(value: object, path: str) -> Any:
        if not isinstance(value, str) or value not in known:
            raise InvalidValueError(path, value, f"must be one of {', '.join(known)}")
        return known[value]

    return Kind(decode=one_of, schema={"type": "string", "enum": list(known)})


def whole_number(minimum: int, maximum: int) -> Kind:
    """Return the kind of a whole number within bounds."""

    def number(value: object, path: str) -> int:
        return integer(value, path, minimum, maximum)

    return Kind(decode=number, schema={"type": "integer", "minimum": minimum, "maximum": maximum})


def _memory(value: object, path: str) -> int:
    if not isinstance(value, str | int) or isinstance(value, bool):
        raise InvalidValueError(path, value, "a quantity such as 10Gi")
    amount = quantity.parse_bytes(str(value), path)
    if amount < MIN_MEMORY_LIMIT:
        raise InvalidValueError(path, value, "at least 1Mi")
    return amount


def _by_device(value: object, path: str) -> Mapping[str, int]:
    if not isinstance(value, dict):
        raise InvalidValueError(path, value, "a map from the device's index or UUID to a quantity")
    for key in value:
        if not isinstance(key, str) or not _DEVICE_KEY.fullmatch(key):
            raise InvalidValueError(f"{path}[{key}]", key, "a key is a device's index (0) or its UUID (GPU-… or MIG-…)")
    return MappingProxyType({key: _memory(limit, f"{path}[{key}]") for key, limit in value.items()})


FLAG: Final = Kind(decode=boolean, schema={"type": "boolean"})
MEMORY: Final = Kind(
    decode=_memory,
    # That a string is at least 1Mi is more than a pattern can say.
    schema={"type": ["string", "integer"], "pattern": f"^{quantity.PATTERN}$", "minimum": MIN_MEMORY_LIMIT},
)
MEMORY_BY_DEVICE: Final = Kind(
    decode=_by_device,
    schema={
        "type": "object",
        "patternProperties": {f"^({_DEVICE_KEY.pattern.replace(chr(92) + 'd', '[0-9]')})$": MEMORY.schema},
        "additionalProperties": False,
    },
)
