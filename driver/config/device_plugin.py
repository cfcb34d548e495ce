"""The config file of NVIDIA's device plugin (`version: v1`), read as it is. Pure.

Unlike there, unknown keys are errors that name their path, and renames and per-device sharing work.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from driver.config.plugin_flags import PluginFlags, boolean_text, decode_flags
from driver.config.plugin_health import HealthFlags, decode_health
from driver.errors import InvalidValueError
from driver.model import names
from driver.model.decode import Fields, boolean, integer, text

if TYPE_CHECKING:
    from collections.abc import Mapping

VERSION = "v1"
MAX_NAME = 63  # characters of a resource name with its prefix
MAX_REPLICAS = 4096
SHARED_SUFFIX = ".shared"
IMEX_CHANNELS, IMEX_REQUIRED = "IMEX_CHANNEL_IDS", "IMEX_REQUIRED"

_DEVICE_REF = re.compile(
    r"\d+(:\d+)?|(GPU|MIG)-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|MIG-GPU-[0-9a-f-]{36}/\d+/\d+"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class NamePattern:
    """Devices whose product or profile matches get this resource name."""

    pattern: str  # anchored, with `*`
    name: str

    def matches(self, word: str) -> bool:
        """Say whether a product name or MIG profile matches as a whole."""
        parts = (re.escape(part) for part in self.pattern.split("*"))
        return re.fullmatch(".*".join(parts), word) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Replicas:
    """Sharing of one resource. `devices` None: all; a number: the first ones; else references.

    A reference is a GPU's index, `gpu:mig` for a MIG device's, or a UUID.
    """

    name: str
    replicas: int
    rename: str = ""
    devices: int | tuple[str, ...] | None = None
    path: str = ""

    @property
    def offered_as(self) -> str:
        """The resource that the replicas are offered as."""
        return self.rename or self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharing:
    """How devices are shared: `time-slicing`, `mps`, or `none`."""

    kind: str = "none"
    fail_requests_greater_than_one: bool = False
    resources: tuple[Replicas, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginConfig:
    """A whole config."""

    flags: PluginFlags = field(default_factory=PluginFlags)
    gpus: tuple[NamePattern, ...] = ()
    mig: tuple[NamePattern, ...] = ()
    sharing: Sharing = field(default_factory=Sharing)
    health: HealthFlags = field(default_factory=HealthFlags)
    imex_channels: tuple[int, ...] = ()
    imex_required: bool = False

    @property
    def extras(self) -> frozenset[str]:
        """What containers are to get beside GPUs, as far as NVIDIA's runtime does not add it (`cdi.extras`)."""
        by_runtime = not {"envvar", "volume-mounts"}.isdisjoint(self.flags.device_list_strategy)
        wanted = {"gds": self.flags.gds, "mofed": self.flags.mofed, "gdrcopy": self.flags.gdrcopy}
        wanted["imex"] = bool(self.imex_channels)
        return frozenset(name for name, on in wanted.items() if on and not by_runtime)


def decode_config(
    document: object, source: str, *, cli: Mapping[str, str] | None = None, environ: Mapping[str, str] | None = None
) -> PluginConfig:
    """Return the config that a YAML document says, with the flags of command line and environment over its own.

    An empty document (None) is an empty config.

    :raises InvalidValueError: naming `source` and the path in it, or the variable or flag.
    """
    fields = Fields({} if document is None else document, source, separator=": ")
    version = fields.take("version", VERSION)
    if version != VERSION:
        raise InvalidValueError(fields.at("version"), version, f"must be {VERSION}")
    flags = decode_flags(_section(fields, "flags"), cli=cli or {}, environ=environ or {})
    prefix = flags.resource_prefix
    resources = _section(fields, "resources")
    channels, required = _imex(_section(fields, "imex"), environ or {})
    config = PluginConfig(
        flags=flags,
        gpus=_patterns(resources, "gpus", prefix),
        mig=_patterns(resources, "mig", prefix),
        sharing=_sharing(_section(fields, "sharing"), prefix),
        health=decode_health(_section(fields, "health"), environ or {}),
        imex_channels=channels,
        imex_required=required,
    )
    for section in (resources, fields):
        if section is not None:
            section.done()
    return config


def _section(fields: Fields, key: str) -> Fields | None:
    value = fields.take(key, None)
    return None if value is None else Fields(value, fields.at(key))


def resource_name(value: object, path: str, prefix: str) -> str:
    """Return a resource name with its prefix, which may be left out in the file.

    :raises InvalidValueError: it is none.
    """
    word = text(value, path)
    name = word.removeprefix(f"{prefix}/")
    full = f"{prefix}/{name}"
    if not names.is_dns_subdomain(name) or len(full) > MAX_NAME:
        raise InvalidValueError(
            path,
            value,
            f"must be {prefix}/<name> with lower-case letters, digits, '-' and '.', at most {MAX_NAME} long",
        )
    return full


