"""`hack/bench`: what the agent costs, against the floor of the same machine in the same run.

Absolute times shift with the machine; the ratios hold. Nothing is asserted: the table says which target was missed.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from pathlib import Path

from hack.benchmarks.device_plugin import device_plugin
from hack.benchmarks.floor import Floor, timed
from hack.benchmarks.fragmentation import table as fragmentation
from hack.benchmarks.partitions import partitions
from hack.benchmarks.report import Report, Row, median
from hack.benchmarks.world import World

GPUS = tuple(f"gpu-{number}" for number in range(8))


async def calls(world: World, floor: Floor, report: Report, rounds: int) -> None:
    """One claim at a time: prepare, again, unprepare; the floor's parts are sampled in between."""
    first, again, undo, whole = [], [], [], []
    for number in range(rounds):
        claim = await world.claim([GPUS[number % 8]])
        await floor.measure(claim)
        first.append(await timed(lambda claim=claim: world.prepare(claim)))
        again.append(await timed(lambda claim=claim: world.prepare(claim)))
        undo.append(await timed(lambda claim=claim: world.unprepare(claim)))
        await world.forget([claim])
    for _ in range(max(rounds // 4, 1)):
        claim = await world.claim(GPUS)
        whole.append(await timed(lambda claim=claim: world.prepare(claim)))
        await world.unprepare(claim)
        await world.forget([claim])
    get, rpc = median(floor.get), median(floor.rpc)
    prepare = get + median(floor.durable_write) + median(floor.plain_write) + rpc
    remove = median(floor.durable_remove) + median(floor.plain_remove) + rpc
    report.add(
        Row(
            what="prepare, one GPU",
            value=median(first),
            floor=prepare,
            limit=1.4,
            floor_is="GET + durable write + CDI file + empty RPC",
        )
    )
    report.add(Row(what="prepare again", value=median(again), floor=get + rpc, limit=1.2, floor_is="GET + empty RPC"))
    report.add(
        Row(
            what="unprepare",
            value=median(undo),
            floor=remove,
            limit=1.4,
            floor_is="durable removal + CDI removal + empty RPC",
        )
    )
    report.add(
        Row(what="prepare, 8 GPUs in one claim", value=median(whole), floor=median(first), floor_is="one prepare")
    )


async def bursts(world: World, report: Report, rounds: int) -> None:
    """Eight claims: in one call, and in eight calls at once; one prepare is measured beside."""
    one, together, at_once = [], [], []
    for _ in range(rounds):
        claims = [await world.claim([gpu]) for gpu in GPUS]
        one.append(await timed(lambda claims=claims: world.prepare(claims[0])))
        await world.unprepare(claims[0])
        together.append(await timed(lambda claims=claims: world.prepare(*claims)))
        await world.unprepare(*claims)
        at_once.append(await timed(lambda claims=claims: asyncio.gather(*(world.prepare(claim) for claim in claims))))
        await world.unprepare(*claims)
        await world.forget(claims)
    report.add(
        Row(what="8 claims in one call", value=median(together), floor=median(one), limit=3, floor_is="one prepare")
    )
    report.add(
        Row(what="8 calls at once, wall", value=median(at_once), floor=median(one), limit=3, floor_is="one prepare")
    )


async def idle(world: World, report: Report, seconds: float) -> None:
    """Nothing happens: memory, CPU, API calls."""
    await asyncio.sleep(2)
    cpu, requests, began = world.cpu_seconds(), world.api_calls(), time.perf_counter()
    await asyncio.sleep(seconds)
    share = (world.cpu_seconds() - cpu) / (time.perf_counter() - began) * 100
    report.add(Row(what="resident memory, idle, 8 GPUs", value=world.resident_mib(), unit="MiB", limit=70))
    report.add(Row(what="CPU, idle", value=share, unit="%", limit=0.2))
    report.add(
        Row(what=f"API calls in {seconds:g} s of idleness", value=world.api_calls() - requests, unit="", limit=0)
    )


async def run(arguments: argparse.Namespace) -> Report:
    """Run everything once."""
    report = Report()
    with tempfile.TemporaryDirectory(prefix="gb", dir="/tmp") as directory:
        world = World(Path(directory))
        async with world.running():
            for what, seconds in world.startup.items():
                report.add(Row(what=f"process start to {what}", value=seconds, unit="s", limit=1.2))
            await idle(world, report, arguments.idle)
            async with Floor(world) as floor:
                await calls(world, floor, report, arguments.rounds)
            await bursts(world, report, max(arguments.rounds // 4, 1))
            report.add(Row(what="resident memory after the calls", value=world.resident_mib(), unit="MiB"))
    await partitions(report)
    if arguments.device_plugin:
        await device_plugin(report, arguments.rounds)
    return report


def main() -> None:
    """Parse the arguments, run, print."""
    parser = argparse.ArgumentParser(prog="hack/bench", description=__doc__)
    parser.add_argument("--rounds", type=int, default=200, help="samples of each call (default 200)")
    parser.add_argument("--idle", type=float, default=10, help="seconds of idleness to look at (default 10)")
    parser.add_argument(
        "--json", type=Path, default=Path("bench.json"), help="where the JSON goes (default bench.json)"
    )
    parser.add_argument(
        "--fragmentation",
        action="store_true",
        help="only simulate how the order of MIG partitions fragments GPUs, and print the comparison",
    )
    parser.add_argument(
        "--device-plugin",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="measure the device-plugin API too (default: yes)",
    )
    arguments = parser.parse_args()
    if arguments.fragmentation:
        print(fragmentation())
        return
    report = asyncio.run(run(arguments))
    print(report.table())
    report.write(arguments.json)
    print(f"\nAs JSON: {arguments.json}")


if __name__ == "__main__":
    main()
