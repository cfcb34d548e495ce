"""Check whether the container runtime will read the CDI files at all (C6).

A runtime with CDI off starts the container without its GPU, or not at all, long after prepare succeeded. What its
configuration files say is checked once at start. Findings are warnings: nothing here may fail the agent.

Sources: containerd's docs/cri/config.md and its migration notes (CDI is off by default in 1.7, on in 2.0; sections
moved with version 3 of the file; a section of an imported file replaces the whole section); CRI-O's crio.conf(5).
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

DEFAULT_CONFIGS = (Path("/etc/containerd/config.toml"), Path("/etc/crio/crio.conf"))
"""Where the runtimes' configuration is, if nobody moved it."""

_DEFAULT_DIRS = ("/etc/cdi", "/var/run/cdi")
_SECTIONS = {1: "cri", 2: "io.containerd.grpc.v1.cri", 3: "io.containerd.cri.v1.runtime"}
_RUNTIME = re.compile(r"(?P<name>[a-z-]+)://v?(?P<major>\d+)\.(?P<minor>\d+)")
_FIRST_WITH_CDI = {"containerd": (1, 7), "cri-o": (1, 23)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Something to tell the operator. `certain` is False where it could only not be checked."""

    message: str
    certain: bool = True


class _UnreadableError(Exception):
    """A configuration can't be understood; the message says why."""


def check_runtime(
    cdi_dir: Path, configs: Sequence[Path] = DEFAULT_CONFIGS, *, runtime: str = "", in_pod: bool = False
) -> tuple[Finding, ...]:
    """Return what speaks against the container runtime reading `cdi_dir`; nothing if all is well.

    `runtime` is what the node's status says, such as `containerd://2.1.4`; empty if unknown. Files of the other
    runtime are then left aside. `in_pod` says that what is not mounted from the host can't be seen. Never raises.
    """
    known = _RUNTIME.match(runtime)
    name = known["name"] if known else ""
    version = (int(known["major"]), int(known["minor"])) if known else None
    if version is not None and version < _FIRST_WITH_CDI.get(name, (0, 0)):
        first = ".".join(map(str, _FIRST_WITH_CDI[name]))
        return (Finding(message=f"{runtime} has no CDI, so containers would not get their GPUs: use {first} or later"),)
    found = [config for config in configs if _belongs(config, name) and _is_there(config)]
    if not found:
        seen = not in_pod or any(_is_mounted(config) for config in configs)
        return tuple(_without_config(configs, runtime, name, version, seen=seen))
    return tuple(finding for config in found for finding in _check_file(config, cdi_dir, version))


def _belongs(config: Path, name: str) -> bool:
    return not name or name == ("cri-o" if _is_crio(config) else "containerd")


def _is_crio(config: Path) -> bool:
    return "crio" in config.name


def _is_there(config: Path) -> bool:
    try:
        return config.exists() or (_is_crio(config) and bool(_drop_ins(config)))
    except OSError:
        return True  # reading it will say why not


def _is_mounted(path: Path) -> bool:
    """Say whether a path is elsewhere than on the file system of this process's root."""
    try:
        there = next(one for one in (path, *path.parents) if one.exists())
        return there.stat().st_dev != Path("/").stat().st_dev
    except (OSError, StopIteration):
        return False


def _without_config(
    configs: Sequence[Path], runtime: str, name: str, version: tuple[int, int] | None, *, seen: bool
) -> Iterator[Finding]:
    if name == "containerd" and version is not None and version < (2, 0):
        if not seen:
            yield _unchecked(
                f"{runtime} has CDI off unless told otherwise, and the host's configuration is not mounted"
            )
            return
        yield Finding(message=f"{runtime} has CDI off unless told otherwise, and no configuration was found: {_ON[2]}")
    elif not name:
        names = ", ".join(map(str, configs))
        yield _unchecked(f"none of {names} is there" if names else "no configuration of one is known")


def _check_file(config: Path, cdi_dir: Path, version: tuple[int, int] | None) -> Iterator[Finding]:
    try:
        if _is_crio(config):
            yield from _check_crio(config, cdi_dir)
        else:
            yield from _check_containerd(config, cdi_dir, version)
    except _UnreadableError as exc:
        yield _unchecked(str(exc))


def _unchecked(why: str) -> Finding:
    return Finding(message=f"could not check that the container runtime reads CDI files: {why}", certain=False)


# --- containerd ------------------------------------------------------------------------------------------------------

_ON = {
    version: f"set enable_cdi = true under [plugins.{section!r}] in containerd's configuration and restart containerd"
    for version, section in _SECTIONS.items()
}


def _check_containerd(config: Path, cdi_dir: Path, version: tuple[int, int] | None) -> Iterator[Finding]:
    merged = _load_containerd(config)
    file_version = merged["version"]
    section = _table(merged["plugins"], _SECTIONS[file_version], config)
    enabled = section.get("enable_cdi")
    if enabled is False:
        yield Finding(message=f"{config}: enable_cdi is false: {_ON[file_version]}")
    elif enabled is None and not _on_by_default(file_version, version):
        yield Finding(
            message=f"{config}: enable_cdi is not set, and containerd 1.7 has CDI off then: {_ON[file_version]}",
            certain=version is not None,
        )
    elif enabled not in (None, True):
        yield _unchecked(f"{config}: enable_cdi is {enabled!r}, neither true nor false")
    yield from _check_dirs(config, section.get("cdi_spec_dirs"), cdi_dir, f"[plugins.{_SECTIONS[file_version]!r}]")


def _on_by_default(file_version: int, version: tuple[int, int] | None) -> bool:
    return version >= (2, 0) if version is not None else file_version >= 3


def _load_containerd(config: Path) -> dict[str, Any]:
    """Return the version and the plugin sections of a file and its imports."""
    main = _load(config)
    version = main.get("version", 1)
    if not isinstance(version, int) or version not in _SECTIONS:
        raise _UnreadableError(f"{config}: version {version!r} of the file is not known")
    plugins = dict(_table(main, "plugins", config))
    seen = {config}
    queue = _imports(config, main)
    while queue:
        imported = queue.pop(0)
        if imported not in seen:
            seen.add(imported)
            content = _load(imported)
            plugins.update(_table(content, "plugins", imported))
            queue += _imports(imported, content)
    return {"version": version, "plugins": plugins}


def _imports(config: Path, content: Mapping[str, Any]) -> list[Path]:
    patterns = content.get("imports", [])
    if not isinstance(patterns, list):
        raise _UnreadableError(f"{config}: imports is no list")
    return [path for pattern in patterns for path in _matching(_locate(config, str(pattern)))]


def _matching(pattern: Path) -> list[Path]:
    return sorted(Path(pattern.anchor).glob(str(pattern.relative_to(pattern.anchor))))


def _locate(config: Path, pattern: str) -> Path:
    """Find an imported path beside its importer. An absolute one is the host's, which may be mounted elsewhere."""
    usual = str(DEFAULT_CONFIGS[0])
    if pattern.startswith("/") and str(config).endswith(usual):
        return Path(str(config).removesuffix(usual) + pattern)
    return config.parent / pattern


# --- CRI-O -----------------------------------------------------------------------------------------------------------


def _check_crio(config: Path, cdi_dir: Path) -> Iterator[Finding]:
    last: tuple[Path, Any] = (config, None)
    for file in [*([config] if config.exists() else []), *_drop_ins(config)]:
        runtime = _table(_table(_load(file), "crio", file), "runtime", file)
        if "cdi_spec_dirs" in runtime:
            last = (file, runtime["cdi_spec_dirs"])
    yield from _check_dirs(last[0], last[1], cdi_dir, "[crio.runtime]")


def _drop_ins(config: Path) -> list[Path]:
    return sorted(Path(f"{config}.d").glob("*"))


# --- both ------------------------------------------------------------------------------------------------------------


def _check_dirs(config: Path, dirs: object, cdi_dir: Path, section: str) -> Iterator[Finding]:
    if dirs is not None and not (isinstance(dirs, list) and all(isinstance(one, str) for one in dirs)):
        yield _unchecked(f"{config}: cdi_spec_dirs is {dirs!r}, no list of directories")
        return
    used = _DEFAULT_DIRS if dirs is None else dirs
    if _same_dir(str(cdi_dir)) not in map(_same_dir, used):
        listed = ", ".join(used) or "none"
        yield Finding(
            message=f"{config}: the container runtime reads CDI files from {listed}, not from {cdi_dir}: add it to"
            f" cdi_spec_dirs under {section} and restart the runtime, or set the agent's CDI directory to one of them"
        )


def _same_dir(path: str) -> str:
    """Return one spelling of a directory: /var/run is /run."""
    text = str(PurePosixPath(path))
    return text.removeprefix("/var") if text.startswith("/var/run/") else text


def _load(config: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(config.read_text())
    except OSError as exc:
        raise _UnreadableError(f"{config}: {exc.strerror or exc}") from exc
    except ValueError as exc:
        raise _UnreadableError(f"{config}: {exc}") from exc


def _table(content: Mapping[str, Any], name: str, config: Path) -> Mapping[str, Any]:
    table = content.get(name, {})
    if not isinstance(table, dict):
        raise _UnreadableError(f"{config}: {name} is no table")
    return table
