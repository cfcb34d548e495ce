"""Options: one description of each setting, from which flags, environment, file and reference are made.

A dataclass whose fields are made with `option` is loaded from four sources, the later wins: defaults, a YAML file,
environment variables, flags. Every error names the source as its author knows it.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from driver.errors import InvalidValueError, SettingsError
from driver.model.decode import suggestion

if TYPE_CHECKING:
    from argparse import ArgumentParser
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

ENV_PREFIX = "GPU_DRA_"
CONFIG = "config"
"""The name of the setting that says where the file is; it is no field, and not allowed in the file."""

_KEY = "option"
# Kubernetes adds such variables for each Service whose name begins like our prefix; the others are of our own tools.
_FOREIGN_ENV = re.compile(r"(\w+_)?(SERVICE_(HOST|PORT)\w*|PORT(_\d+_\w+)?)|VENV|PYTHON|MEMORY_LIMIT_\w+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A type of values. `parse` makes a value of what a file, variable or flag says, or raises `ValueError`."""

    parse: Callable[[object], Any]
    metavar: str
    choices: tuple[str, ...] = ()
    files: bool = False  # for shell completion


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One setting. `default` is as a user would write it."""

    name: str
    kind: Kind
    default: str
    help: str
    group: str

    @property
    def flag(self) -> str:
        """The command line's name."""
        return f"--{self.name.replace('_', '-')}"

    @property
    def env(self) -> str:
        """The environment's name."""
        return f"{ENV_PREFIX}{self.name.upper()}"

    def parse(self, value: object, source: str) -> Any:
        """Return the value.

        :raises InvalidValueError: naming `source`.
        """
        try:
            return self.kind.parse(value)
        except ValueError as exc:
            raise InvalidValueError(source, value, str(exc)) from exc


def option(kind: Kind, default: str, text: str, *, group: str) -> Any:
    """Describe a field. `default` goes through the kind's `parse`, as any other value."""
    return dataclasses.field(default=kind.parse(default), metadata={_KEY: (kind, default, text, group)})


def options(settings: type) -> tuple[Option, ...]:
    """Return the options of a dataclass, in order."""
    return tuple(_options(settings))


def _options(settings: type) -> Iterator[Option]:
    for field in dataclasses.fields(settings):
        if _KEY not in field.metadata:
            continue
        kind, default, text, group = field.metadata[_KEY]
        yield Option(name=field.name, kind=kind, default=default, help=text, group=group)


def add_flags(parser: ArgumentParser, settings: type, names: Collection[str] = ()) -> None:
    """Add a flag for each option (or for `names` only), and `--config`. Values stay strings until `load`."""
    groups: dict[str, Any] = {}
    for one in options(settings):
        if names and one.name not in names:
            continue
        if one.group not in groups:
            groups[one.group] = parser.add_argument_group(one.group)
        shown = f"{one.help} [{one.env}] (default: {one.default or 'none'})".replace("%", "%%")
        action = groups[one.group].add_argument(one.flag, dest=one.name, metavar=one.kind.metavar, help=shown)
        action.completion = one.kind
    parser.add_argument(
        f"--{CONFIG}", metavar="FILE", help=f"YAML file with any of these settings [{ENV_PREFIX}{CONFIG.upper()}]"
    )


def load(
    settings: type,
    *,
    flags: Mapping[str, str | None],
    environ: Mapping[str, str],
    read: Callable[[Path], object],
) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the values that were set, and the source of each as errors name it; `read` decodes a YAML file.

    :raises InvalidValueError: naming the source of the one that is bad or unknown.
    :raises SettingsError: several are; it names all.
    """
    known = {one.name: one for one in options(settings)}
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    wrong: list[InvalidValueError] = []
    layers = (_from_file(known, flags, environ, read), _from_environ(known, environ), _from_flags(known, flags))
    for entry in (entry for layer in layers for entry in layer):
        if isinstance(entry, InvalidValueError):
            wrong.append(entry)
            continue
        name, value, source = entry
        sources[name] = source
        try:
            values[name] = known[name].parse(value, source)
        except InvalidValueError as exc:
            wrong.append(exc)
    _refuse(wrong)
    return values, sources


def _refuse(wrong: Sequence[InvalidValueError]) -> None:
    if len(wrong) > 1:
        raise SettingsError("\n  ".join([f"{len(wrong)} settings are wrong:", *map(str, wrong)]))
    for error in wrong:
        raise error


_Entry = tuple[str, object, str] | InvalidValueError
"""A setting's name, value and source, or what is wrong with what is none."""


def _from_file(
    known: Mapping[str, Option],
    flags: Mapping[str, str | None],
    environ: Mapping[str, str],
    read: Callable[[Path], object],
) -> Iterator[_Entry]:
    file = flags.get(CONFIG) or environ.get(f"{ENV_PREFIX}{CONFIG.upper()}")
    content = read(Path(file)) if file else None
    if content is None:
        return
    if not isinstance(content, dict):
        raise InvalidValueError(str(file), content, "must be a mapping of settings to values")
    for key, value in content.items():
        if key not in known:
            yield InvalidValueError(f"{file}: {key}", value, f"unknown setting; {suggestion(str(key), known)}")
        else:
            yield key, value, f"{file}: {key}"


