"""From a container's description and its CDI edits to the OCI runtime configuration. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    from driver.localcluster.containers.cdi import Edits

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_OCI_VERSION = "1.2.0"


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerRequest:
    """One start of one container, as the kubelet asks the runtime for it (CRI's CreateContainer)."""

    pod_uid: str
    pod_name: str
    namespace: str
    name: str
    args: tuple[str, ...]
    log_path: Path
    attempt: int = 0
    env: dict[str, str] = field(default_factory=dict)
    cwd: str = "/"
    mounts: tuple[dict[str, Any], ...] = ()
    """OCI mounts: destination, source, type, options."""
    devices: tuple[dict[str, Any], ...] = ()
    """Device nodes as in a CDI file, beside those of `cdi_devices`."""
    cdi_devices: tuple[str, ...] = ()
    annotations: dict[str, str] = field(default_factory=dict)
    uid: int = 0
    gid: int = 0
    groups: tuple[int, ...] = ()


def configuration(request: ContainerRequest, edits: Edits, root: Path) -> dict[str, Any]:
    """Return the bundle's `config.json`; what CDI gives replaces what the image or the pod gave."""
    env = {"PATH": PATH, "HOSTNAME": request.pod_name, "HOME": "/root", **request.env, **edits.env}
    mounts = {mount["destination"]: mount for mount in request.mounts}
    for mount in map(_mount, edits.mounts.values()):
        mounts.pop(mount["destination"], None)
        mounts[mount["destination"]] = mount
    return {
        "ociVersion": _OCI_VERSION,
        "hostname": request.pod_name,
        "root": {"path": str(root)},
        "process": {
            "args": list(request.args),
            "env": [f"{name}={value}" for name, value in env.items()],
            "cwd": request.cwd,
            "user": {
                "uid": request.uid,
                "gid": request.gid,
                "additionalGids": list(dict.fromkeys([*request.groups, *edits.gids])),
            },
        },
        # a mount on a directory comes before those on what is in it
        "mounts": sorted(mounts.values(), key=lambda mount: mount["destination"].count("/")),
        "linux": {"devices": [_device(node) for node in edits.nodes.values()]},
        "hooks": _hooks(edits.hooks),
        "annotations": request.annotations,
    }


def _mount(mount: dict[str, Any]) -> dict[str, Any]:
    return {
        "destination": mount["containerPath"],
        "source": mount["hostPath"],
        "type": mount.get("type", ""),
        "options": mount.get("options", []),
    }


def _device(node: dict[str, Any]) -> dict[str, Any]:
    device: dict[str, Any] = {
        key: node[key] for key in ("path", "type", "major", "minor", "fileMode", "uid", "gid") if key in node
    }
    return {**device, "hostPath": node.get("hostPath") or node["path"]}


def _hooks(hooks: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    stages: dict[str, list[dict[str, Any]]] = {}
    for hook in hooks:
        body = {key: value for key, value in hook.items() if key != "hookName"}
        stages.setdefault(hook["hookName"], []).append(body)
    return stages
