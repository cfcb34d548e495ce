"""The table of the API's types: which fields each has, of which type, and how its lists merge.

The facts are in `fields.txt` beside this; reading it costs some milliseconds, once.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

OPEN = "any"
"""The type of what the server takes as it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One field of a type."""

    number: int
    name: str
    type: str
    """A primitive (string, bool, int, number, bytes, time, microtime, quantity, intstr, any) or another type's name."""
    shape: str = ""
    """`list`, `map` (of strings to the type) or nothing."""
    merge_key: str | None = None
    """Of a list in a strategic merge patch: empty for a list of plain values that is merged as a set."""
    keys: tuple[str, ...] = ()
    """Of a list in server-side apply: what tells its elements apart."""
    is_set: bool = False
    inline: bool = False

    @property
    def is_message(self) -> bool:
        """Say whether the type is another type of this table."""
        return "." in self.type


def _field(line: str) -> Field:
    number, name, type_, *flags = line.split()
    shape = "list" if type_.startswith("[]") else "map" if type_.startswith("map:") else ""
    given = dict(flag.partition("=")[::2] for flag in flags)
    return Field(
        number=int(number),
        name=name,
        type=type_.removeprefix("[]").removeprefix("map:"),
        shape=shape,
        merge_key=given.get("merge"),
        keys=tuple(filter(None, given.get("keys", "").split(","))),
        is_set="set" in given,
        inline="inline" in given,
    )


@lru_cache(maxsize=1)
def declared() -> Mapping[str, tuple[Field, ...]]:
    """Return the fields of each type, as the protobuf encoding has them."""
    types: dict[str, list[Field]] = {}
    current: list[Field] = []
    text = resources.files(__package__).joinpath("fields.txt").read_text(encoding="utf-8")
    for line in text.splitlines():
        if line.startswith("#") or not line:
            continue
        if line.startswith(" "):
            current.append(_field(line))
        else:
            current = types[line] = []
    return {name: tuple(found) for name, found in types.items()}


@lru_cache(maxsize=1024)
def fields_of(type_: str) -> Mapping[str, Field]:
    """Return a type's fields by name as JSON has them: those of inline fields among them."""
    found: dict[str, Field] = {}
    for field in declared()[type_]:
        if field.inline:
            found.update(fields_of(field.type))
        else:
            found[field.name] = field
    return found


def type_name(api_version: str, kind: str) -> str | None:
    """Return the name of a kind's type in the table, None if it is not there."""
    group, _, version = api_version.rpartition("/")
    package = group.split(".")[0] or "core"
    if api_version == "resource.k8s.io/v1beta1":
        package = f"{package}/{version}"
    name = f"{package}.{kind}"
    return name if name in declared() else None
