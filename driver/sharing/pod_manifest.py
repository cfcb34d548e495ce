"""The pod of one MPS control daemon: what the agent asks the API server for. Pure.

It runs the same program by the same command line as the agent would, in the agent's own image, and sees what that takes
of the host by the paths that the agent knows. It is bound to the node, and owned by it: agents come and go.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from driver.model.json_object import JsonObject

DAEMON_LABEL: Final = "gpu.nvidia.com/mps-daemon"
"""The label with the daemon's id, by which the pods are found again."""

TAG_ANNOTATION: Final = "gpu.nvidia.com/mps-settings"
"""The annotation that tells one daemon's settings from another's."""

_PULL_POLICY = "IfNotPresent"
_GRACE = 5  # seconds from SIGTERM to SIGKILL


@dataclass(frozen=True, slots=True, kw_only=True)
class HostPath:
    """A directory of the host that the pod sees."""

    name: str
    host: str
    path: str
    read_only: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """What the pod runs in, and how the kubelet gets it."""

    name: str
    pull_policy: str = _PULL_POLICY
    pull_secrets: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A daemon's command line, its environment, and what it sees of the host."""

    argv: Sequence[str]
    env: Mapping[str, str]
    paths: Sequence[HostPath]


def pod_name(daemon_id: str) -> str:
    """Name the pod of a daemon; distinct ids that differ in case only do not occur."""
    return f"gpu-dra-mps-{daemon_id.lower().replace('_', '-')}"


def manifest(daemon_id: str, tag: str, command: Command, image: Image, node: JsonObject) -> JsonObject:
    """Return the pod on a node (the object). It never restarts: its clients would not survive that."""
    meta = node["metadata"]
    owner = {"apiVersion": "v1", "kind": "Node", "name": meta["name"], "uid": meta["uid"]}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": pod_name(daemon_id),
            # Not the agent's own name: its DaemonSet would take the pod for one of its own.
            "labels": {"app.kubernetes.io/name": "gpu-dra-mps", DAEMON_LABEL: daemon_id},
            "annotations": {TAG_ANNOTATION: tag},
            "ownerReferences": [owner],
        },
        "spec": {
            "nodeName": meta["name"],
            "restartPolicy": "Never",
            "hostPID": True,  # an MPS server has to see its clients' processes
            "priorityClassName": "system-node-critical",
            "tolerations": [{"operator": "Exists"}],
            "terminationGracePeriodSeconds": _GRACE,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            **({"imagePullSecrets": [{"name": name} for name in image.pull_secrets]} if image.pull_secrets else {}),
            "containers": [_container(command, image)],
            "volumes": [{"name": one.name, "hostPath": {"path": one.host}} for one in command.paths],
        },
    }


def own_image(pod: JsonObject) -> Image:
    """Return what a pod's first container runs in."""
    container = pod["spec"]["containers"][0]
    secrets = tuple(one["name"] for one in pod["spec"].get("imagePullSecrets") or ())
    policy = str(container.get("imagePullPolicy") or _PULL_POLICY)
    return Image(name=str(container["image"]), pull_policy=policy, pull_secrets=secrets)


def trouble(pod: JsonObject) -> str:
    """Say how a pod does that does not run yet, or has ended: the kubelet's own words where it has some."""
    status = pod.get("status") or {}
    for container in status.get("containerStatuses") or ():
        for state in (container.get("state") or {}).values():
            if state.get("reason") not in (None, "ContainerCreating", "Completed"):
                code = f" with status {state['exitCode']}" if "exitCode" in state else ""
                return f"{state['reason']}{code} {state.get('message', '')}".strip()
    return f"{status.get('phase', 'Pending')} {status.get('reason', '')} {status.get('message', '')}".strip()


def _container(command: Command, image: Image) -> JsonObject:
    mounts = [
        {
            "name": one.name,
            "mountPath": one.path,
            **({"readOnly": True, "mountPropagation": "HostToContainer"} if one.read_only else {}),
        }
        for one in command.paths
    ]
    return {
        "name": "mps-control-daemon",
        "image": image.name,
        "imagePullPolicy": image.pull_policy,
        "command": list(command.argv),
        "env": [{"name": name, "value": value} for name, value in command.env.items()],
        "securityContext": {"privileged": True, "runAsUser": 0},
        "resources": {"requests": {"cpu": "10m", "memory": "64Mi"}},
        "volumeMounts": mounts,
    }
