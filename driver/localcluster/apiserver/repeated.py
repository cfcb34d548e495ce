"""Keys that a body sends more than once: the last value counts, and a strict client is told. Pure.

In JSON the object that holds such a key remembers it; in YAML the document remembers the lines. The words are those of
a real API server (KEP-2885; its integration tests of field validation).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_YAML: Final = "yaml: unmarshal errors:"
_OPERATION: Final = ("op", "path", "from", "value")


class Repeating(dict[str, Any]):
    """An object of which some keys came more than once (`keys_again`), or a document of such (`lines`)."""

    __slots__ = ("keys_again", "lines")

    def __init__(self, pairs: Any, keys_again: frozenset[str] = frozenset(), lines: Sequence[str] = ()) -> None:
        super().__init__(pairs)
        self.keys_again = keys_again
        self.lines = tuple(lines)


def from_pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Make an object of a JSON parser's pairs; a repeated key is where it was sent last."""
    found = dict(pairs)
    if len(found) == len(pairs):
        return found
    last: dict[str, Any] = {}
    again = set()
    for key, value in pairs:
        if last.pop(key, last) is not last:
            again.add(key)
        last[key] = value
    return Repeating(last, frozenset(again))


def keys_again(value: Any) -> frozenset[str]:
    """Return the keys that came more than once in this very object."""
    return value.keys_again if isinstance(value, Repeating) else frozenset()


def lines(value: Any) -> tuple[str, ...]:
    """Return what is said of a YAML document's lines."""
    return value.lines if isinstance(value, Repeating) else ()


def as_error(said: Sequence[str]) -> list[str]:
    """Return what is said of lines as the one error that a YAML parser makes of it."""
    return ["\n  ".join([_YAML, *said])] if said else []


def again(path: str) -> str:
    """Return what is said of a field."""
    return f'duplicate field "{path}"'


def anywhere(value: Any, path: str = "") -> Iterator[str]:
    """Say which keys came more than once in a value of any shape, such as a merge patch."""
    if isinstance(value, dict):
        inner = f"{path}." if path else ""
        repeated = keys_again(value)
        for key, item in value.items():
            yield from anywhere(item, inner + key)
            if key in repeated:
                yield again(inner + key)
    elif isinstance(value, list):
        for at, item in enumerate(value):
            yield from anywhere(item, f"{path}[{at}]")


def in_operations(operations: Any) -> Iterator[str]:
    """Say what is not understood of the operations of a JSON patch; their values are not looked into."""
    for at, operation in enumerate(operations if isinstance(operations, list) else ()):
        if isinstance(operation, dict):
            repeated = keys_again(operation)
            for key in operation:
                if key not in _OPERATION:
                    yield f'json patch unknown field "[{at}].{key}"'
                elif key in repeated:
                    yield f"json patch {again(f'[{at}].{key}')}"
