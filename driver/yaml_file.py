"""Reading YAML files that people write, with errors that name file, line and column."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import yaml

from driver.errors import InvalidFileError

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable
    from pathlib import Path

MAX_BYTES = 1 << 20
_Base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Loader(_Base):  # type: ignore[misc]  # one of two base classes, chosen at run time
    """Refuses a key that is there twice: YAML's own rule, which PyYAML doesn't enforce."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[object, object]:
        """Make a mapping of `node`.

        :raises yaml.constructor.ConstructorError: a key is there twice; merge keys (`<<`) may be.
        """
        seen = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in seen and key.tag != "tag:yaml.org,2002:merge":
                raise yaml.constructor.ConstructorError(None, None, f"key {key.value!r} is there twice", key.start_mark)
            seen.add(key.value if isinstance(key, yaml.ScalarNode) else id(key))
        result: dict[object, object] = super().construct_mapping(node, deep)
        return result


def read_text(file: Path | Traversable) -> str:
    """Return a file's text.

    :raises InvalidFileError: it can't be read, is too large or no UTF-8.
    """
    try:
        data = file.read_bytes()
    except OSError as exc:
        raise InvalidFileError(str(file), f"can't be read: {exc.strerror or exc}") from exc
    if len(data) > MAX_BYTES:
        raise InvalidFileError(str(file), f"has {len(data)} bytes, of which at most {MAX_BYTES} are read")
    try:
        return data.decode()
    except UnicodeDecodeError as exc:
        raise InvalidFileError(str(file), f"is no UTF-8 text, from byte {exc.start} on") from exc


def load_yaml(text: str, name: str) -> object:
    """Parse one YAML document; an empty one is `None`.

    :raises InvalidFileError: naming line and column.
    """
    try:
        return yaml.load(text, Loader=_Loader)  # noqa: S506 - a subclass of the safe loader
    except (yaml.YAMLError, ValueError, RecursionError) as exc:
        mark = getattr(exc, "problem_mark", None)
        where = f"{name}:{mark.line + 1}:{mark.column + 1}" if mark else name
        problem = getattr(exc, "problem", None) or type(exc).__name__
        raise InvalidFileError(where, f"is no valid YAML: {problem}") from exc
