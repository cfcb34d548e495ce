"""Measure what the agent costs, against the floor of the same machine in the same run.

Absolute times shift with the machine; the ratios hold. Nothing is asserted: the table says which target was missed.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from hack.benchmarks import agent, fragmentation, health
from hack.benchmarks.device_plugin import device_plugin
from hack.benchmarks.partitions import partitions
from hack.benchmarks.report import Report
from hack.benchmarks.scale import CLAIMS_PER_NODE, SIZES, scale
from hack.benchmarks.sharing import sharing
from hack.benchmarks.telemetry import telemetry

if TYPE_CHECKING:
    from collections.abc import Sequence

USUAL = {
    **agent.PARTS,
    "partitions": "slices of 16 H100 with all placements: built, published, and changed by a claim",
    "sharing": "claims with partitions, time slices and MPS, beside what the tools themselves take",
    "device-plugin": "Allocate beside an empty call, the list of 1,000 replicas, preferred sets, memory",
    "telemetry": "a scrape of 8 GPUs x 7 partitions, and what it costs to be able to answer",
    "health": "from a fault to the slice and the kubelet's stream, and what a storm of events writes",
}
FURTHER = {
    "scale": "API requests per node and per claim on 100, 300 and 1,000 nodes (2 minutes)",
    "fragmentation": "how the order of MIG partitions fragments GPUs: a simulation (3 minutes)",
}
PARTS = USUAL | FURTHER


async def run(arguments: argparse.Namespace) -> Report:
    """Measure the chosen parts, one after another."""
    report, parts = Report(), set(arguments.only)
    if chosen := parts & set(agent.PARTS):
        await agent.agent(
            report, chosen, rounds=arguments.rounds, idle_seconds=arguments.idle, pause=arguments.pause / 1000
        )
    if "partitions" in parts:
        await partitions(report)
    if "sharing" in parts:
        await sharing(report, min(arguments.rounds, 30))
    if "device-plugin" in parts:
        await device_plugin(report, arguments.rounds)
    if "telemetry" in parts:
        await telemetry(report, min(arguments.rounds, 100), arguments.idle)
    if "health" in parts:
        await health.measure(report, min(arguments.rounds, 20))
    if "scale" in parts:
        await scale(report, arguments.nodes, arguments.claims_per_node)
    if "fragmentation" in parts:
        report.notes.append(fragmentation.table())
    return report


def main() -> None:
    """Parse the arguments, run, print."""
    arguments = _parser().parse_args()
    report = asyncio.run(run(arguments))
    print(report.text())
    if report.rows:
        report.write(arguments.json)
        print(f"\nAs JSON: {arguments.json}")


def _parser() -> argparse.ArgumentParser:
    parts = "\n".join(f"  {name:<14} {about}" for name, about in PARTS.items())
    parser = argparse.ArgumentParser(
        prog="hack/bench",
        description=__doc__,
        epilog=f"parts:\n{parts}\n\nwithout --only: {','.join(USUAL)}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", type=_parts, default=list(USUAL), metavar="PART,…", help="measure these parts only")
    for name in FURTHER:
        parser.add_argument(f"--{name}", dest="only", action="store_const", const=[name], help=f"as --only {name}")
    parser.add_argument("--rounds", type=_positive, default=200, help="samples of each call (default 200)")
    parser.add_argument(
        "--pause",
        type=float,
        default=20,
        metavar="MS",
        help="rest before each sample of calls and bursts, as a kubelet's calls come to an idle agent (default 20); "
        "0 measures in a loop, with all caches warm",
    )
    parser.add_argument("--idle", type=float, default=10, help="seconds of idleness to look at (default 10)")
    sizes = ",".join(map(str, SIZES))
    parser.add_argument("--nodes", type=_sizes, default=SIZES, metavar="N,…", help=f"sizes of scale (default {sizes})")
    parser.add_argument(
        "--claims-per-node", type=_positive, default=CLAIMS_PER_NODE, help=f"in scale (default {CLAIMS_PER_NODE})"
    )
    parser.add_argument(
        "--json", type=Path, default=Path("bench.json"), help="where the JSON goes (default bench.json)"
    )
    return parser


def _parts(text: str) -> list[str]:
    chosen = [name.strip() for name in text.split(",") if name.strip()]
    if not chosen or (unknown := [name for name in chosen if name not in PARTS]):
        raise argparse.ArgumentTypeError(f"{unknown[0] if chosen else 'nothing'!r} is none of {', '.join(PARTS)}")
    return chosen


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number above 0")
    return int(text)


def _sizes(text: str) -> Sequence[int]:
    return sorted(_positive(one) for one in text.split(","))


if __name__ == "__main__":
    sys.exit(main())
