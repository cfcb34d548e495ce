"""Which inventory a process has: fake GPUs if it was given any, else NVML's. Loads only what it makes."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from driver.inventory.base import NodeInventory
    from driver.settings import Settings


def make_inventory(settings: Settings, *, with_faults: bool = True) -> NodeInventory:
    """Make the inventory that the settings ask for; nothing is read yet.

    :raises InvalidValueError: the fake GPUs can't be made; the message names the setting's source.
    """
    if settings.fake:
        from driver.inventory.fake import FakeInventory
        from driver.inventory.profiles import load_products

        return FakeInventory.from_spec(
            settings.gpus,
            node_name=settings.node_name,
            products=load_products(settings.profiles_dir, settings.source("profiles_dir")),
            faults_file=settings.faults if with_faults else None,
            mig_file=settings.faults.with_name("fake-mig.json") if with_faults else None,
            boot_id=_boot_id(settings.boot_id),
            timeout=settings.nvml_timeout,
            source=settings.source("gpus"),
        )
    from driver.inventory.nvml import NvmlInventory

    return NvmlInventory(settings.driver_root, sys_root=settings.sys_root, time_limit=settings.nvml_timeout)


def _boot_id(file: Path) -> str:
    """Return what tells this boot from others, as MIG devices don't survive one; empty if nothing does."""
    try:
        return file.read_text().strip()
    except (OSError, ValueError):
        return ""
