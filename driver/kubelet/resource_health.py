"""DRAResourceHealth: what the kubelet is told of the devices' health, and shows in the status of pods that use them.

Every message is the complete list. It is sent when something changed, and again well before the kubelet would give up
on the last one; v1 once, v1alpha1 wrapped around it. A subscriber that does not read costs one message: while it waits,
later Snapshots replace each other.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

from driver._pb import dra_health_v1_pb2 as v1
from driver._pb import dra_health_v1_pb2_grpc as v1_grpc
from driver._pb import dra_health_v1alpha1_pb2 as v1alpha1
from driver._pb import dra_health_v1alpha1_pb2_grpc as v1alpha1_grpc
from driver.model.health import shorten
from driver.waiting import happens

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    import grpc.aio

    from driver.model.device import Device
    from driver.model.snapshot import Snapshot

HEALTH_V1 = "v1.DRAResourceHealth"
HEALTH_V1ALPHA1 = "v1alpha1.DRAResourceHealth"

_RESENDS = 3  # within the time after which the kubelet calls a device Unknown


class ResourceHealth(v1_grpc.DRAResourceHealthServicer):
    """The service `v1.DRAResourceHealth`, and by `add_to` its older version.

    `timeout`, in seconds, is how long the kubelet may rely on a message. `now` is Unix time: the kubelet compares it
    with its own clock.
    """

    def __init__(self, pool: str, *, timeout: float = 30.0, now: Callable[[], float] = time.time) -> None:
        self._pool = pool
        self._timeout = max(1, round(timeout))
        self._now = now
        self._snapshot: Snapshot | None = None
        self._changed: set[asyncio.Event] = set()  # one for each stream
        self._closed = False

    def publish(self, snapshot: Snapshot) -> None:
        """Tell all subscribers; cheap, and does not wait."""
        self._snapshot = snapshot
        for changed in self._changed:
            changed.set()

    def close(self) -> None:
        """End all streams; the kubelet calls our devices Unknown until it opens another."""
        self._closed = True
        for changed in self._changed:
            changed.set()

    def add_to(self, server: grpc.aio.Server) -> None:
        """Add this service, and its older version, to a server."""
        v1_grpc.add_DRAResourceHealthServicer_to_server(self, server)  # type: ignore[no-untyped-call]
        older = ResourceHealthV1Alpha1(self)
        v1alpha1_grpc.add_DRAResourceHealthServicer_to_server(older, server)  # type: ignore[no-untyped-call]

    async def NodeWatchResources(  # noqa: N802 (the wire's name)
        self, request: v1.NodeWatchResourcesRequest, context: Any
    ) -> AsyncIterator[v1.NodeWatchResourcesResponse]:
        """Stream complete lists until the caller goes."""
        changed = asyncio.Event()
        self._changed.add(changed)
        try:
            while not self._closed:
                changed.clear()
                if self._snapshot is not None:  # before the first reading nothing is known, which silence says
                    yield self._message(self._snapshot)
                await happens(changed, self._timeout / _RESENDS)
        finally:
            self._changed.discard(changed)

    def _message(self, snapshot: Snapshot) -> v1.NodeWatchResourcesResponse:
        moment = int(self._now())
        devices = [self._device(device, snapshot, moment) for device in snapshot.devices()]
        return v1.NodeWatchResourcesResponse(devices=devices)

    def _device(self, device: Device, snapshot: Snapshot, moment: int) -> v1.DeviceHealth:
        health = snapshot.health_of_device(device)
        return v1.DeviceHealth(
            device=v1.DeviceIdentifier(pool_name=self._pool, device_name=device.name),
            health=v1.HEALTHY if health.healthy else v1.UNHEALTHY,
            last_updated_time=moment,
            health_check_timeout_seconds=self._timeout,
            message=shorten(health.reason),
        )


class ResourceHealthV1Alpha1(v1alpha1_grpc.DRAResourceHealthServicer):
    """The service `v1alpha1.DRAResourceHealth`: the same messages."""

    def __init__(self, newer: ResourceHealth) -> None:
        self._newer = newer

    async def NodeWatchResources(  # noqa: N802 (the wire's name)
        self, request: v1alpha1.NodeWatchResourcesRequest, context: Any
    ) -> AsyncIterator[v1alpha1.NodeWatchResourcesResponse]:
        """Stream complete lists until the caller goes."""
        async for answer in self._newer.NodeWatchResources(v1.NodeWatchResourcesRequest(), context):
            yield v1alpha1.NodeWatchResourcesResponse.FromString(answer.SerializeToString())
