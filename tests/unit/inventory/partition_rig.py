"""One node's GPUs behind either inventory, with the same faults: what the contract of `Partitioner` is tested on."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from driver.errors import DriverError
from driver.inventory.fake import FakeInventory
from driver.inventory.nvml import NvmlInventory
from tests.nvml.fake_nvml import FakeNvml, threads_ended

if TYPE_CHECKING:
    from pathlib import Path

    from driver.model.mig import MigInstance, Placement

NODE = "test-node"
UNKNOWN, IN_USE, LOST, UNINITIALIZED = 999, 19, 15, 1
_NVML_FAULTS = {
    "create_gi: fail": [f"fail nvmlDeviceCreateGpuInstanceWithPlacement {UNKNOWN} *"],
    "create_ci: fail": [f"fail nvmlGpuInstanceCreateComputeInstance {UNKNOWN} *"],
    "create_ci: fail-once": [f"fail nvmlGpuInstanceCreateComputeInstance {UNKNOWN} * 1"],
    "create_ci: fail-bare": [
        f"fail nvmlGpuInstanceCreateComputeInstance {UNKNOWN} *",
        f"fail nvmlGpuInstanceDestroy {UNKNOWN} *",
    ],
    "destroy: in-use": [f"fail nvmlComputeInstanceDestroy {IN_USE} *"],
    "destroy: in-use-once": [f"fail nvmlComputeInstanceDestroy {IN_USE} * 1"],
    "destroy: fail": [f"fail nvmlComputeInstanceDestroy {UNKNOWN} *"],
    "mode: in-use": [f"fail activation {IN_USE} *"],
    "mode: fail": [f"fail nvmlDeviceSetMigMode {UNKNOWN} * 1"],
}


class Rig:
    """GPUs of a specification; `inventory` is one of the two."""

    inventory: FakeInventory | NvmlInventory

    def fault(self, fault: str) -> None:
        """Let this go wrong (`create_ci: fail-once`), and nothing else; empty for nothing."""
        raise NotImplementedError

    def lost(self) -> None:
        """The first GPU falls off the bus."""
        raise NotImplementedError

    def down(self) -> None:
        """NVML ends."""
        raise NotImplementedError

    async def uuid(self, index: int = 0) -> str:
        return (await self.inventory.read()).gpus[index].uuid

    async def outcome(self, uuid: str, profile: int | None, placement: Placement) -> str:
        """Create (or destroy, without a profile); return what came of it, equal for both inventories."""
        try:
            if profile is None:
                return str(await self.inventory.destroy_mig(uuid, placement))
            return described(await self.inventory.create_mig(uuid, profile, placement))
        except DriverError as exc:
            return type(exc).__name__

    async def devices(self, uuid: str) -> list[str]:
        return sorted(described(one) for one in (await self.inventory.mig_state(uuid)).instances)


class FakeRig(Rig):
    def __init__(self, directory: Path, gpus: str) -> None:
        self.faults = directory / "faults.yaml"
        self.inventory = FakeInventory.from_spec(
            gpus, node_name=NODE, faults_file=self.faults, mig_file=directory / "fake-mig.json"
        )

    def _write(self, text: str) -> None:
        new = self.faults.with_suffix(".new")
        new.write_text(text)
        new.replace(self.faults)

    def fault(self, fault: str) -> None:
        self._write(f"gpus: {{0: {{mig: {{{fault}}}}}}}")

    def lost(self) -> None:
        self._write("gpus: {0: {lost: true}}")

    def down(self) -> None:
        self._write("nvml: down")


class NvmlRig(Rig):
    def __init__(self, directory: Path, gpus: str) -> None:
        self.nvml = FakeNvml(directory).install(gpus)
        self.inventory = NvmlInventory(self.nvml.root, sys_root=self.nvml.sys)

    def fault(self, fault: str) -> None:
        self.nvml.control(*(_NVML_FAULTS[fault] if fault else ()))

    def lost(self) -> None:
        self.nvml.control(f"fail * {LOST} 0")

    def down(self) -> None:
        self.nvml.control(f"fail * {UNINITIALIZED} *")


async def close(rig: Rig) -> None:
    """Close an inventory whatever is wrong with it."""
    rig.fault("")
    async with asyncio.timeout(20):
        await rig.inventory.aclose()
    if isinstance(rig, NvmlRig):
        await threads_ended()


def described(instance: MigInstance) -> str:
    return f"{instance.name} at {instance.placement}"
