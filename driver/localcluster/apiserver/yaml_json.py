"""YAML as JSON sees it: text keys, no dates, no values that JSON has not, and no more of it than was sent."""

from __future__ import annotations

import math
from typing import Any, Final

import yaml

_MOST_VALUES: Final = 1_000_000  # aliases can multiply a small document
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _DatesAsText(_Loader):  # type: ignore[misc] # which of the two loaders it is depends on the build of PyYAML
    """A loader for which a date is a string."""


_DatesAsText.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in _Loader.yaml_implicit_resolvers.items()
}


def load(raw: bytes) -> Any:
    """Return a document's value.

    :raises ValueError: for what is not YAML, or has no counterpart in JSON.
    """
    try:
        return _Converter().convert(yaml.load(raw, Loader=_DatesAsText))  # noqa: S506 - derived from the safe loader
    except (yaml.YAMLError, RecursionError, TypeError) as exc:
        raise ValueError(str(exc)) from exc


class _Converter:
    def __init__(self) -> None:
        self._left = _MOST_VALUES

    def convert(self, value: Any) -> Any:
        self._left -= 1
        if self._left < 0:
            raise ValueError("the document is too large once its aliases are resolved")
        if isinstance(value, dict):
            return {_key(key): self.convert(item) for key, item in value.items()}
        if isinstance(value, list):
            return [self.convert(item) for item in value]
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"{value} is no JSON number")
        if value is not None and not isinstance(value, (str, bool, int, float)):
            raise ValueError(f"a value of type {type(value).__name__} has no counterpart in JSON")
        return value


def _key(key: Any) -> str:
    if isinstance(key, bool):
        return "true" if key else "false"
    if key is None:
        return "null"
    if isinstance(key, (str, int, float)):
        return str(key)
    raise ValueError(f"a key of type {type(key).__name__} has no counterpart in JSON")
