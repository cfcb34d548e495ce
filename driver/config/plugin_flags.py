"""The flags of NVIDIA's device plugin and feature discovery, from its config file, environment and our command line.

One table says where each is found and what it takes. A flag that has no effect in this driver is still checked, so that
people's files are read as they are, and it is named, so that nobody wonders. Pure.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from driver.errors import InvalidValueError
from driver.model import decode, names
from driver.model.decode import boolean

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from driver.model.decode import Fields

MIG_STRATEGIES = ("none", "single", "mixed")
LIST_STRATEGIES = ("envvar", "volume-mounts", "cdi-annotations", "cdi-cri")
ID_STRATEGIES = ("uuid", "index")
POLICIES = ("distributed", "packed")

_TRUE, _FALSE = ("1", "t", "true"), ("0", "f", "false")
_DURATION = re.compile(r"(?:\d+(?:\.\d+)?(?:ns|us|µs|ms|s|m|h))+")
_DURATION_PART = re.compile(r"(\d+(?:\.\d+)?)(ns|us|µs|ms|s|m|h)")
_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Flag:
    """One flag: its path below `flags`, its environment variables, how a value of a file and a text are read.

    `unused` says why a given one has no effect here; empty if it has.
    """

    name: str
    path: str
    env: tuple[str, ...]
    value: Callable[[object, str], Any]
    text: Callable[[object, str], Any]
    unused: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginFlags:
    """What the flags say. The policy is empty if nobody chose one; `gfd` holds what feature discovery was given."""

    mig_strategy: str = "none"
    device_list_strategy: tuple[str, ...] = ("cdi-cri",)
    device_id_strategy: str = "uuid"
    pass_device_specs: bool = False
    cdi_annotation_prefix: str = "cdi.k8s.io/"
    shared_devices_allocation_policy: str = ""
    gds: bool = False
    mofed: bool = False
    gdrcopy: bool = False
    mps_root: str = ""
    resource_prefix: str = "nvidia.com"
    gfd: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    unused: tuple[str, ...] = ()


def decode_flags(fields: Fields | None, *, cli: Mapping[str, str], environ: Mapping[str, str]) -> PluginFlags:
    """Return the flags: `cli` (by name) over `environ` over the file's.

    :raises InvalidValueError: naming the source.
    """
    given: dict[str, Any] = {}
    unused: dict[str, str] = {}
    for flag, value, source in (*_from_file(fields), *_from_environ(environ), *_from_cli(cli)):
        given[flag.name] = value
        if flag.unused:
            unused[flag.name] = f"{source}: {flag.unused}"
    known = {name: value for name, value in given.items() if name in PluginFlags.__dataclass_fields__}
    gfd = {flag.name: given[flag.name] for flag in FLAGS if flag.path.startswith("gfd.") and flag.name in given}
    return PluginFlags(**known, gfd=MappingProxyType(gfd), unused=tuple(unused.values()))


def _from_file(fields: Fields | None) -> Iterator[tuple[Flag, Any, str]]:
    if fields is None:
        return
    sections = {"": fields}
    for section in ("plugin", "gfd"):
        if section in fields:
            sections[section] = fields.mapping(section)
        else:
            fields.take(section, None)
    for flag in FLAGS:
        section, _, key = flag.path.rpartition(".")
        if section in sections:
            value = sections[section].take(key, None)
            if value is not None:
                path = sections[section].at(key)
                yield flag, flag.value(value, path), path
    for one in sections.values():
        one.done()


def _from_environ(environ: Mapping[str, str]) -> Iterator[tuple[Flag, Any, str]]:
    for flag in FLAGS:
        for variable in flag.env:
            if environ.get(variable):
                source = f"environment variable {variable}"
                yield flag, flag.text(environ[variable], source), source
                break


def _from_cli(cli: Mapping[str, str]) -> Iterator[tuple[Flag, Any, str]]:
    for flag in FLAGS:
        if cli.get(flag.name):
            source = f"--{flag.name.replace('_', '-')}"
            yield flag, flag.text(cli[flag.name], source), source


# --- values ----------------------------------------------------------------------------------------------------------


def _choice(*allowed: str) -> Callable[[object, str], str]:
    def parse(value: object, path: str) -> str:
        if value not in allowed:
            raise InvalidValueError(path, value, f"must be one of {', '.join(allowed)}")
        return str(value)

    return parse


def boolean_text(value: object, path: str) -> bool:
    """Return a boolean of an environment variable or flag, by Go's words in any case.

    :raises InvalidValueError: naming `path`.
    """
    word = str(value).lower()
    if word not in (*_TRUE, *_FALSE):
        raise InvalidValueError(path, value, "must be true or false")
    return word in _TRUE


def _strategies(value: object, path: str) -> tuple[str, ...]:
    items = [value] if isinstance(value, str) else value
    if not isinstance(items, list) or not items:
        raise InvalidValueError(path, value, f"must be one or a list of {', '.join(LIST_STRATEGIES)}")
    check = _choice(*LIST_STRATEGIES)
    return tuple(dict.fromkeys(check(item, path) for item in items))


def _strategies_text(value: object, path: str) -> tuple[str, ...]:
    return _strategies([part.strip() for part in str(value).split(",")], path)


def _texts(value: object, path: str) -> tuple[str, ...]:
    items = value if isinstance(value, list) else str(value).split(",") if isinstance(value, str) else None
    if items is None:
        raise InvalidValueError(path, value, "must be a list of strings")
    return tuple(decode.text(item, path) for item in items)


def _absolute(value: object, path: str) -> str:
    if not isinstance(value, str) or not value.startswith("/"):
        raise InvalidValueError(path, value, "must be an absolute path")
    return value


def _annotation_prefix(value: object, path: str) -> str:
    prefix = decode.text(value, path)
    domain, slash, rest = prefix.partition("/")
    if not slash or rest or not names.is_dns_subdomain(domain):
        raise InvalidValueError(path, value, "must be a DNS subdomain and a slash, such as cdi.k8s.io/")
    return prefix


def _resource_prefix(value: object, path: str) -> str:
    prefix = decode.text(value, path)
    if not names.is_dns_subdomain(prefix) or prefix == "kubernetes.io" or prefix.endswith(".kubernetes.io"):
        raise InvalidValueError(path, value, "must be a DNS subdomain such as nvidia.com, and none of kubernetes.io")
    return prefix


def duration(value: object, path: str) -> float:
    """Return the seconds of a Go duration (`60s`, `1m30s`), or of `infinite`.

    :raises InvalidValueError: naming `path`.
    """
    if value == "infinite":
        return math.inf
    if not isinstance(value, str) or not _DURATION.fullmatch(value):
        raise InvalidValueError(path, value, "must be a duration such as 60s or 1m30s, or infinite")
    return sum(float(number) * _UNITS[unit] for number, unit in _DURATION_PART.findall(value))


_WAITS = "this driver always waits for the GPU driver and takes it up when it comes"
_ROOT = "the driver's root is the setting --driver-root (and --host-driver-root) here"


def _flag(name: str, path: str, env: str, value: Any, text: Any = None, unused: str = "") -> Flag:
    variables = tuple(env.split())
    return Flag(name=name, path=path, env=variables, value=value, text=text or value, unused=unused)


FLAGS = (
    _flag("mig_strategy", "migStrategy", "MIG_STRATEGY GFD_MIG_STRATEGY", _choice(*MIG_STRATEGIES)),
    _flag("fail_on_init_error", "failOnInitError", "FAIL_ON_INIT_ERROR GFD_FAIL_ON_INIT_ERROR",
          boolean, boolean_text, _WAITS),
    _flag("driver_root", "nvidiaDriverRoot", "NVIDIA_DRIVER_ROOT", _absolute, None, _ROOT),
    _flag("dev_root", "nvidiaDevRoot", "NVIDIA_DEV_ROOT", _absolute, None, "the device root is the setting --dev-root"),
    _flag("gds", "gdsEnabled", "GDS_ENABLED", boolean, boolean_text),
    _flag("mofed", "mofedEnabled", "MOFED_ENABLED", boolean, boolean_text),
    _flag("gdrcopy", "gdrcopyEnabled", "GDRCOPY_ENABLED", boolean, boolean_text),
    _flag("mps_root", "mpsRoot", "MPS_ROOT", _absolute, None,
          "MPS daemons have their directories below --state-dir and --mps-shm-dir here"),
    _flag("resource_prefix", "resourceNamePrefix", "RESOURCE_NAME_PREFIX", _resource_prefix),
    _flag("node_feature_api", "useNodeFeatureAPI", "USE_NODE_FEATURE_API GFD_USE_NODE_FEATURE_API",
          boolean, boolean_text, "where labels are written is a setting of its own here"),
    _flag("discovery", "deviceDiscoveryStrategy", "DEVICE_DISCOVERY_STRATEGY", _choice("auto", "nvml")),
    _flag("pass_device_specs", "plugin.passDeviceSpecs", "PASS_DEVICE_SPECS", boolean, boolean_text),
    _flag("device_list_strategy", "plugin.deviceListStrategy", "DEVICE_LIST_STRATEGY", _strategies, _strategies_text),
    _flag("device_id_strategy", "plugin.deviceIDStrategy", "DEVICE_ID_STRATEGY", _choice(*ID_STRATEGIES)),
    _flag("cdi_annotation_prefix", "plugin.cdiAnnotationPrefix", "CDI_ANNOTATION_PREFIX", _annotation_prefix),
    _flag("shared_devices_allocation_policy", "plugin.sharedDevicesAllocationPolicy",
          "SHARED_DEVICES_ALLOCATION_POLICY", _choice(*POLICIES)),
    _flag("ctk_path", "plugin.nvidiaCTKPath", "NVIDIA_CDI_HOOK_PATH NVIDIA_CTK_PATH", _absolute, None,
          "the hook program is the setting --cdi-hook"),
    _flag("container_driver_root", "plugin.containerDriverRoot", "DRIVER_ROOT_CTR_PATH CONTAINER_DRIVER_ROOT",
          _absolute, None, _ROOT),
    _flag("cdi_feature_flags", "plugin.cdiFeatureFlags", "CDI_FEATURE_FLAGS", _texts, None,
          "CDI files are made by this driver, which has no such switches"),
    _flag("cdi_disable_hooks", "plugin.cdiDisableHooks", "CDI_DISABLE_HOOKS", _texts, None,
          "the hooks that the hook program knows are used"),
    _flag("oneshot", "gfd.oneshot", "GFD_ONESHOT", boolean, boolean_text, "the agent keeps labels current itself"),
    _flag("no_timestamp", "gfd.noTimestamp", "GFD_NO_TIMESTAMP", boolean, boolean_text),
    _flag("sleep_interval", "gfd.sleepInterval", "GFD_SLEEP_INTERVAL", duration, None,
          "labels follow changes at once, without an interval"),
    _flag("output_file", "gfd.outputFile", "GFD_OUTPUT_FILE", _absolute, None,
          "where labels are written are the settings --labels and --labels-file"),
    _flag("machine_type_file", "gfd.machineTypeFile", "GFD_MACHINE_TYPE_FILE", _absolute),
)  # fmt: skip
"""All flags of the peer, v0.20, that its config file or its environment knows."""