def _from_environ(known: Mapping[str, Option], environ: Mapping[str, str]) -> Iterator[_Entry]:
    by_env = {one.env: one.name for one in known.values()}
    for variable in sorted(environ):
        if variable in by_env:
            yield by_env[variable], environ[variable], f"environment variable {variable}"
        elif variable.startswith(ENV_PREFIX) and not _is_foreign(variable.removeprefix(ENV_PREFIX)):
            hint = suggestion(variable, by_env, prefix=ENV_PREFIX)
            yield InvalidValueError(f"environment variable {variable}", environ[variable], f"unknown setting; {hint}")


def _is_foreign(name: str) -> bool:
    return name == CONFIG.upper() or _FOREIGN_ENV.fullmatch(name) is not None


def _from_flags(known: Mapping[str, Option], flags: Mapping[str, str | None]) -> Iterator[_Entry]:
    for name, one in known.items():
        value = flags.get(name)
        if value is not None:
            yield name, value, one.flag


# --- kinds -----------------------------------------------------------------------------------------------------------


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError("must be a string" + (" (put it in quotes)" if isinstance(value, int | float) else ""))  # noqa: TRY004 - `parse` raises ValueError
    if "\0" in value or "\n" in value:
        raise ValueError("must be one line of text")
    return value


def _boolean(value: object) -> str:
    """Parse what is a boolean in a file, and stays text: empty is neither."""
    return str(value).lower() if isinstance(value, bool) else _text(value)


def _path(value: object) -> Path:
    text = _text(value)
    if not text.startswith("/"):
        raise ValueError("must be an absolute path")
    if any(part == ".." for part in Path(text).parts):
        raise ValueError("must be a path without '..'")
    return Path(text)


def _optional_path(value: object) -> Path | None:
    return None if value in ("", None) else _path(value)


def _user_path(value: object) -> Path | None:
    """Parse a file of the caller's: it may be relative to where they are."""
    return None if value in ("", None) else Path(_text(value)).expanduser().absolute()


def _paths(value: object) -> tuple[Path, ...]:
    if isinstance(value, str):
        return tuple(_path(part.strip()) for part in value.split(",") if part.strip())
    if not isinstance(value, list):
        raise ValueError("must be a list of absolute paths")  # noqa: TRY004
    return tuple(_path(part) for part in value)


_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|)", re.ASCII)
_UNITS = {"ms": 0.001, "s": 1.0, "": 1.0, "m": 60.0, "h": 3600.0}


def seconds(minimum: float, maximum: float) -> Kind:
    """Make the kind of durations between bounds, in seconds or with a unit (`500ms`, `10s`, `5m`)."""

    def parse(value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise ValueError("must be a duration such as 10s or 500ms")  # noqa: TRY004
        match = _DURATION.fullmatch(str(value))
        number = float(match[1]) * _UNITS[match[2]] if match else -1.0
        if not minimum <= number <= maximum:
            raise ValueError(f"must be a duration from {minimum:g}s to {maximum:g}s, such as 10s or 500ms")
        return number

    return Kind(parse=parse, metavar="DURATION")


def choice(*choices: str) -> Kind:
    """Make the kind of one word among some. `on` and `off` may stand in a file as they are, where YAML has booleans."""

    def parse(value: object) -> str:
        if isinstance(value, bool) and {"on", "off"} & {*choices}:
            value = "on" if value else "off"
        if value not in choices:
            near = difflib.get_close_matches(str(value).lower(), choices, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise ValueError(f"must be one of {', '.join(choices)}{hint}")
        return str(value)

    return Kind(parse=parse, metavar="|".join(choices), choices=choices)


def checked(metavar: str, check: Callable[[str], bool], allowed: str) -> Kind:
    """Make the kind of text that `check` accepts."""

    def parse(value: object) -> str:
        text = _text(value)
        if not check(text):
            raise ValueError(allowed)
        return text

    return Kind(parse=parse, metavar=metavar)


def text(metavar: str) -> Kind:
    """Make the kind of any text in one line."""
    return Kind(parse=_text, metavar=metavar)


@dataclass(frozen=True, slots=True)
class Address:
    """Where to listen; port 0 takes a free one, an empty host means all addresses."""

    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def _address(value: object) -> Address | None:
    text_value = _text(value)
    if text_value == "":
        return None
    match = re.fullmatch(r"(?:\[([0-9a-fA-F:.]+)\]|([A-Za-z0-9._-]*)):(\d{1,5})", text_value, re.ASCII)
    if match is None or int(match[3]) > 65535:
        raise ValueError("must be HOST:PORT, :PORT for all addresses, or empty for none; port 0 takes a free one")
    return Address(match[1] or match[2] or "", int(match[3]))


PATH = Kind(parse=_path, metavar="PATH", files=True)
OPTIONAL_PATH = Kind(parse=_optional_path, metavar="PATH", files=True)
USER_PATH = Kind(parse=_user_path, metavar="PATH", files=True)
PATHS = Kind(parse=_paths, metavar="PATH,…", files=True)
ADDRESS = Kind(parse=_address, metavar="HOST:PORT")
BOOLEAN = Kind(parse=_boolean, metavar="true|false", choices=("true", "false"))
