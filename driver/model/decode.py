"""Strict decoding of mappings that come from YAML or JSON. Pure.

Every field is asked for, and what nobody asked for is refused. A `bool` is no number, a missing field is named, and
errors carry the path as the file's author wrote it (`h100.yaml: mig.profiles[0].id`).
"""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

from driver.errors import InvalidValueError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

_MISSING = object()
_LISTED = 20  # words; more are a wall of text beside a hint
_FEW = 3  # words that a hint names


class Fields:
    """The fields of one mapping. Ask for each, then call `done`."""

    def __init__(self, value: object, path: str, *, separator: str = ".") -> None:
        """Start decoding; `separator` stands between `path` and a field, `: ` where `path` is a file.

        :raises InvalidValueError: `value` is no mapping with strings as keys.
        """
        if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
            raise InvalidValueError(path, value, "a mapping of field names to values")
        self._left = dict(value)
        self._known: list[str] = []
        self._separator = separator
        self.path = path

    def at(self, key: str) -> str:
        """Return the path of a field."""
        return f"{self.path}{self._separator}{key}"

    def __contains__(self, key: str) -> bool:
        return key in self._left

    def take(self, key: str, default: object = _MISSING) -> object:
        """Return a field as it is.

        :raises InvalidValueError: it is missing and has no default.
        """
        self._known.append(key)
        value = self._left.pop(key, default)
        if value is _MISSING:
            raise InvalidValueError(self.at(key), None, "this field is required")
        return value

    def text(self, key: str, default: object = _MISSING) -> str:
        """Return a string that is not empty."""
        return text(self.take(key, default), self.at(key))

    def integer(self, key: str, minimum: int, maximum: int, default: object = _MISSING) -> int:
        """Return a whole number within bounds."""
        return integer(self.take(key, default), self.at(key), minimum, maximum)

    def choice(self, key: str, allowed: Iterable[str], default: object = _MISSING) -> str:
        """Return one of the allowed strings."""
        value = self.take(key, default)
        options = list(allowed)
        if value not in options:
            raise InvalidValueError(self.at(key), value, f"must be one of {', '.join(options)}")
        return str(value)

    def items(self, key: str, default: object = _MISSING) -> Iterator[tuple[object, str]]:
        """Yield the elements of a list, each with its path."""
        value = self.take(key, default)
        if not isinstance(value, list):
            raise InvalidValueError(self.at(key), value, "must be a list")
        return ((element, f"{self.at(key)}[{position}]") for position, element in enumerate(value))

    def mapping(self, key: str) -> Fields:
        """Return the fields of a nested mapping."""
        return Fields(self.take(key), self.at(key))

    def done(self) -> None:
        """Refuse what was not asked for.

        :raises InvalidValueError: naming the first unknown field, and the known one that looks most like it.
        """
        for key, value in self._left.items():
            raise InvalidValueError(self.at(key), value, f"unknown field; {suggestion(key, self._known)}")


def text(value: object, path: str) -> str:
    """Return a string that is not empty.

    :raises InvalidValueError: naming `path`.
    """
    if not isinstance(value, str) or not value.strip():
        hint = " (put it in quotes)" if isinstance(value, int | float) else ""
        raise InvalidValueError(path, value, f"must be a string that is not empty{hint}")
    return value


def boolean(value: object, path: str) -> bool:
    """Return a boolean.

    :raises InvalidValueError: naming `path`.
    """
    if not isinstance(value, bool):
        raise InvalidValueError(path, value, "must be true or false")
    return value


def integer(value: object, path: str, minimum: int, maximum: int) -> int:
    """Return a whole number within bounds.

    :raises InvalidValueError: naming `path`.
    """
    if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value <= maximum:
        raise InvalidValueError(path, value, f"must be a whole number from {minimum} to {maximum}")
    return value


def suggestion(word: str, known: Iterable[str], *, prefix: str = "") -> str:
    """Say which known words may have been meant, and list all of them unless they are very many.

    What all of them begin with makes none like another: `prefix` is left out of account.
    """
    options = {option.removeprefix(prefix).casefold(): option for option in sorted(known)}
    listed = f"known: {', '.join(options.values()) or 'none'}"
    near = [options[one] for one in _near(word.removeprefix(prefix).casefold(), options)]
    if not near:
        return listed
    hint = f"did you mean {' or '.join(map(repr, near))}?"
    return hint if len(options) > _LISTED else f"{hint} ({listed})"


def _near(word: str, options: Collection[str]) -> list[str]:
    """Return the options that begin with the word, if they are few (`a100` means a100-40, not a10), else the likest."""
    longer = [option for option in options if word and option.startswith(word)]
    if word in options or not 1 <= len(longer) <= _FEW:
        return difflib.get_close_matches(word, options, n=1, cutoff=0.6)
    return longer
