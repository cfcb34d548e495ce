"""The inventory that a command looks at: fake GPUs if it was given a specification, else the node's."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING

from driver.inventory.choose import make_inventory
from driver.settings import add_flags, load_settings

if TYPE_CHECKING:
    import argparse

    from driver.inventory.base import Reading
    from driver.settings import Settings

_SETTINGS = (
    "node_name",
    "inventory",
    "gpus",
    "profiles_dir",
    "faults_file",
    "driver_root",
    "sys_root",
    "nvml_timeout",
)


def add_inventory_flags(parser: argparse.ArgumentParser, *more: str) -> None:
    """Add the settings that say where GPUs come from, and some more."""
    add_flags(parser, (*_SETTINGS, *more))


def read_gpus(args: argparse.Namespace) -> tuple[Settings, Reading]:
    """Observe the GPUs once; what can't be read is told on standard error.

    :raises InventoryError: none can be observed.
    :raises InvalidValueError: a setting is wrong.
    """
    settings = load_settings(vars(args))
    reading = asyncio.run(_read(settings))
    for problem in reading.problems:
        print(f"gpu-dra: {problem.object}: {problem.message}", file=sys.stderr)
    return settings, reading


async def _read(settings: Settings) -> Reading:
    inventory = make_inventory(settings, with_faults=settings.faults_file is not None)
    try:
        return await inventory.read()
    finally:
        await inventory.aclose()
