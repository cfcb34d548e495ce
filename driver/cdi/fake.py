"""Fake GPUs in containers: environment variables and a small `nvidia-smi` that reads them. No device nodes.

Each device has a variable of its own, so that any devices meet in one container, by one claim or several.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from driver.cdi.smi_script import SmiScript
from driver.cdi.spec import READ_ONLY_BIND, ContainerEdits, Mount
from driver.errors import DeviceNotReadyError
from driver.model.device import FullGpu, MigDevice
from driver.model.quantity import MI
from driver.model.snapshot import DriverVersions

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from driver.model.device import Device, Gpu

VARIABLE_PREFIX = "GPU_DRA_DEVICE_"
"""A fake device's variable is this and the device's name, `GPU_DRA_DEVICE_0` for gpu-0."""

SMI_TARGET = "/usr/bin/nvidia-smi"


class FakeEdits:
    """The edits of fake GPUs.

    `directory` is where the fake nvidia-smi is put for the runtime to mount it; `host_directory` is the same
    directory as the host names it, where that differs. `versions` tells the versions to report.
    """

    def __init__(
        self,
        directory: Path,
        *,
        host_directory: Path | None = None,
        versions: Callable[[], DriverVersions] = DriverVersions,
    ) -> None:
        self._script = SmiScript(directory / "nvidia-smi")
        self._host_path = str((host_directory or directory) / "nvidia-smi")
        self._versions = versions

    def common(self) -> ContainerEdits:
        """Return the fake nvidia-smi and the versions that it reports.

        :raises DeviceNotReadyError: the script can't be put on the host.
        """
        self._script.ensure()
        versions = self._versions()
        return ContainerEdits(
            env=MappingProxyType(
                {
                    "NVIDIA_VISIBLE_DEVICES": "void",  # keeps NVIDIA's container runtime, if it is there, out of it
                    "GPU_DRA_DRIVER_VERSION": versions.driver,
                    "GPU_DRA_CUDA_VERSION": versions.cuda,
                }
            ),
            mounts=(Mount(host_path=self._host_path, container_path=SMI_TARGET, options=READ_ONLY_BIND),),
        )

    def device(self, device: Device) -> ContainerEdits:
        """Return the device's variable.

        :raises DeviceNotReadyError: a MIG partition that was not made yet.
        """
        return ContainerEdits(env=MappingProxyType({variable(device.name): describe(device)}))


def variable(device_name: str) -> str:
    """Return the name of a device's environment variable."""
    return VARIABLE_PREFIX + device_name.removeprefix("gpu-").upper().replace("-", "_")


def describe(device: Device) -> str:
    """Return what a container is told of a device: `key=value` pairs with `;` between them.

    :raises DeviceNotReadyError: a MIG partition that was not made yet.
    """
    if isinstance(device, FullGpu):
        return _pairs(_gpu_facts(device.gpu) | ({"mig_mode": "Disabled"} if device.gpu.mig else {}))
    if isinstance(device, MigDevice):
        instance = device.instance
        facts = _gpu_facts(device.gpu, str(instance.placement.start)) | {
            "mig": instance.uuid,
            "profile": instance.name,
            "mig_memory": str(instance.profile.memory // MI),
            "mig_mode": "Enabled",  # it is, or was a moment ago when the GPU was looked at
            "gi": str(instance.gpu_instance_id),
            "ci": str(instance.compute_instance_id),
        }
        return _pairs(facts)
    raise DeviceNotReadyError(f"{device.name}: the MIG device was not made yet")


def _gpu_facts(gpu: Gpu, start: str = "") -> dict[str, str]:
    facts = {
        "index": str(gpu.index),  # these two come first: the script sorts by them
        "start": start,
        "uuid": gpu.uuid,
        "minor": "" if gpu.minor is None else str(gpu.minor),
        "name": gpu.product,
        "brand": gpu.brand,
        "architecture": gpu.architecture,
        "memory": "" if gpu.memory is None else str(gpu.memory // MI),
        "pci": gpu.pci_bus_id or "",
        "compute": ".".join(str(part) for part in gpu.compute_capability),
        "mig_mode": "" if gpu.mig is None else ("Enabled" if gpu.mig.enabled else "Disabled"),
    }
    return {name: value for name, value in facts.items() if value or name == "start"}


def _pairs(facts: dict[str, str]) -> str:
    return ";".join(f"{name}={_clean(value)}" for name, value in facts.items())


def _clean(value: str) -> str:
    return "".join(" " if sign in ";\n\r\0" else sign for sign in value)
