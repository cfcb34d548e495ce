"""Keeps one resource registered with the kubelet: at each start of the kubelet, and whenever our socket is a new one.

A starting kubelet deletes every socket in its directory and then makes `kubelet.sock`; both are seen by one watch of
that directory. A kubelet that is not there yet is waited for (K5); one that refuses is asked again, ever more slowly.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

import grpc
import grpc.aio

from driver._pb import device_plugin_v1beta1_pb2 as pb
from driver._pb import device_plugin_v1beta1_pb2_grpc as pb_grpc
from driver.kubelet.sockets import DirectoryWatch

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

log = logging.getLogger(__name__)

VERSION = "v1beta1"
OPTIONS = pb.DevicePluginOptions(pre_start_required=False, get_preferred_allocation_available=True)
_TIMEOUT = 10.0  # seconds; within the call the kubelet dials back
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 30.0  # seconds between tries
_LONELY = 10.0  # seconds without a list being open before we register again

Identity = tuple[int, int, int] | None


class Listeners:
    """How many lists the kubelet has open, and notice of the last one's end."""

    def __init__(self) -> None:
        self.count = 0
        self.left = asyncio.Event()

    def __enter__(self) -> None:
        self.count += 1

    def __exit__(self, *_: object) -> None:
        self.count -= 1
        if not self.count:
            self.left.set()


class Registrar:
    """Registers `endpoint` for `resource` at kubelet.sock beside it, while it is `serving`.

    `told` hears of each change: an empty string for success, else the objection.
    """

    def __init__(
        self,
        endpoint: Path,
        resource: str,
        *,
        serving: asyncio.Event,
        listeners: Listeners,
        told: Callable[[str], None],
    ) -> None:
        self._kubelet = endpoint.with_name("kubelet.sock")
        self._endpoint = endpoint
        self._resource = resource
        self._serving = serving
        self._listeners = listeners
        self._told = told
        self._known: tuple[Identity, Identity] | None = None
        self._since = 0.0
        self.error = f"the kubelet does not serve {self._kubelet}"
        """Why the kubelet does not know the resource; empty if it does."""

    async def run(self) -> None:
        """Register whenever that is needed, until cancelled."""
        watch = DirectoryWatch(self._endpoint.parent)
        pause = _FIRST_PAUSE
        try:
            while True:
                watch.arm()
                self._listeners.left.clear()
                await self._serving.wait()
                await self._ensure()
                pause = min(pause * 2, _LONGEST_PAUSE) if self.error else _FIRST_PAUSE
                await self._something(watch, pause)
        finally:
            watch.close()

    async def _ensure(self) -> None:
        now = (_identity(self._kubelet), _identity(self._endpoint))
        loop = asyncio.get_running_loop()
        if None in now:
            self._known = None
            self._say("" if now[0] else f"the kubelet does not serve {self._kubelet}")
            return
        lonely = not self._listeners.count and loop.time() - self._since >= _LONELY
        if now == self._known and not lonely:
            return
        error = await self._register()
        self._known, self._since = (None if error else now), loop.time()
        self._say(error)

    def _say(self, error: str) -> None:
        changed, self.error = error != self.error, error
        if changed:
            self._told(error)

    async def _register(self) -> str:
        """Return the kubelet's objection, or nothing."""
        request = pb.RegisterRequest(
            version=VERSION, endpoint=self._endpoint.name, resource_name=self._resource, options=OPTIONS
        )
        options = (("grpc.enable_http_proxy", 0),)
        try:
            async with grpc.aio.insecure_channel(f"unix:{self._kubelet}", options=options) as channel:
                stub = pb_grpc.RegistrationStub(channel)  # type: ignore[no-untyped-call]
                await stub.Register(request, timeout=_TIMEOUT)
        except grpc.aio.AioRpcError as exc:
            return f"{exc.code().name}: {exc.details()}"
        log.info("registered %s with the kubelet", self._resource)
        return ""

    async def _something(self, watch: DirectoryWatch, pause: float) -> None:
        """Wait for what may make another registration necessary."""
        waits = [asyncio.ensure_future(watch.changed())]
        seconds: float | None = _LONELY
        if self._known is None:
            seconds = pause if _identity(self._kubelet) else None
        elif self._listeners.count:
            waits.append(asyncio.ensure_future(self._listeners.left.wait()))  # type: ignore[arg-type]
            seconds = None
        try:
            await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in waits:
                one.cancel()
            await asyncio.gather(*waits, return_exceptions=True)


def _identity(path: Path) -> Identity:
    """Tell one socket from the next at the same path; inode numbers alone are used again."""
    try:
        status = path.lstat()
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_ctime_ns
