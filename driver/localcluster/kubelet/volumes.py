"""A pod's volumes as directories of the host, and a container's mounts of them."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import TYPE_CHECKING, Any

from driver.errors import TemporaryError
from driver.localcluster.containers.errors import ContainerError
from driver.localcluster.kubelet.environment import environment, expand, field

if TYPE_CHECKING:
    from collections.abc import Callable

    from driver.localcluster.apiserver.objects import Object

_MODE = 0o777


class VolumeError(TemporaryError):
    """A volume can't be set up now; the kubelet comes back."""


def set_up(pod: Object, directory: Path, find: Callable[[str, str], Object | None]) -> dict[str, Path]:
    """Make the pod's volumes below `directory`; return their places by name.

    An emptyDir is a directory of the host's, in memory or not: the medium is not told apart.

    :raises VolumeError: a volume's source is missing, or of a kind that the embedded cluster lacks.
    """
    return {volume["name"]: _set_up(pod, volume, directory, find) for volume in pod["spec"].get("volumes") or ()}


def mounts(
    pod: Object, container: dict[str, Any], volumes: dict[str, Path], find: Callable[[str, str], Object | None]
) -> list[dict[str, Any]]:
    """Return the OCI mounts of a container.

    :raises ContainerError: CreateContainerConfigError: it mounts a volume that the pod lacks.
    """
    result = []
    for mount in container.get("volumeMounts") or ():
        if mount["name"] not in volumes:
            raise ContainerError(f'volume "{mount["name"]}" not found', reason="CreateContainerConfigError")
        source = volumes[mount["name"]]
        below = mount.get("subPath") or expand(mount.get("subPathExpr") or "", environment(pod, container, find))
        if below:
            source = _sub_path(source, below)
        options = ["rbind", "rprivate", "ro" if mount.get("readOnly") else "rw"]
        result.append({"destination": mount["mountPath"], "source": str(source), "type": "bind", "options": options})
    return result


def _set_up(pod: Object, volume: dict[str, Any], directory: Path, find: Callable[[str, str], Object | None]) -> Path:
    path: Path = directory / volume["name"]
    if "hostPath" in volume:
        return _host_path(volume)
    files = _files(pod, volume, find)
    path.mkdir(parents=True, exist_ok=True)
    if files is None:
        path.chmod(_MODE)
    for name, data in (files or {}).items():
        target = path / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
    return path


def _host_path(volume: dict[str, Any]) -> Path:
    path, kind = Path(volume["hostPath"]["path"]), volume["hostPath"].get("type") or ""
    if kind == "DirectoryOrCreate":
        path.mkdir(parents=True, exist_ok=True)
    elif kind == "FileOrCreate":
        path.touch()
    if not path.exists() and kind:
        raise VolumeError(f'MountVolume.SetUp failed for volume "{volume["name"]}": hostPath type check failed: {path}')
    return path


def _files(pod: Object, volume: dict[str, Any], find: Callable[[str, str], Object | None]) -> dict[str, bytes] | None:
    """Return the files of a volume, None for an empty directory that the pod may fill."""
    if "emptyDir" in volume or "ephemeral" in volume:
        return None
    if "projected" in volume:
        files: dict[str, bytes] = {}
        for source in volume["projected"].get("sources") or ():
            files |= _files(pod, {"name": volume["name"], **source}, find) or {}
        return files
    if "downwardAPI" in volume:
        items = volume["downwardAPI"].get("items") or ()
        return {
            item["path"]: field(pod, item["fieldRef"]["fieldPath"]).encode() for item in items if "fieldRef" in item
        }
    for key, resource, name in (("configMap", "configmaps", "name"), ("secret", "secrets", "secretName")):
        if key in volume:
            source = volume[key]
            return _object_files(volume["name"], resource, source, source.get(name) or source.get("name", ""), find)
    if "serviceAccountToken" in volume:
        return {}
    kind = next((key for key in volume if key != "name"), "none")
    raise VolumeError(f'volume "{volume["name"]}": the embedded cluster has no volumes of type {kind}')


def _object_files(
    volume: str, resource: str, source: dict[str, Any], name: str, find: Callable[[str, str], Object | None]
) -> dict[str, bytes]:
    obj = find(resource, name)
    if obj is None:
        if source.get("optional"):
            return {}
        raise VolumeError(f'MountVolume.SetUp failed for volume "{volume}" : {resource[:-1]} "{name}" not found')
    data = {key: text.encode() for key, text in (obj.get("data") or {}).items()}
    if resource == "secrets":
        data = {key: base64.b64decode(text) for key, text in data.items()}
    data |= {key: base64.b64decode(text) for key, text in (obj.get("binaryData") or {}).items()}
    items = source.get("items")
    return {item["path"]: data[item["key"]] for item in items if item["key"] in data} if items else data


def _sub_path(volume: Path, below: str) -> Path:
    path = volume / below
    if ".." in path.parts or volume not in path.parents:
        raise ContainerError(f"subPath {below} leaves the volume", reason="CreateContainerConfigError")
    if not path.exists():
        path.mkdir(parents=True)
    return path
