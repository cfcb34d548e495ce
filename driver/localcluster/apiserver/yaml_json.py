"""YAML as JSON sees it: text keys, no dates, no values that JSON has not, and no more of it than was sent."""

from __future__ import annotations

import json
import math
from typing import Any, Final

import yaml

from driver.localcluster.apiserver.repeated import Repeating

_MOST_VALUES: Final = 1_000_000  # aliases can multiply a small document
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _DatesAsText(_Loader):  # type: ignore[misc] # which of the two loaders it is depends on the build of PyYAML
    """A loader for which a date is a string, and which remembers the keys that come again, by line."""

    def __init__(self, stream: Any) -> None:
        super().__init__(stream)
        self.repeated: dict[int, str] = {}

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        if isinstance(node, yaml.MappingNode):
            self._note(node)
        return super().construct_mapping(node, deep=deep)

    def _note(self, node: yaml.MappingNode) -> None:
        """Look before merge keys are resolved: to override what is merged is no mistake."""
        seen = set()
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue
            if (key.tag, key.value) in seen:
                line = value.start_mark.line + 1
                self.repeated[line] = f"line {line}: key {json.dumps(key.value)} already set in map"
            seen.add((key.tag, key.value))


_DatesAsText.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in _Loader.yaml_implicit_resolvers.items()
}


def load(raw: bytes) -> Any:
    """Return a document's value, which remembers on which lines keys came again, in the words of Go's YAML parser.

    :raises ValueError: for what is not YAML, or has no counterpart in JSON.
    """
    try:
        loader = _DatesAsText(raw)
        try:
            value = _Converter().convert(loader.get_single_data())
        finally:
            loader.dispose()
    except (yaml.YAMLError, RecursionError, TypeError) as exc:
        raise ValueError(str(exc)) from exc
    if isinstance(value, dict) and loader.repeated:
        return Repeating(value, lines=[text for _, text in sorted(loader.repeated.items())])
    return value


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
