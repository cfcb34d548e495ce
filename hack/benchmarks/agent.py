"""The agent as a process of its own: its start, its idleness, and the calls of a kubelet beside their floor.

In each round every kind of sample is taken once, in turns first and last, so that noise of the machine hits all alike;
each after a rest, since a kubelet's calls come one now and then: its agent, and the caches of the CPU, are cold.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from hack.benchmarks.floor import Floor, timed
from hack.benchmarks.report import Report, Row, grid, median
from hack.benchmarks.world import World

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Sequence
    from typing import TypeVar

    from driver._pb import dra_v1_pb2 as dra

    Step = TypeVar("Step")

PARTS = {
    "start": "process start to slices published, and to registered with the kubelet",
    "idle": "resident memory, CPU and API calls while nothing happens",
    "calls": "prepare, prepare again, unprepare: one claim at a time, beside the floor of the same round",
    "bursts": "eight claims in one call, and in eight calls at once, beside one prepare and their floor",
}
STARTS = 5
GPUS = tuple(f"gpu-{number}" for number in range(8))


async def agent(report: Report, parts: Collection[str], *, rounds: int, idle_seconds: float, pause: float) -> None:
    """Run an agent and measure the chosen parts, calls after `pause` seconds without one."""
    if "start" in parts:
        await start(report)
    if set(parts) <= {"start"}:
        return
    with tempfile.TemporaryDirectory(prefix="gb", dir="/tmp") as directory:
        world = World(Path(directory), pause=pause)
        async with world.running():
            if "idle" in parts:
                await idle(world, report, idle_seconds)
            async with Floor(world) as floor:
                if "calls" in parts:
                    await Calls(world, floor).measure(report, rounds)
                if "bursts" in parts:
                    await Bursts(world, floor).measure(report, max(rounds // 4, 1))
            if {"calls", "bursts"} & set(parts):
                report.add(Row(what="resident memory after the calls", value=world.resident_mib(), unit="MiB"))


async def start(report: Report) -> None:
    """Start some agents, one after another, each in surroundings of its own."""
    samples: dict[str, list[float]] = {}
    for _ in range(STARTS):
        with tempfile.TemporaryDirectory(prefix="gb", dir="/tmp") as directory:
            world = World(Path(directory))
            async with world.running():
                for what, seconds in world.startup.items():
                    samples.setdefault(what, []).append(seconds)
    for what, found in samples.items():
        report.add(Row(what=f"process start to {what}", value=median(found), unit="s", limit=1.2))


async def idle(world: World, report: Report, seconds: float) -> None:
    """Look at an agent that has nothing to do."""
    await asyncio.sleep(2)
    cpu, requests, began = world.cpu_seconds(), world.api_calls(), time.perf_counter()
    await asyncio.sleep(seconds)
    share = (world.cpu_seconds() - cpu) / (time.perf_counter() - began) * 100
    report.add(Row(what="resident memory, idle, 8 GPUs", value=world.resident_mib(), unit="MiB", limit=70))
    report.add(Row(what="CPU, idle", value=share, unit="%", limit=0.2))
    report.add(
        Row(what=f"API calls in {seconds:g} s of idleness", value=world.api_calls() - requests, unit="", limit=0)
    )


class Calls:
    """One claim at a time: prepare, again, unprepare; and a claim for all GPUs."""

    def __init__(self, world: World, floor: Floor) -> None:
        self._world, self._floor = world, floor
        self._first: list[float] = []
        self._again: list[float] = []
        self._undo: list[float] = []
        self._whole: list[float] = []

    async def measure(self, report: Report, rounds: int) -> None:
        """Take the samples and report them."""
        for number in range(rounds):
            claim, whole = await self._world.claim([GPUS[number % 8]]), await self._world.claim(GPUS)
            for step in _in_turns(number, [self._floor.measure, self._one]):
                await step(claim)
            if number % 4 == 0:
                self._whole.append(await _rested(self._world, lambda whole=whole: self._world.prepare(whole)))
                await self._world.unprepare(whole)
            await self._world.forget([claim, whole])
        report.extend(self._rows())
        report.notes.append(self._floor_as_table())

    async def _one(self, claim: dra.Claim) -> None:
        self._first.append(await _rested(self._world, lambda: self._world.prepare(claim)))
        self._again.append(await _rested(self._world, lambda: self._world.prepare(claim)))
        self._undo.append(await _rested(self._world, lambda: self._world.unprepare(claim)))

    def _rows(self) -> list[Row]:
        floor = self._floor
        get, rpc = median(floor.get), median(floor.rpc)
        write = median(floor.durable_write) + median(floor.plain_write)
        remove = median(floor.durable_remove) + median(floor.plain_remove)
        first = median(self._first)
        return [
            Row(
                what="prepare, one GPU",
                value=first,
                floor=get + write + rpc,
                limit=1.4,
                floor_is="GET + durable write + CDI file + empty RPC",
            ),
            Row(
                what="prepare again",
                value=median(self._again),
                floor=get + rpc,
                limit=1.2,
                floor_is="GET + empty RPC",
            ),
            Row(
                what="unprepare",
                value=median(self._undo),
                floor=remove + rpc,
                limit=1.4,
                floor_is="durable removal + CDI removal + empty RPC",
            ),
            Row(what="prepare, 8 GPUs in one claim", value=median(self._whole), floor=first, floor_is="one prepare"),
        ]

    def _floor_as_table(self) -> str:
        floor = self._floor
        parts = {
            "GET of a claim, over TLS": floor.get,
            "empty RPC over the agent's socket": floor.rpc,
            "durable write": floor.durable_write,
            "CDI file written": floor.plain_write,
            "durable removal": floor.durable_remove,
            "CDI file removed": floor.plain_remove,
        }
        return grid([("the floor's parts", "p50"), *((what, f"{median(one):.2f} ms") for what, one in parts.items())])


class Bursts:
    """Eight claims: in one call, and in eight calls at once."""

    def __init__(self, world: World, floor: Floor) -> None:
        self._world, self._floor = world, floor
        self._single: list[float] = []
        self._together: list[float] = []
        self._at_once: list[float] = []

    async def measure(self, report: Report, rounds: int) -> None:
        """Take the samples and report them."""
        for number in range(rounds):
            claims = [await self._world.claim([gpu]) for gpu in GPUS]
            for step in _in_turns(number, [self._one, self._in_one_call, self._in_eight_calls]):
                await step(claims)
                await self._world.unprepare(*claims)
            await self._floor.measure_at_once(claims)
            await self._world.forget(claims)
        one = median(self._single)
        for what, samples in (("8 claims in one call", self._together), ("8 calls at once, wall", self._at_once)):
            report.add(Row(what=what, value=median(samples), floor=one, limit=3, floor_is="one prepare"))
        report.add(
            Row(
                what="8 calls at once, wall",
                value=median(self._at_once),
                floor=median(self._floor.at_once),
                floor_is="8 GETs + 8 empty RPCs + 8 durable writes + 8 CDI files, each 8 at once",
            )
        )

    async def _one(self, claims: Sequence[dra.Claim]) -> None:
        self._single.append(await _rested(self._world, lambda: self._world.prepare(claims[0])))

    async def _in_one_call(self, claims: Sequence[dra.Claim]) -> None:
        self._together.append(await _rested(self._world, lambda: self._world.prepare(*claims)))

    async def _in_eight_calls(self, claims: Sequence[dra.Claim]) -> None:
        self._at_once.append(
            await _rested(self._world, lambda: asyncio.gather(*(self._world.prepare(claim) for claim in claims)))
        )


async def _rested(world: World, call: Callable[[], Awaitable[object]]) -> float:
    """Return how long a call to an idle agent takes, in ms."""
    await world.rest()
    return await timed(call)


def _in_turns(number: int, steps: Sequence[Step]) -> Sequence[Step]:
    """Return the steps of a round: each round begins with the next one."""
    first = number % len(steps)
    return [*steps[first:], *steps[:first]]
