"""`gpu-dra device-classes`: the DeviceClasses to install for a node's GPUs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from driver.cli import output, source

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

    from driver.inventory.base import Reading
    from driver.settings import Settings

DESCRIPTION = """\
Show DeviceClasses for this node's GPUs, or for fake ones: whole GPUs, MIG devices, and each MIG profile that there is.
Their extended resource names let pods that ask for nvidia.com/gpu or nvidia.com/mig-<profile> get claims (Kubernetes
1.36 or later, or the feature gate DRAExtendedResource)."""
EPILOG = """\
examples:
  gpu-dra device-classes -o yaml | kubectl apply -f -              for the GPUs of this node
  gpu-dra device-classes --gpus h100@mig=1g.10gb*7                 for MIG devices that exist
  gpu-dra device-classes --gpus h100 --dynamic-mig all             for MIG devices made for claims
  gpu-dra device-classes --gpus a100-80,h100 --all-profiles        for all that the products can
  gpu-dra device-classes --gpus h100 --no-extended-resources       for claims only
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    output.add_format(parser)
    parser.add_argument("--all-profiles", action="store_true", help="of all MIG profiles that the GPUs offer")
    parser.add_argument("--no-extended-resources", action="store_true", help="without extended resource names")
    source.add_inventory_flags(parser, "dynamic_mig")


def run(args: argparse.Namespace) -> int:
    """Print the classes."""
    from driver.device_classes import device_classes

    settings, reading = source.read_gpus(args)
    profiles = _all_profiles(reading) if args.all_profiles else _present(reading, settings)
    classes = device_classes(profiles, extended_resources=not args.no_extended_resources)
    if args.output == "table":
        output.print_table(("CLASS", "EXTENDED RESOURCE", "SELECTOR"), map(_row, classes))
    else:
        output.print_objects(args.output, classes)
    return 0


def _present(reading: Reading, settings: Settings) -> list[str]:
    from driver.device_classes import profiles_of
    from driver.monitor.observation import advance

    return profiles_of(advance(None, reading, settings.dynamic_mig).devices())


def _all_profiles(reading: Reading) -> list[str]:
    return sorted({profile.name for gpu in reading.gpus if gpu.mig is not None for profile in gpu.mig.profiles})


def _row(item: Mapping[str, Any]) -> tuple[object, ...]:
    spec = item["spec"]
    return item["metadata"]["name"], spec.get("extendedResourceName"), spec["selectors"][0]["cel"]["expression"]
