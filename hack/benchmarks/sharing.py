"""Claims that change GPUs: partitions, time slices, MPS; beside a floor of what the tools themselves take.

The tools are the fake ones of the tests, as programs: the agent runs them as it would run the driver's. MIG is the fake
GPUs'; what changing it takes is measured beside, in this process.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import shutil
import subprocess
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from driver.inventory.fake import FakeInventory
from hack.benchmarks.floor import Floor, timed
from hack.benchmarks.report import Report, Row, median
from hack.benchmarks.world import World
from tests.fakes.install import FakeDriver

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from driver._pb import dra_v1_pb2 as dra

API = "resource.nvidia.com/v1beta1"
PARTS = tuple(f"gpu-0-mig-1g10gb-19-{start}" for start in range(7))
TIME_SLICING = {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Long"}}
MPS = {"strategy": "MPS", "mpsConfig": {"defaultActiveThreadPercentage": 50}}
SMI_OF_A_TIME_SLICE = 4  # what is there of both the mode and the slice, and setting both
SMI_OF_MPS = 2  # the mode
WRITES = ("create", "update", "patch", "delete")
SETTLED = 2.0  # seconds, until the agent has looked at what it changed


@dataclass
class Samples:
    """Milliseconds of one kind of claim, and of what its tools take."""

    prepare: list[float] = field(default_factory=list)
    undo: list[float] = field(default_factory=list)
    tools: list[float] = field(default_factory=list)


async def sharing(report: Report, rounds: int) -> None:
    """Run an agent with fake GPUs and the fake tools, and measure."""
    shm = Path(f"/dev/shm/gpu-dra-bench-{secrets.token_hex(4)}")
    with tempfile.TemporaryDirectory(prefix="gb", dir="/tmp") as directory:
        root = Path(directory)
        tools = FakeDriver(root / "driver")
        extra = [
            *("--dynamic-mig", "0", "--mps-shm-dir", str(shm), "--nvidia-smi", str(tools.bin / "nvidia-smi")),
            *("--mps-control", str(tools.bin / "nvidia-cuda-mps-control")),
        ]
        world = World(root, gpus="h100:2", extra=extra)
        try:
            async with world.running(), Floor(world) as floor:
                await Bench(world, floor, tools).measure(report, rounds)
        finally:
            shutil.rmtree(shm, ignore_errors=True)


class Bench:
    """One agent, and the kinds of claims."""

    def __init__(self, world: World, floor: Floor, tools: FakeDriver) -> None:
        self._world, self._floor, self._tools = world, floor, tools
        self._bare = BareMig(world.root / "bare-mig.json")
        self._burst: list[float] = []
        self._burst_tools: list[float] = []

    async def measure(self, report: Report, rounds: int) -> None:
        """Take the samples and report them."""
        mig, slicing, mps = Samples(), Samples(), Samples()
        writes = self._slice_writes()
        for _ in range(rounds):
            await self._one(mig, PARTS[0], None, self._bare.make_one)
            await self._one(slicing, "gpu-1", TIME_SLICING, lambda: asyncio.to_thread(self._smi, SMI_OF_A_TIME_SLICE))
            if os.geteuid() == 0:  # a daemon's own /dev/shm takes root's rights
                await self._one(mps, "gpu-1", MPS, lambda: asyncio.to_thread(self._bare_mps))
            await self._seven()
        self._report(report, mig, "dynamic MIG", "MIG mode and instances")
        self._report(report, slicing, "a time slice", f"{SMI_OF_A_TIME_SLICE} runs of nvidia-smi")
        if mps.prepare:
            self._report(report, mps, "MPS", f"{SMI_OF_MPS} runs of nvidia-smi, a daemon's start and its answer")
        self._report_seven(report)
        await asyncio.sleep(SETTLED)
        what = f"slice writes of {8 * rounds} claims with dynamic MIG"
        report.add(Row(what=what, value=self._slice_writes() - writes, unit="", limit=0))

    async def _one(
        self, samples: Samples, device: str, sharing: dict[str, Any] | None, bare: Callable[[], Awaitable[float]]
    ) -> None:
        claim = await self._claim(device, sharing)
        await self._floor.measure(claim)
        samples.tools.append(await bare())
        samples.prepare.append(await timed(lambda: self._world.prepare(claim)))
        samples.undo.append(await timed(lambda: self._world.unprepare(claim)))
        await self._world.forget([claim])

    async def _seven(self) -> None:
        claims = [await self._claim(part, None) for part in PARTS]
        self._burst_tools.append(await self._bare.make_seven())
        self._burst.append(await timed(lambda: asyncio.gather(*(self._world.prepare(claim) for claim in claims))))
        await self._world.unprepare(*claims)
        await self._world.forget(claims)

    async def _claim(self, device: str, sharing: dict[str, Any] | None) -> dra.Claim:
        parameters = {"apiVersion": API, "kind": "GpuConfig", "sharing": sharing}
        return await self._world.claim([device], parameters=parameters if sharing else None)

    def _common(self, *, records: int) -> float:
        floor = self._floor
        written = records * median(floor.durable_write) + median(floor.plain_write)
        return median(floor.get) + written + median(floor.rpc)

    def _report(self, report: Report, samples: Samples, what: str, tools: str) -> None:
        report.add(
            Row(
                what=f"prepare with {what}",
                value=median(samples.prepare),
                floor=self._common(records=2) + median(samples.tools),
                limit=2,
                floor_is=f"GET + 2 durable writes + CDI file + empty RPC + {tools}",
            )
        )
        report.add(Row(what=f"unprepare with {what}", value=median(samples.undo)))

    def _report_seven(self, report: Report) -> None:
        """Report the burst: on one GPU the claims go one after another, each with an intent before its partition."""
        floor = self._floor
        written = len(PARTS) * 2 * median(floor.durable_write)
        report.add(
            Row(
                what="7 partitions of one GPU in 7 calls at once, wall",
                value=median(self._burst),
                floor=median(floor.get) + median(floor.rpc) + written + median(self._burst_tools),
                limit=4,
                floor_is="GET + empty RPC + 14 durable writes + 7 partitions",
            )
        )

    def _slice_writes(self) -> int:
        lines = self._world.audit.read_text().splitlines() if self._world.audit.exists() else []
        calls = [json.loads(line) for line in lines]
        return sum(call["resource"] == "resourceslices" and call["verb"] in WRITES for call in calls)

    # --- the tools, bare ---------------------------------------------------------------------------------------------

    def _smi(self, times: int) -> float:
        command = [str(self._tools.bin / "nvidia-smi"), "-i", "GPU-bench", "-c", "DEFAULT"]
        began = time.perf_counter()
        for _ in range(times):
            subprocess.run(command, capture_output=True, check=True)
        return (time.perf_counter() - began) * 1000

    def _bare_mps(self) -> float:
        """Start a daemon, wait for its socket, ask it; stop it outside of the measurement."""
        pipe = self._world.root / "pipe"
        pipe.mkdir()
        program = str(self._tools.bin / "nvidia-cuda-mps-control")
        env = {"CUDA_MPS_PIPE_DIRECTORY": str(pipe), "CUDA_MPS_LOG_DIRECTORY": str(pipe)}
        began = time.perf_counter()
        daemon = subprocess.Popen([program, "-f"], env=env)
        while not (pipe / "control").exists():
            time.sleep(0.0005)  # nothing else is to run meanwhile
        _ask(program, env, "set_default_active_thread_percentage 50\nget_default_active_thread_percentage\n")
        milliseconds = (time.perf_counter() - began) * 1000
        with contextlib.suppress(subprocess.CalledProcessError):
            _ask(program, env, "quit\n")
        daemon.wait()
        shutil.rmtree(pipe)
        return milliseconds + self._smi(SMI_OF_MPS)


class BareMig:
    """What the agent asks of fake GPUs, asked by ourselves."""

    def __init__(self, file: Path) -> None:
        self._inventory = FakeInventory.from_spec("h100", node_name="bare", mig_file=file, boot_id="b")

    async def make_one(self) -> float:
        """Switch MIG mode on and make a partition; return the milliseconds; undo it."""
        return await self._make(1)

    async def make_seven(self) -> float:
        """Make seven partitions, likewise."""
        return await self._make(7)

    async def _make(self, count: int) -> float:
        (gpu,) = (await self._inventory.read()).gpus
        assert gpu.mig is not None
        profile = next(one for one in gpu.mig.profiles if one.id == 19)
        places: Sequence[Any] = sorted(profile.placements)[:count]
        began = time.perf_counter()
        await self._inventory.set_mig_mode(gpu.uuid, True)
        for place in places:
            await self._inventory.create_mig(gpu.uuid, profile.id, place)
        milliseconds = (time.perf_counter() - began) * 1000
        for place in places:
            await self._inventory.destroy_mig(gpu.uuid, place)
        await self._inventory.set_mig_mode(gpu.uuid, False)
        return milliseconds


def _ask(program: str, env: dict[str, str], text: str) -> None:
    subprocess.run([program], env=env, input=text, text=True, capture_output=True, check=True)
