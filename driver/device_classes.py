"""DeviceClasses for the devices of a node: one for whole GPUs, one for MIG devices, one for each MIG profile. Pure.

With an extended resource name (KEP-5004), pods that ask for `nvidia.com/gpu: 1` or `nvidia.com/mig-1g.10gb: 1`, as
they do with NVIDIA's device plugin, get claims made for them. A name belongs to one class in a cluster.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from driver.model import names
from driver.model.device import FullGpu, MigDevice

if TYPE_CHECKING:
    from collections.abc import Iterable

    from driver.model.device import Device

API_VERSION = "resource.k8s.io/v1"
GPU_CLASS = names.DRIVER
MIG_CLASS = "mig.nvidia.com"
DOMAIN = "nvidia.com"

_MAX_NAME = 63  # characters of an extended resource's name after its domain


def profiles_of(devices: Iterable[Device]) -> list[str]:
    """Return the MIG profiles of devices by name, in order."""
    return sorted(
        {
            device.instance.name if isinstance(device, MigDevice) else device.profile.name
            for device in devices
            if not isinstance(device, FullGpu)
        }
    )


def device_classes(profiles: Iterable[str], *, extended_resources: bool = True) -> list[dict[str, Any]]:
    """Return the classes of whole GPUs, of MIG devices, and of these profiles."""
    found = [
        _class(GPU_CLASS, "type == 'gpu'", resource="gpu" if extended_resources else ""),
        _class(MIG_CLASS, "type == 'mig'"),
    ]
    for profile in profiles:
        part = f"mig-{profile.replace('+', '.')}"
        name = f"{part}.{DOMAIN}"
        if not names.is_dns_subdomain(name) or len(part) > _MAX_NAME or "'" in profile or "\\" in profile:
            continue  # no profile that a driver reports: nothing could be named after it
        resource = part if extended_resources else ""
        found.append(_class(name, "type == 'mig'", f"profile == '{profile}'", resource=resource))
    return found


def _class(name: str, *conditions: str, resource: str = "") -> dict[str, Any]:
    own = (f"device.attributes['{names.DRIVER}'].{condition}" for condition in conditions)
    expression = " && ".join([f"device.driver == '{names.DRIVER}'", *own])
    spec: dict[str, Any] = {"selectors": [{"cel": {"expression": expression}}]}
    if resource:
        spec["extendedResourceName"] = f"{DOMAIN}/{resource}"
    return {"apiVersion": API_VERSION, "kind": "DeviceClass", "metadata": {"name": name}, "spec": spec}
