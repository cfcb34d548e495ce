"""HTTP for probes and Prometheus: `/healthz`, `/readyz`, `/metrics`. The first thing up, before anything can hang (H8).

`/healthz` says that the process answers. `/readyz` says whether it is of use to the cluster (A14) and, if not, what is
missing. Neither asks NVML or the API server: they tell what the agent knows.
"""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any

from driver.errors import ServeError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from aiohttp import web

log = logging.getLogger(__name__)


class Endpoints:
    """Serves on `host`:`port` (port 0: any free one).

    An empty host means all addresses. `missing` says what is missing, by part; `metrics` is Prometheus' text format.
    """

    def __init__(
        self,
        *,
        host: str,
        port: int,
        missing: Callable[[], Mapping[str, str]],
        metrics: Callable[[], bytes],
    ) -> None:
        self._host = host
        self._port = port
        self._missing = missing
        self._metrics = metrics
        self._runner: web.ServerRunner | None = None

    async def start(self) -> None:
        """Begin to serve.

        :raises ServeError: the address can't be had.
        """
        from aiohttp import web

        self._runner = web.ServerRunner(web.Server(self._answer, access_log=None), shutdown_timeout=0)
        await self._runner.setup()
        site = web.TCPSite(self._runner, self._host or None, self._port)
        try:
            await site.start()
        except (OSError, OverflowError) as exc:
            await self.stop()
            raise ServeError(
                f"cannot serve health and metrics on {self._host}:{self._port}: {_reason(exc)}; choose another address"
            ) from exc
        log.info("serving health and metrics on %s:%d", self._host or "*", self.port)

    @property
    def port(self) -> int:
        """The port served."""
        addresses = self._runner.addresses if self._runner is not None else []
        return int(addresses[0][1]) if addresses else self._port

    async def stop(self) -> None:
        """Close the port."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        from aiohttp import web

        if request.method not in ("GET", "HEAD"):
            return web.Response(status=405, text="only GET is served\n", headers={"Allow": "GET, HEAD"})
        match request.path:
            case "/healthz":
                return web.Response(text="ok\n")
            case "/readyz":
                return self._readiness()
            case "/metrics":
                return web.Response(body=self._metrics(), headers={"Content-Type": _metrics_type()})
        return web.Response(status=404, text="served here: /healthz, /readyz, /metrics\n")

    def _readiness(self) -> web.Response:
        from aiohttp import web

        missing = dict(self._missing())
        body: dict[str, Any] = {"ready": not missing, "missing": missing}
        return web.json_response(body, status=503 if missing else 200, dumps=lambda value: json.dumps(value) + "\n")


def _metrics_type() -> str:
    from driver.metrics import CONTENT_TYPE

    return CONTENT_TYPE


def _reason(exc: Exception) -> str:
    return getattr(exc, "strerror", None) or str(exc)
