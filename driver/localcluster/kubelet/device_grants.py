"""Which container holds which devices of device plugins; kept across the kubelet's restarts."""

from __future__ import annotations

import base64
import json
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from driver._pb import device_plugin_v1beta1_pb2 as pb
from driver.files import write_atomic

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_log = logging.getLogger(__name__)
_CDI_ANNOTATION = "cdi.k8s.io/"


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """Devices of one resource that one container holds, and what the plugin answered."""

    pod: str
    container: str
    resource: str
    devices: tuple[str, ...]
    response: pb.ContainerAllocateResponse


@dataclass(frozen=True, slots=True, kw_only=True)
class Granted:
    """What all grants of a container put into it."""

    env: dict[str, str]
    mounts: tuple[dict[str, Any], ...]
    nodes: tuple[dict[str, Any], ...]
    annotations: dict[str, str]
    cdi: tuple[str, ...]


class Grants:
    """All grants of a node, in the order they were made."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._grants: list[Grant] = []

    def __iter__(self) -> Iterator[Grant]:
        return iter(list(self._grants))

    def of(self, pod: str, container: str) -> list[Grant]:
        """Return a container's grants."""
        return [grant for grant in self._grants if (grant.pod, grant.container) == (pod, container)]

    def held(self, resource: str) -> set[str]:
        """Return the devices of a resource that some container holds."""
        return {device for grant in self._grants if grant.resource == resource for device in grant.devices}

    def add(self, grant: Grant) -> None:
        """Keep a grant.

        :raises StorageError:
        """
        self._grants.append(grant)
        self._save()

    def release(self, pod: str) -> None:
        """Forget what a pod held.

        :raises StorageError:
        """
        kept = [grant for grant in self._grants if grant.pod != pod]
        if len(kept) != len(self._grants):
            self._grants = kept
            self._save()

    def load(self) -> None:
        """Read the checkpoint; none, or a bad one, is an empty one."""
        try:
            self._grants = [_decode(item) for item in json.loads(self._path.read_bytes())["grants"]]
        except FileNotFoundError:
            self._grants = []
        except (OSError, ValueError, KeyError, TypeError) as exc:
            _log.error("checkpoint %s can't be read, devices of running pods count as free: %s", self._path, exc)
            self._grants = []

    def _save(self) -> None:
        body = json.dumps({"grants": [_encode(grant) for grant in self._grants]})
        write_atomic(self._path, body.encode(), durable=False)


def merged(grants: list[Grant]) -> Granted:
    """Return what the grants of one container put into it, as the kubelet passes it to the runtime."""
    responses = [grant.response for grant in grants]
    annotations = {key: value for response in responses for key, value in response.annotations.items()}
    named = [device.name for response in responses for device in response.cdi_devices]
    noted = [name for key, value in annotations.items() if key.startswith(_CDI_ANNOTATION) for name in value.split(",")]
    return Granted(
        env={key: value for response in responses for key, value in response.envs.items()},
        mounts=tuple(_mount(mount) for response in responses for mount in response.mounts),
        nodes=tuple(_node(device) for response in responses for device in response.devices),
        annotations=annotations,
        cdi=tuple(dict.fromkeys([*named, *noted])),
    )


def _mount(mount: pb.Mount) -> dict[str, Any]:
    options = ["rbind", "rprivate", "ro" if mount.read_only else "rw"]
    return {"destination": mount.container_path, "source": mount.host_path, "type": "bind", "options": options}


def _node(device: pb.DeviceSpec) -> dict[str, Any]:
    return {"path": device.container_path, "hostPath": device.host_path, "permissions": device.permissions}


def _encode(grant: Grant) -> dict[str, Any]:
    return {
        "pod": grant.pod,
        "container": grant.container,
        "resource": grant.resource,
        "devices": grant.devices,
        "response": base64.b64encode(grant.response.SerializeToString()).decode(),
    }


def _decode(item: dict[str, Any]) -> Grant:
    return Grant(
        pod=item["pod"],
        container=item["container"],
        resource=item["resource"],
        devices=tuple(item["devices"]),
        response=pb.ContainerAllocateResponse.FromString(base64.b64decode(item["response"])),
    )
