"""What DRA plugins say about their devices' health (DRAResourceHealth): the last word per device.

A plugin's stream carries complete lists. When it ends, or a device's word gets too old, the device is Unknown; the
stream is opened again a little later, as long as the plugin is registered.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import grpc

from driver._pb import dra_health_v1_pb2, dra_health_v1_pb2_grpc, dra_health_v1alpha1_pb2, dra_health_v1alpha1_pb2_grpc
from driver.localcluster.kubelet.channels import stub, words

if TYPE_CHECKING:
    from collections.abc import Callable

    from driver.localcluster.kubelet.times import Times

_log = logging.getLogger(__name__)

_SERVICES: dict[str, tuple[Any, Any]] = {
    "v1.DRAResourceHealth": (dra_health_v1_pb2, dra_health_v1_pb2_grpc.DRAResourceHealthStub),
    "v1alpha1.DRAResourceHealth": (dra_health_v1alpha1_pb2, dra_health_v1alpha1_pb2_grpc.DRAResourceHealthStub),
}
_WORDS = ("Unknown", "Healthy", "Unhealthy")


@dataclass(frozen=True, slots=True)
class Health:
    """The last word on one device; `deadline` is in the event loop's time."""

    word: str
    message: str
    deadline: float


_Stream = tuple[str, str]
"""Driver and endpoint."""
_Device = tuple[str, str]
"""Pool and device."""


class HealthBoard:
    """Keeps the streams and the last states. `on_change` is called with nothing whenever some device's word changed.

    `services` are those that this kubelet knows; the first of a plugin's list that is among them is used.
    """

    def __init__(self, times: Times, services: tuple[str, ...], on_change: Callable[[], None]) -> None:
        self._times = times
        self._services = services
        self._on_change = on_change
        self._chosen: dict[_Stream, str] = {}
        self._streams: dict[_Stream, asyncio.Task[None]] = {}
        self._states: dict[_Stream, dict[_Device, Health]] = {}
        self._timer: asyncio.TimerHandle | None = None

    def of(self, driver: str, pool: str, device: str) -> tuple[str, str]:
        """Return (Healthy, Unhealthy or Unknown; message) of a device; of two plugins the newer one's word counts."""
        now = asyncio.get_running_loop().time()
        for stream, states in reversed(self._states.items()):
            health = states.get((pool, device))
            if stream[0] == driver and health is not None and health.deadline > now:
                return health.word, health.message
        return "Unknown", ""

    def streams(self, endpoint: str) -> int:
        """Return how many streams of a plugin are followed."""
        return sum(stream[1] == endpoint for stream in self._streams)

    def offer(self, driver: str, endpoint: str, versions: list[str]) -> None:
        """Note which health service a plugin lists."""
        chosen = next((version for version in versions if version in self._services), None)
        if chosen is not None:
            self._chosen[driver, endpoint] = chosen

    def open(self, driver: str, endpoint: str, channel: grpc.aio.Channel) -> None:
        """Open the stream of a plugin that offers one."""
        key = (driver, endpoint)
        if key in self._chosen and key not in self._streams:
            self._streams[key] = asyncio.create_task(self._follow(key, self._chosen[key], channel))

    async def close(self, driver: str, endpoint: str) -> None:
        """End the stream of a plugin that is gone."""
        self._chosen.pop((driver, endpoint), None)
        task = self._streams.pop((driver, endpoint), None)
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def aclose(self) -> None:
        """Stop the clock; the streams end with their plugins."""
        if self._timer is not None:
            self._timer.cancel()

    async def _follow(self, stream: _Stream, service: str, channel: grpc.aio.Channel) -> None:
        module, kind = _SERVICES[service]
        watch = stub(kind, channel).NodeWatchResources
        while True:
            try:
                async for answer in watch(module.NodeWatchResourcesRequest()):
                    self._note(stream, answer)
                _log.info("%s ended its health stream", stream[0])
            except grpc.aio.AioRpcError as exc:
                if exc.code() is grpc.StatusCode.UNIMPLEMENTED:
                    return
                _log.info("health stream of %s: %s", stream[0], words(exc))
            finally:
                self._set(stream, {})
            await asyncio.sleep(self._times.health_reopen)

    def _note(self, stream: _Stream, answer: Any) -> None:
        now = asyncio.get_running_loop().time()
        states: dict[_Device, Health] = {}
        for item in answer.devices:
            timeout = item.health_check_timeout_seconds or self._times.health_timeout
            word = _WORDS[item.health] if item.health < len(_WORDS) else "Unknown"
            states[item.device.pool_name, item.device.device_name] = Health(word, item.message[:1024], now + timeout)
        self._set(stream, states)
        self._wait_for_silence()

    def _set(self, stream: _Stream, states: dict[_Device, Health]) -> None:
        old = self._states.pop(stream, {})
        if states:
            self._states[stream] = states
        if _said(old) != _said(states):
            self._on_change()

    def _wait_for_silence(self) -> None:
        """Look again when the next word gets too old."""
        if self._timer is not None:
            self._timer.cancel()
        deadlines = [state.deadline for states in self._states.values() for state in states.values()]
        if deadlines:
            self._timer = asyncio.get_running_loop().call_at(min(deadlines), self._expire)

    def _expire(self) -> None:
        now = asyncio.get_running_loop().time()
        for stream, states in list(self._states.items()):
            self._states[stream] = {device: state for device, state in states.items() if state.deadline > now}
        self._on_change()
        self._wait_for_silence()


def _said(states: dict[_Device, Health]) -> dict[_Device, tuple[str, str]]:
    return {key: (state.word, state.message) for key, state in states.items()}
