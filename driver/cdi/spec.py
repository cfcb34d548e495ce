"""What a container gets, and the CDI file that says so. Pure.

The Container Device Interface's specification: `cncf-tags/container-device-interface/SPEC.md`. What is written is
checked by the runtime's rules first (`driver.cdi.rules`): one bad entry would spoil the whole file.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

from driver.cdi import rules
from driver.errors import InvalidValueError
from driver.model import names

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

T = TypeVar("T")

READ_ONLY_BIND = ("ro", "nosuid", "nodev", "rbind", "rprivate")
"""The options of a mount that a container may read only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceNode:
    """A device node. `path` is the container's, `host_path` the host's where it differs; the mode is in octal bits.

    With `type`, `major` and `minor` given, the runtime does not look the node up on the host.
    """

    path: str
    host_path: str = ""
    type: str = ""
    major: int | None = None
    minor: int | None = None
    file_mode: int | None = None
    gid: int | None = None
    permissions: str = "rw"

    def encode(self) -> dict[str, Any]:
        """Return the CDI form; what is not known is left out."""
        return _present(
            path=self.path,
            hostPath=self.host_path if self.host_path != self.path else "",
            type=self.type,
            major=self.major,
            minor=self.minor,
            fileMode=self.file_mode,
            permissions=self.permissions,
            gid=self.gid or None,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """A mount. The runtime refuses to start the container if the host path is missing. `type` only where no bind."""

    host_path: str
    container_path: str
    options: tuple[str, ...] = READ_ONLY_BIND
    type: str = ""

    def encode(self) -> dict[str, Any]:
        """Return the CDI form."""
        return _present(
            hostPath=self.host_path, containerPath=self.container_path, options=[*self.options], type=self.type
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Hook:
    """A program that the runtime runs on the host at `name` (`createContainer`, …); `args` starts with its own name."""

    name: str
    path: str
    args: tuple[str, ...] = ()
    env: tuple[str, ...] = ()

    def encode(self) -> dict[str, Any]:
        """Return the CDI form."""
        return _present(hookName=self.name, path=self.path, args=[*self.args], env=[*self.env])


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerEdits:
    """What is added to a container."""

    env: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    device_nodes: tuple[DeviceNode, ...] = ()
    mounts: tuple[Mount, ...] = ()
    hooks: tuple[Hook, ...] = ()
    additional_gids: tuple[int, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.env or self.device_nodes or self.mounts or self.hooks or self.additional_gids)

    def encode(self) -> dict[str, Any]:
        """Return the CDI form, without empty lists."""
        return _present(
            env=[f"{name}={value}" for name, value in self.env.items()],
            deviceNodes=[node.encode() for node in self.device_nodes],
            mounts=[mount.encode() for mount in self.mounts],
            hooks=[hook.encode() for hook in self.hooks],
            additionalGids=[*self.additional_gids],
        )


NO_EDITS = ContainerEdits()


def merge(*edits: ContainerEdits) -> ContainerEdits:
    """Join edits in order. Of one variable, device path or mount target, the later wins, as in the runtime."""
    env: dict[str, str] = {}
    for one in edits:
        env.update(one.env)
    return ContainerEdits(
        env=MappingProxyType(env),
        device_nodes=tuple({node.path: node for one in edits for node in one.device_nodes}.values()),
        mounts=tuple({mount.container_path: mount for one in edits for mount in one.mounts}.values()),
        hooks=_unique(hook for one in edits for hook in one.hooks),
        additional_gids=_unique(gid for one in edits for gid in one.additional_gids),
    )


def claim_spec(
    claim_uid: str, *, common: ContainerEdits = NO_EDITS, devices: Mapping[str, ContainerEdits]
) -> dict[str, Any]:
    """Return the CDI spec of a claim, in the lowest version that serves.

    `devices` maps names made by `names.cdi_device` for this claim to what each device adds; `common` comes once per
    container, however many of the devices it uses.

    :raises InvalidValueError: the runtime would refuse it: no device (C4), a device without edits, a bad entry.
    """
    names.check_uid(claim_uid, "claim UID")
    for name in devices:
        if not name.startswith(f"{claim_uid}-"):
            raise InvalidValueError("devices[].name", name, f"must start with the claim's UID, {claim_uid}-")
    return kind_spec(names.CDI_KIND, common=common, devices=devices)


def kind_spec(kind: str, *, common: ContainerEdits = NO_EDITS, devices: Mapping[str, ContainerEdits]) -> dict[str, Any]:
    """Return the CDI spec of any kind (`vendor/class`), in the lowest version that serves.

    :raises InvalidValueError: the runtime would refuse it.
    """
    spec: dict[str, Any] = {
        "cdiVersion": "",
        "kind": kind,
        "devices": [{"name": name, "containerEdits": edits.encode()} for name, edits in devices.items()],
    }
    if common:
        spec["containerEdits"] = common.encode()
    rules.check_content(spec)
    spec["cdiVersion"] = rules.required_version(spec)
    return spec


def encode(spec: Mapping[str, Any]) -> bytes:
    """Return the bytes of a spec: compact JSON, the same for equal specs, with a final newline."""
    return json.dumps(spec, separators=(",", ":")).encode() + b"\n"


def _present(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None and value not in ("", [])}


def _unique(items: Iterable[T]) -> tuple[T, ...]:
    return tuple(dict.fromkeys(items))
