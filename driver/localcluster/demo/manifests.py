"""The objects that the demo creates: what a workload author would write. Pure."""

from __future__ import annotations

from typing import Any

NAMESPACE = "default"
CLASS = "gpu.nvidia.com"

_SCRIPT = """\
nvidia-smi -L
echo
env | grep -E '^(NVIDIA|GPU_DRA)' | sort
echo
grep -E 'nvidia' /proc/mounts | cut -d' ' -f1-4
echo 'that is all'
trap 'exit 0' TERM
while :; do sleep 1 & wait $!; done
"""
LAST_LINE = "that is all"


def device_class() -> dict[str, Any]:
    """Return the class of whole GPUs, as the manifests in `deploy/` have it."""
    expression = f"device.driver == '{CLASS}' && device.attributes['{CLASS}'].type == 'gpu'"
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": CLASS},
        "spec": {"selectors": [{"cel": {"expression": expression}}]},
    }


def template(name: str, count: int, product: str) -> dict[str, Any]:
    """Return a claim template for GPUs whose product name matches."""
    selector = f'device.attributes["{CLASS}"].productName.matches("{product}")'
    exactly = {"deviceClassName": CLASS, "count": count, "selectors": [{"cel": {"expression": selector}}]}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {"spec": {"devices": {"requests": [{"name": "gpus", "exactly": exactly}]}}},
    }


def pod(name: str, template_name: str) -> dict[str, Any]:
    """Return a pod that shows what its container sees, then runs on."""
    container = {
        "name": "main",
        "image": "busybox",
        "command": ["/bin/sh", "-c", _SCRIPT],
        "resources": {"claims": [{"name": "gpus"}]},
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {
            "terminationGracePeriodSeconds": 2,
            "containers": [container],
            "resourceClaims": [{"name": "gpus", "resourceClaimTemplateName": template_name}],
        },
    }
