"""Answers `gpu-dra status` and `gpu-dra top`, on a Unix socket that only root of the node may open.

Who holds which GPU is no business of the whole cluster, which can reach the port of `/metrics`.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import secrets
import socket
from typing import TYPE_CHECKING, Any

from driver.model.names import UNIX_PATH_MAX

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from aiohttp import web

log = logging.getLogger(__name__)

_MODE = 0o600


class StatusServer:
    """Serves one document at `path`. The newest instance on a node has the socket; an older one leaves it alone."""

    def __init__(self, path: Path, document: Callable[[], Awaitable[dict[str, Any]]]) -> None:
        self._path = path
        self._document = document
        self._runner: web.ServerRunner | None = None
        self._inode = 0

    async def start(self) -> None:
        """Begin to serve. An agent without this socket is of use all the same: failing is told only."""
        from aiohttp import web

        try:
            listener = self._bind()
        except OSError as exc:
            log.warning("gpu-dra status won't work: cannot serve %s: %s", self._path, exc.strerror or exc)
            return
        self._runner = web.ServerRunner(web.Server(self._answer, access_log=None), shutdown_timeout=0)
        await self._runner.setup()
        await web.SockSite(self._runner, listener).start()

    async def stop(self) -> None:
        """Close the socket, and remove it if it is still this instance's."""
        if self._runner is None:
            return
        with contextlib.suppress(OSError):
            if self._path.lstat().st_ino == self._inode:
                self._path.unlink()
        await self._runner.cleanup()
        self._runner = None

    def _bind(self) -> socket.socket:
        """Bind under another name and rename: there is no moment without a socket, or with one that others may open."""
        hidden = self._path.with_name(f".{secrets.token_hex(3)}")
        if max(len(bytes(hidden)), len(bytes(self._path))) > UNIX_PATH_MAX:
            raise OSError(f"the path is longer than the {UNIX_PATH_MAX} bytes of a socket address; set a --state-dir")
        self._path.parent.mkdir(parents=True, exist_ok=True)
        listener = socket.socket(socket.AF_UNIX)
        try:
            os.fchmod(listener.fileno(), _MODE)  # before it has a name
            listener.bind(str(hidden))
            listener.listen()
            self._inode = hidden.lstat().st_ino
            hidden.rename(self._path)
        except OSError:
            listener.close()
            hidden.unlink(missing_ok=True)
            raise
        return listener

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        from aiohttp import web

        if request.method not in ("GET", "HEAD"):
            return web.Response(status=405, text="only GET is served\n", headers={"Allow": "GET, HEAD"})
        if request.path != "/status":
            return web.Response(status=404, text="served here: /status\n")
        return web.json_response(await self._document(), dumps=lambda value: json.dumps(value) + "\n")
