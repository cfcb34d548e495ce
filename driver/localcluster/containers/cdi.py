"""Resolve CDI device names as containerd does: read the directories, settle conflicts, merge the edits.

Later directories win over earlier ones; one device in two files of one directory can't be resolved. A bad file costs
its own devices and nothing else. A conflict in one directory spoils the device even where a later one has it too.
"""

from __future__ import annotations

import json
import os
import stat
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import yaml

from driver.localcluster.containers import rootfs
from driver.localcluster.containers.cdi_spec import Spec, load, quote
from driver.localcluster.containers.errors import CdiError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

_KINDS = ((stat.S_ISCHR, "c"), (stat.S_ISBLK, "b"), (stat.S_ISFIFO, "p"))


@dataclass(slots=True, kw_only=True)
class Edits:
    """The merged edits of some devices, as they reach the container: what came twice is there once."""

    env: dict[str, str] = field(default_factory=dict)
    nodes: dict[str, dict[str, Any]] = field(default_factory=dict)
    mounts: dict[str, dict[str, Any]] = field(default_factory=dict)
    hooks: list[dict[str, Any]] = field(default_factory=list)
    gids: list[int] = field(default_factory=list)

    def append(self, edits: dict[str, Any]) -> None:
        """Add one set of edits; a variable, node or mount that is there already is replaced."""
        self.env.update(item.partition("=")[::2] for item in edits.get("env", []))
        self.nodes.update((node["path"], node) for node in edits.get("deviceNodes", []))
        for mount in edits.get("mounts", []):
            self.mounts.pop(mount["containerPath"], None)
            self.mounts[mount["containerPath"]] = mount
        self.hooks.extend(edits.get("hooks", []))
        self.gids.extend(gid for gid in edits.get("additionalGids", []) if gid and gid not in self.gids)


@dataclass(frozen=True, slots=True, kw_only=True)
class Registry:
    """What the CDI directories held when they were read, and what was wrong there."""

    devices: dict[str, tuple[Spec, dict[str, Any]]]
    errors: tuple[str, ...]

    def inject(self, names: Iterable[str]) -> Edits:
        """Merge the edits of the named devices; a file's common edits come once.

        :raises CdiError: `CDI device injection failed: …`.
        """
        wanted = dict.fromkeys(names)
        missing = [name for name in wanted if name not in self.devices]
        if missing:
            raise CdiError(f"CDI device injection failed: unresolvable CDI devices {', '.join(missing)}")
        merged, seen = Edits(), set[int]()
        for name in wanted:
            spec, edits = self.devices[name]
            if id(spec) not in seen:
                merged.append(spec.common)
                seen.add(id(spec))
            merged.append(edits)
        merged.nodes = {path: filled(node) for path, node in merged.nodes.items()}
        return merged


def read(directories: Sequence[Path]) -> Registry:
    """Read every `*.json` and `*.yaml` in the directories, which are given by rising priority."""
    found: dict[str, tuple[int, Path, Spec]] = {}
    conflicts: set[str] = set()
    errors: list[str] = []
    for priority, path in _files(directories):
        try:
            spec = _load_file(path)
        except CdiError as exc:
            errors.append(f"CDI registry refresh failed: failed to load CDI Spec {exc}")
            continue
        for name in (f"{spec.kind}={device}" for device in spec.devices):
            old = found.get(name)
            if old is None or old[0] < priority:
                found[name] = (priority, path, spec)
                continue
            where = f"(specs {quote(str(path))}, {quote(str(old[1]))})"
            errors.append(f"CDI registry refresh failed: conflicting device {quote(name)} {where}")
            conflicts.add(name)
    devices = {
        name: (spec, spec.devices[name.partition("=")[2]])
        for name, (_, _, spec) in found.items()
        if name not in conflicts
    }
    return Registry(devices=devices, errors=tuple(errors))


def _files(directories: Sequence[Path]) -> Iterator[tuple[int, Path]]:
    for priority, directory in enumerate(directories):
        if directory.is_dir():
            for path in sorted(directory.iterdir()):
                if path.suffix in (".json", ".yaml") and path.is_file():
                    yield priority, path


def _load_file(path: Path) -> Spec:
    where = f"failed to parse CDI Spec {quote(str(path))}:"
    try:
        data = _parse(path.read_bytes())
    except OSError as exc:
        raise CdiError(f"failed to read CDI Spec {quote(str(path))}: {rootfs.go_text(exc)}") from exc
    except (yaml.YAMLError, ValueError, RecursionError) as exc:
        raise CdiError(f"{where} failed to unmarshal CDI Spec: error converting YAML to JSON: {_words(exc)}") from exc
    try:
        return load(data)
    except CdiError as exc:
        shape = str(exc).startswith("error unmarshaling")
        raise CdiError(f"{where} failed to unmarshal CDI Spec: {exc}" if shape else str(exc)) from exc


def _parse(data: bytes) -> object:
    """Parse JSON quickly, and anything else as the YAML that containerd takes every file for."""
    try:
        return json.loads(data)
    except ValueError:
        return yaml.load(data, getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506 (both are safe loaders)


def _words(exc: Exception) -> str:
    if not isinstance(exc, yaml.MarkedYAMLError) or exc.problem_mark is None:
        return f"yaml: {exc}"
    return f"yaml: line {max(exc.problem_mark.line, 1)}: {exc.problem}"


def filled(node: dict[str, Any]) -> dict[str, Any]:
    """Complete a device node from the host's, as far as the file does not say it all.

    :raises CdiError: the host has no such device, or another.
    """
    if node.get("type") and (node.get("major") or node["type"] == "p"):
        return node
    host = node.get("hostPath") or node["path"]
    try:
        info = os.stat(host)  # noqa: PTH116 (the text is a device's path, perhaps with a dot-dot)
    except (OSError, ValueError) as exc:
        words = rootfs.go_text(exc) if isinstance(exc, OSError) else "invalid argument"
        raise _injection_failed(f"failed to stat CDI host device {quote(host)}: {words}") from exc
    kind = next((name for test, name in _KINDS if test(info.st_mode)), None)
    if kind is None:
        raise _injection_failed(f"failed to stat CDI host device {quote(host)}: not a device node")
    if node.get("type", kind) != kind:
        names = f"({quote(node['path'])}, {quote(host)}), host type mismatch ({node['type']}, {kind})"
        raise _injection_failed(f"CDI device {names}")
    return {
        **node,
        "hostPath": host,
        "type": kind,
        "major": os.major(info.st_rdev),
        "minor": os.minor(info.st_rdev),
    }


def _injection_failed(text: str) -> CdiError:
    return CdiError(f"CDI device injection failed: failed to inject devices: {text}")