def _patterns(fields: Fields | None, key: str, prefix: str) -> tuple[NamePattern, ...]:
    if fields is None:
        return ()
    items = fields.take(key, None)
    if items is None:
        return ()
    if not isinstance(items, list):
        raise InvalidValueError(fields.at(key), items, "must be a list of {pattern, name}")
    found = []
    for position, item in enumerate(items):
        entry = Fields(item, f"{fields.at(key)}[{position}]")
        pattern = entry.text("pattern")
        found.append(NamePattern(pattern=pattern, name=resource_name(entry.take("name"), entry.at("name"), prefix)))
        entry.done()
    return tuple(found)


# --- sharing ---------------------------------------------------------------------------------------------------------


def _sharing(fields: Fields | None, prefix: str) -> Sharing:
    if fields is None:
        return Sharing()
    slicing, mps = _section(fields, "timeSlicing"), _section(fields, "mps")
    fields.done()
    if slicing is not None and mps is not None:
        raise InvalidValueError(fields.path, "timeSlicing and mps", "only one way to share at a time; remove one")
    if slicing is not None:
        return _kind(slicing, "time-slicing", prefix)
    return _kind(mps, "mps", prefix) if mps is not None else Sharing()


def _kind(fields: Fields, kind: str, prefix: str) -> Sharing:
    rename = _switch(fields, "renameByDefault", False)
    fail = _switch(fields, "failRequestsGreaterThanOne", kind == "mps")
    if kind == "time-slicing" and fields.take("strategy", "") not in ("", None):
        raise InvalidValueError(fields.at("strategy"), "set", "there are no strategies; leave it out")
    resources = tuple(_replicas(item, path, prefix, rename) for item, path in fields.items("resources"))
    fields.done()
    if not resources:
        raise InvalidValueError(fields.at("resources"), [], "names the resources to share, at least one")
    _check_twice(resources)
    return Sharing(kind=kind, fail_requests_greater_than_one=fail, resources=resources)


def _replicas(item: object, path: str, prefix: str, rename_by_default: bool) -> Replicas:
    fields = Fields(item, path)
    name = resource_name(fields.take("name"), fields.at("name"), prefix)
    count = fields.integer("replicas", 2, MAX_REPLICAS)
    given = fields.take("rename", None)
    rename = "" if given in (None, "") else resource_name(given, fields.at("rename"), prefix)
    if not rename and rename_by_default:
        rename = resource_name(f"{name}{SHARED_SUFFIX}", fields.at("name"), prefix)
    devices = _devices(fields.take("devices", "all"), fields.at("devices"))
    fields.done()
    return Replicas(name=name, replicas=count, rename=rename, devices=devices, path=path)


def _devices(value: object, path: str) -> int | tuple[str, ...] | None:
    if value == "all":
        return None
    if isinstance(value, int) and not isinstance(value, bool):
        return integer(value, path, 1, 1 << 16)
    if not isinstance(value, list) or not value:
        raise InvalidValueError(path, value, "must be all, a number of devices, or a list of indices and UUIDs")
    refs = [_reference(item, f"{path}[{position}]") for position, item in enumerate(value)]
    for position, ref in enumerate(refs):
        if ref in refs[:position]:
            raise InvalidValueError(f"{path}[{position}]", ref, "is there twice")
    return tuple(refs)


def _reference(value: object, path: str) -> str:
    word = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
    if not isinstance(word, str) or not _DEVICE_REF.fullmatch(word):
        raise InvalidValueError(path, value, "must be a GPU's index, gpu:mig for a MIG device (quoted), or a UUID")
    return word


def _check_twice(resources: tuple[Replicas, ...]) -> None:
    seen: dict[str, Replicas] = {}
    for one in resources:
        if one.name in seen:
            raise InvalidValueError(f"{one.path}.name", one.name, f"is shared already by {seen[one.name].path}")
        seen[one.name] = one


# --- the rest --------------------------------------------------------------------------------------------------------


def _imex(fields: Fields | None, environ: Mapping[str, str]) -> tuple[tuple[int, ...], bool]:
    channels: tuple[int, ...] = ()
    required = False
    if fields is not None:
        channels = _channels(fields.take("channelIDs", None), fields.at("channelIDs"))
        required = _switch(fields, "required", False)
        fields.done()
    if environ.get(IMEX_CHANNELS):
        words = [word.strip() for word in environ[IMEX_CHANNELS].split(",")]
        channels = _channels([0 if word == "0" else word for word in words], f"environment variable {IMEX_CHANNELS}")
    if environ.get(IMEX_REQUIRED):
        required = boolean_text(environ[IMEX_REQUIRED], f"environment variable {IMEX_REQUIRED}")
    return channels, required


def _channels(value: object, path: str) -> tuple[int, ...]:
    """Return the IMEX channels; NVIDIA's plugin knows no other than 0."""
    if value is None or value == []:
        return ()
    if value != [0] or isinstance(value[0], bool):
        raise InvalidValueError(path, value, "must be [] or [0]")
    return (0,)


def _switch(fields: Fields, key: str, default: bool) -> bool:
    value = fields.take(key, default)
    return default if value is None else boolean(value, fields.at(key))
