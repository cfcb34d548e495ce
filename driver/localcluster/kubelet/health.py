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
from driver.localcluster.kubelet.channels import words

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


_Key = tuple[str, str, str]


class HealthBoard:
    """Keeps the streams and the last states. `on_change` is called with nothing whenever some device's word changed.

    `services` are those that this kubelet knows; the first of a plugin's list that is among them is used.
    """

    def __init__(self, times: Times, services: tuple[str, ...], on_change: Callable[[], None]) -> None:
        self._times = times
        self._services = services
        self._on_change = on_change
        self._chosen: dict[tuple[str, str], str] = {}
        self._streams: dict[tuple[str, str], asyncio.Task[None]] = {}
        self._states: dict[_Key, Health] = {}
        self._timer: asyncio.TimerHandle | None = None

    def of(self, driver: str, pool: str, device: str) -> tuple[str, str]:
        """Return (Healthy, Unhealthy or Unknown; message) of a device."""
        health = self._states.get((driver, pool, device))
        if health is None or health.deadline <= asyncio.get_running_loop().time():
            return "Unknown", ""
        return health.word, health.message

    def offer(self, driver: str, endpoint: str, versions: list[str]) -> None:
        """Note which health service a plugin lists."""
        chosen = next((version for version in versions if version in self._services), None)
        if chosen is not None:
            self._chosen[driver, endpoint] = chosen

    def open(self, driver: str, endpoint: str, channel: grpc.aio.Channel) -> None:
        """Open the stream of a plugin that offers one."""
        key = (driver, endpoint)
        if key in self._chosen and key not in self._streams:
            self._streams[key] = asyncio.create_task(self._follow(driver, self._chosen[key], channel))

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

    async def _follow(self, driver: str, service: str, channel: grpc.aio.Channel) -> None:
        module, stub = _SERVICES[service]
        while True:
            try:
                async for answer in stub(channel).NodeWatchResources(module.NodeWatchResourcesRequest()):
                    self._note(driver, answer)
                _log.info("%s ended its health stream", driver)
            except grpc.aio.AioRpcError as exc:
                if exc.code() is grpc.StatusCode.UNIMPLEMENTED:
                    return
                _log.info("health stream of %s: %s", driver, words(exc))
            finally:
                self._forget(driver)
            await asyncio.sleep(self._times.health_reopen)

    def _note(self, driver: str, answer: Any) -> None:
        now = asyncio.get_running_loop().time()
        states: dict[_Key, Health] = {}
        for item in answer.devices:
            timeout = item.health_check_timeout_seconds or self._times.health_timeout
            word = _WORDS[item.health] if item.health < len(_WORDS) else "Unknown"
            key = (driver, item.device.pool_name, item.device.device_name)
            states[key] = Health(word, item.message[:1024], now + timeout)
        old = {key: state for key, state in self._states.items() if key[0] == driver}
        self._states = {key: state for key, state in self._states.items() if key[0] != driver} | states
        if _said(old) != _said(states):
            self._on_change()
        self._wait_for_silence()

    def _forget(self, driver: str) -> None:
        old = len(self._states)
        self._states = {key: state for key, state in self._states.items() if key[0] != driver}
        if len(self._states) != old:
            self._on_change()

    def _wait_for_silence(self) -> None:
        """Look again when the next word gets too old."""
        if self._timer is not None:
            self._timer.cancel()
        if self._states:
            first = min(state.deadline for state in self._states.values())
            self._timer = asyncio.get_running_loop().call_at(first, self._expire)

    def _expire(self) -> None:
        now = asyncio.get_running_loop().time()
        self._states = {key: state for key, state in self._states.items() if state.deadline > now}
        self._on_change()
        self._wait_for_silence()


def _said(states: dict[_Key, Health]) -> dict[_Key, tuple[str, str]]:
    return {key: (state.word, state.message) for key, state in states.items()}
