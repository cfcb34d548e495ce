"""`gpu-dra slices`: what would be published, without a cluster."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from driver.cli import output, source

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

    from driver.inventory.base import Reading
    from driver.settings import Settings

DESCRIPTION = "Show the ResourceSlices that the agent would publish for this node's GPUs, or for fake ones."
EPILOG = """\
examples:
  gpu-dra slices --gpus h100:8                        a summary
  gpu-dra slices --gpus h100:8,l4:130 -o yaml         the objects, one document each
  gpu-dra slices --gpus h100 --dynamic-mig all        with all MIG partitions
  gpu-dra slices --gpus l4 --node-name n1 -o json | kubectl create -f -
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    output.add_format(parser)
    source.add_inventory_flags(parser, "dynamic_mig", "shares")


def run(args: argparse.Namespace) -> int:
    """Print the slices."""
    settings, reading = source.read_gpus(args)
    for word in settings.dynamic_mig.unmatched(reading.gpus):
        print(f"gpu-dra: {settings.source('dynamic_mig')}: {word!r} means no GPU of this node", file=sys.stderr)
    slices = build_slices(reading, settings)
    if args.output == "table":
        output.print_table(("SLICE", "POOL", "DEVICES", "TYPES", "FIRST", "LAST"), map(_row, slices))
    else:
        output.print_objects(args.output, slices)
    return 0


def build_slices(reading: Reading, settings: Settings) -> list[dict[str, Any]]:
    """Return the objects that a first publication of this reading creates, but for the owner: the Node's UID.

    The API server is one that stores them whole.
    """
    from driver.model.names import DRIVER
    from driver.monitor.observation import advance
    from driver.slices.build import BuildOptions, build
    from driver.slices.diff import API_VERSION, Owner

    owner = Owner(driver=DRIVER, node_name=settings.node_name)
    options = BuildOptions(node_name=settings.node_name, partitions=True, shares=settings.shares)
    specs = build(advance(None, reading, settings.dynamic_mig), options)
    return [
        {
            "apiVersion": API_VERSION,
            "kind": "ResourceSlice",
            "metadata": {"generateName": owner.generate_name(index)},
            "spec": spec,
        }
        for index, spec in enumerate(specs)
    ]


def _row(item: Mapping[str, Any]) -> tuple[object, ...]:
    spec = item["spec"]
    entries = spec.get("devices") or spec.get("sharedCounters") or ()
    types = sorted({entry["attributes"]["type"]["string"] for entry in spec.get("devices", ())})
    types += ["counters"] if "sharedCounters" in spec else []
    ends = (entries[0]["name"], entries[-1]["name"]) if entries else ("", "")
    return item["metadata"]["generateName"], spec["pool"]["name"], len(entries), ", ".join(types), *ends
