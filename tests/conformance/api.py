"""The Kubernetes API as the suite uses it: the driver's own client, with logs, objects by kind, and forced deletes."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from driver.kube.client import KubeClient

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

Object = dict[str, Any]

_TURNS = 3  # of the event loop, until an aborted TLS connection is gone
_COLLECTIONS = {
    "Namespace": ("/api/v1", "namespaces", False),
    "Node": ("/api/v1", "nodes", False),
    "Pod": ("/api/v1", "pods", True),
    "Event": ("/api/v1", "events", True),
    "ConfigMap": ("/api/v1", "configmaps", True),
    "Service": ("/api/v1", "services", True),
    "Deployment": ("/apis/apps/v1", "deployments", True),
    "ReplicaSet": ("/apis/apps/v1", "replicasets", True),
    "Job": ("/apis/batch/v1", "jobs", True),
    "DeviceClass": ("/apis/resource.k8s.io/v1", "deviceclasses", False),
    "ResourceSlice": ("/apis/resource.k8s.io/v1", "resourceslices", False),
    "ResourceClaim": ("/apis/resource.k8s.io/v1", "resourceclaims", True),
    "ResourceClaimTemplate": ("/apis/resource.k8s.io/v1", "resourceclaimtemplates", True),
}


def collection(kind: str, namespace: str = "") -> str:
    """Return the path of all objects of a kind, in a namespace if it has any."""
    base, plural, namespaced = _COLLECTIONS[kind]
    return f"{base}/namespaces/{namespace}/{plural}" if namespaced else f"{base}/{plural}"


def path_of(item: Object) -> str:
    """Return the path of one object."""
    return f"{collection(item['kind'], item['metadata'].get('namespace', ''))}/{item['metadata']['name']}"


_LONGEST_SILENCE = 600.0  # seconds without a line in a log


class Api(KubeClient):
    """What a suite needs beyond an agent."""

    async def force_delete(self, path: str) -> None:
        """Delete a pod without waiting for its node, as `kubectl delete --force` does."""
        body = {"kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": 0}
        await self._send("DELETE", path, body, "application/json")

    async def log(self, pod_path: str, container: str) -> AsyncGenerator[str]:
        """Yield a container's log as it grows, until the container ends."""
        path = f"{pod_path}/log?container={container}&follow=true"
        async with aclosing(self._open().stream(path, silence=_LONGEST_SILENCE)) as chunks:
            async for chunk in chunks:
                yield chunk.decode(errors="replace")
