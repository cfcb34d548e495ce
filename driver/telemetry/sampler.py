"""Looks at the GPUs' use now and then, and keeps what it saw: no scrape ever waits for NVML or the kubelet.

It looks only while somebody wants to know: a scrape, or a question of `gpu-dra status`, keeps it going for minutes.
What is too old is not told as if it were now: a driver that hangs shows as missing series.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from driver.errors import DriverError
from driver.telemetry.exposition import exposition
from driver.telemetry.holders import find_holders
from driver.telemetry.sample import Sample

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from driver.claims.record import Record
    from driver.model.holder import Container
    from driver.model.snapshot import Snapshot
    from driver.model.usage import GpuUsage

log = logging.getLogger(__name__)

_WINDOW = 300.0  # seconds that one scrape keeps the sampling on; Prometheus comes at least every two minutes
_SETTLE = 2.0  # seconds
_STALE = 3  # intervals after which a sample is no longer told


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """Where a sample comes from."""

    usage: Callable[[], Awaitable[Mapping[str, GpuUsage]]]
    snapshot: Callable[[], Snapshot]
    records: Callable[[], Awaitable[tuple[Record, ...]]]
    containers: Callable[[], Awaitable[tuple[Container, ...] | None]]


class Sampler:
    """Samples every `interval` seconds. `clock` never goes back, whatever becomes of the time of day."""

    def __init__(
        self,
        sources: Sources,
        *,
        hostname: str,
        interval: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._sources = sources
        self._hostname = hostname
        self._interval = interval
        self._clock = clock
        self._wanted_at = clock()
        self._news = asyncio.Event()
        self._wanted = asyncio.Event()
        self._wanted.set()
        self._sampling: asyncio.Task[None] | None = None
        self._sample: Sample | None = None
        self._failures = 0
        self._problem = ""
        self._seconds = 0.0
        self._text: tuple[object, object, bytes] = (None, None, b"")

    @property
    def latest(self) -> Sample | None:
        """The last sample, if it is not too old to be told."""
        sample = self._sample
        return sample if sample is not None and self._clock() - sample.time <= _STALE * self._interval else None

    @property
    def age(self) -> float | None:
        """Seconds since the last look that saw something."""
        return None if self._sample is None else self._clock() - self._sample.time

    @property
    def problem(self) -> str:
        """Why the last look failed; empty if it did not."""
        return self._problem

    def want(self) -> None:
        """Keep sampling for a while: somebody is interested."""
        self._wanted_at = self._clock()
        self._wanted.set()

    def changed(self) -> None:
        """Note that claims have changed. Returns at once."""
        self._news.set()

    def text(self) -> bytes:
        """Return Prometheus' text for a scrape, made once per sample and Snapshot."""
        self.want()
        sample, snapshot = self.latest, self._sources.snapshot()
        if self._text[0] is not sample or self._text[1] is not snapshot:
            shown = sample or Sample()
            text = exposition(snapshot, shown.usage, shown.holders, self._hostname)
            self._text = (sample, snapshot, text.encode())
        return self._text[2] + self._own().encode()

    async def run(self) -> None:
        """Sample until cancelled."""
        while True:
            await self._wanted.wait()
            if self._clock() - self._wanted_at > max(_WINDOW, _STALE * self._interval):
                self._wanted.clear()
                continue
            self._news.clear()
            await self._look()
            await self._rest()

    async def refresh(self, *, oldest: float, limit: float) -> Sample | None:
        """Return a sample that is at most `oldest` seconds old, if one can be had within `limit` seconds."""
        self.want()
        sample = self._sample
        if sample is None or self._clock() - sample.time > oldest:
            await asyncio.wait((self._start(),), timeout=limit)
        return self.latest

    async def _rest(self) -> None:
        """Wait for the next look; sooner if claims have changed, once their pods had time to start."""
        try:
            async with asyncio.timeout(self._interval):
                await self._news.wait()
                await asyncio.sleep(min(_SETTLE, self._interval))
        except TimeoutError:
            pass

    async def _look(self) -> None:
        await asyncio.wait((self._start(),))

    def _start(self) -> asyncio.Task[None]:
        """Look, once for all who ask meanwhile; who asked may go away."""
        if self._sampling is None or self._sampling.done():
            self._sampling = asyncio.create_task(self._take(), name="usage")
        return self._sampling

    async def _take(self) -> None:
        began = self._clock()
        try:
            usage = await self._sources.usage()
            containers = await self._sources.containers()
            records = [record for record in await self._sources.records() if record.ready]
            holders = find_holders(records, containers or (), self._sources.snapshot())
        except DriverError as exc:
            self._failed(str(exc))
        except Exception as exc:
            log.exception("internal error while looking at the GPUs' use")
            self._failed(f"internal error: {exc!r}")
        else:
            self._succeeded(Sample(time=began, usage=usage, holders=holders))

    def _succeeded(self, sample: Sample) -> None:
        if self._problem:
            log.info("the GPUs' use can be seen again")
        self._problem = ""
        self._sample = sample
        self._seconds = self._clock() - sample.time

    def _failed(self, problem: str) -> None:
        if not self._problem:  # told once, not every ten seconds
            log.warning("the GPUs' use can't be seen: %s", problem)
        self._problem = problem
        self._failures += 1

    def _own(self) -> str:
        return (
            "# HELP gpu_dra_telemetry_failures_total Looks at the GPUs' use that failed\n"
            "# TYPE gpu_dra_telemetry_failures_total counter\n"
            f"gpu_dra_telemetry_failures_total {self._failures}\n"
            "# HELP gpu_dra_telemetry_seconds Time that the last look at the GPUs' use took\n"
            "# TYPE gpu_dra_telemetry_seconds gauge\n"
            f"gpu_dra_telemetry_seconds {self._seconds:.6f}\n"
        )
