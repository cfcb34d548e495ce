"""An API server that has one Node, and publishers on it whose Events and counts are kept."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from driver.kube.client import KubeClient
from driver.kube.resources import ResourceApi
from driver.localcluster.apiserver import ApiServer, Features
from driver.slices.build import build
from driver.slices.normal import normal
from driver.slices.publish import SlicePublisher
from tests.unit.slices.helpers import NODE, OPTIONS
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from driver.model.snapshot import Snapshot
    from driver.slices.build import BuildOptions

RESOURCE = "resourceslices"


class Ears:
    """Hears Events and counts."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.counts: Counter[str] = Counter()

    def emit(self, reason: str, message: str, *, warning: bool = False) -> None:
        self.events.append(f"{reason}: {message}")

    def slice_written(self, verb: str) -> None:
        self.counts[verb] += 1

    def publish_failed(self, error_type: str) -> None:
        self.counts[error_type] += 1


class Node:
    """An API server with one Node, and publishers on it."""

    def __init__(self, server: ApiServer) -> None:
        self.server = server
        self.store = server.store
        self.ears = Ears()

    @property
    def slices(self) -> list[dict[str, Any]]:
        return self.store.list(RESOURCE)

    @property
    def writes(self) -> int:
        """How many writes of slices were asked of the API server."""
        counts = self.server.audit.counts
        return sum(counts[verb, RESOURCE] for verb in ("create", "update", "patch", "delete"))

    def holds(self, wanted: Snapshot, options: BuildOptions = OPTIONS) -> bool:
        """Say whether the API server has exactly the slices of a snapshot."""
        specs = build(wanted, options)
        stored = [item["spec"] for item in self.slices]
        return [normal(spec) for spec in specs] == [normal(spec) for spec in stored]

    @asynccontextmanager
    async def publisher(
        self, wanted: Snapshot | None = None, options: BuildOptions = OPTIONS, *, timeout: float = 10
    ) -> AsyncIterator[SlicePublisher]:
        async with KubeClient.from_kubeconfig(self.server.kubeconfig, timeout=timeout) as client:
            publisher = SlicePublisher(
                client, ResourceApi(client), options, events=self.ears, metrics=self.ears, longest_pause=0.3
            )
            if wanted is not None:
                publisher.publish(wanted)
            task = asyncio.create_task(publisher.run())
            try:
                yield publisher
            finally:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
            assert task.cancelled(), task.exception()


async def complete(publisher: SlicePublisher) -> None:
    await until(lambda: publisher.state.complete)


@asynccontextmanager
async def make_node(tmp_path: Path, **features: Any) -> AsyncIterator[Node]:
    server = ApiServer(tmp_path / "apiserver", Features(**features))
    await server.start()
    server.store.create("nodes", {"metadata": {"name": NODE}})
    yield Node(server)
    await server.stop()
