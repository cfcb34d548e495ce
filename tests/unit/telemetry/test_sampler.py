from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from driver.errors import InventoryError
from driver.model.usage import GpuUsage, Usage
from driver.telemetry.sampler import Sampler, Sources
from tests.unit.slices.helpers import NODE, snapshot
from tests.unit.telemetry.builders import container, held, record
from tests.waiting import until

if TYPE_CHECKING:
    from driver.claims.record import Record
    from driver.model.holder import Container


class World:
    """A node whose GPU can hang or fail, and a clock that the test moves."""

    def __init__(self) -> None:
        self.snapshot = snapshot("h100:1")
        self.uuid = self.snapshot.gpus[0].uuid
        self.records: tuple[Record, ...] = ()
        self.containers: tuple[Container, ...] | None = ()
        self.load = 10
        self.looks = 0
        self.error: Exception | None = None
        self.answering = asyncio.Event()
        self.answering.set()
        self.now = 100.0

    async def usage(self) -> dict[str, GpuUsage]:
        self.looks += 1
        await self.answering.wait()
        if self.error is not None:
            raise self.error
        return {self.uuid: GpuUsage(whole=Usage(utilization=self.load))}

    async def all_records(self) -> tuple[Record, ...]:
        return self.records

    async def all_containers(self) -> tuple[Container, ...] | None:
        return self.containers

    def sampler(self, interval: float = 10.0) -> Sampler:
        sources = Sources(
            usage=self.usage,
            snapshot=lambda: self.snapshot,
            records=self.all_records,
            containers=self.all_containers,
        )
        return Sampler(sources, hostname=NODE, interval=interval, clock=lambda: self.now)


@pytest.fixture
def world() -> World:
    return World()


async def test_a_scrape_tells_the_last_sample_and_never_looks(world: World) -> None:
    sampler = world.sampler()
    assert b"DCGM_FI_DEV_GPU_UTIL" not in sampler.text()
    assert b"gpu_dra_gpu_healthy" in sampler.text()
    await sampler.refresh(oldest=0, limit=5)
    world.load = 99
    assert b"} 10\n" in sampler.text()
    assert world.looks == 1


async def test_a_look_that_hangs_costs_a_scrape_nothing(world: World) -> None:
    sampler = world.sampler()
    await sampler.refresh(oldest=0, limit=5)
    world.answering.clear()
    world.now += 5
    assert await sampler.refresh(oldest=1, limit=0.01) is not None  # the older one
    assert b"DCGM_FI_DEV_GPU_UTIL" in sampler.text()
    world.now += 26
    assert b"DCGM_FI_DEV_GPU_UTIL" not in sampler.text()  # too old to be told as if it were now
    assert await sampler.refresh(oldest=1, limit=0.01) is None
    assert world.looks == 2  # nobody starts a second look beside one that hangs
    world.answering.set()


async def test_many_who_ask_share_a_look(world: World) -> None:
    sampler = world.sampler()
    await asyncio.gather(*(sampler.refresh(oldest=1, limit=5) for _ in range(20)))
    assert world.looks == 1


async def test_it_looks_again_and_again_while_somebody_scrapes(world: World) -> None:
    sampler = world.sampler(interval=0.01)
    task = asyncio.create_task(sampler.run())
    await until(lambda: world.looks > 3)
    world.now += 10_000  # nobody has scraped for hours
    seen = await _at_rest(world)
    assert world.looks == seen
    sampler.text()
    await until(lambda: world.looks > seen)
    task.cancel()


async def _at_rest(world: World) -> int:
    """Wait until no look comes for 50 times the interval; return how many there were."""
    while True:
        seen = world.looks
        await asyncio.sleep(0.5)
        if world.looks == seen:
            return seen


async def test_changed_claims_are_seen_before_the_interval_is_over(world: World, monkeypatch) -> None:
    monkeypatch.setattr("driver.telemetry.sampler._SETTLE", 0.01)
    sampler = world.sampler(interval=1000)
    task = asyncio.create_task(sampler.run())
    await until(lambda: sampler.latest)
    world.records = (record("c", held("gpu-0", world.uuid)),)
    world.containers = (container("p", ("c", "gpu-0")),)
    sampler.changed()
    await until(lambda: b'pod="p"' in sampler.text())
    task.cancel()


async def test_claims_being_prepared_hold_nothing_yet(world: World) -> None:
    world.records = (record("c", held("gpu-0", world.uuid), ready=False),)
    sample = await world.sampler().refresh(oldest=0, limit=5)
    assert sample is not None
    assert sample.holders == {}


async def test_a_kubelet_that_can_not_tell_costs_the_pods_only(world: World) -> None:
    world.containers = None
    world.records = (record("c", held("gpu-0", world.uuid)),)
    sampler = world.sampler()
    await sampler.refresh(oldest=0, limit=5)
    assert b'dra_claim_name="c"' in sampler.text()


@pytest.mark.parametrize("error", [InventoryError("NVML is stuck"), RuntimeError("a bug")])
async def test_a_failing_look_is_told_once_counted_and_forgotten(world: World, caplog, error) -> None:
    sampler = world.sampler()
    world.error = error
    await sampler.refresh(oldest=0, limit=5)
    await sampler.refresh(oldest=0, limit=5)
    assert str(error) in sampler.problem
    assert b"gpu_dra_telemetry_failures_total 2\n" in sampler.text()
    assert caplog.text.count("the GPUs' use can't be seen") == 1
    world.error = None
    await sampler.refresh(oldest=0, limit=5)
    assert sampler.problem == ""
    assert b"DCGM_FI_DEV_GPU_UTIL" in sampler.text()


async def test_a_clock_that_jumps_back_is_survived(world: World) -> None:
    sampler = world.sampler()
    await sampler.refresh(oldest=0, limit=5)
    world.now -= 1000
    assert b"DCGM_FI_DEV_GPU_UTIL" in sampler.text()
    assert sampler.age == -1000


async def test_the_text_follows_the_snapshot(world: World) -> None:
    sampler = world.sampler()
    first = sampler.text()
    assert sampler.text() == first
    world.snapshot = snapshot("h100:2")
    assert sampler.text().count(b"gpu_dra_gpu_healthy{") == 2
