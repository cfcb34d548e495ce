"""A gRPC server on a Unix socket that stays reachable: served before it is seen, and again when its file is gone.

The socket is bound under a hidden name, made private, then renamed into place: whoever sees it can connect, nobody
else's file is touched on the way, and what gRPC unlinks at its end is not what another instance has put there since.
"""

from __future__ import annotations

import asyncio
import logging
import os
from typing import TYPE_CHECKING

import grpc.aio

from driver.errors import ServeError
from driver.kubelet.sockets import DirectoryWatch, Peer, hidden_path, probe, sweep

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

log = logging.getLogger(__name__)

_GRACE = 45.0  # seconds; a call that came over a deleted socket may still end well: the kubelet's deadline
_PAUSE = 0.05  # seconds between two looks, so that whoever deletes the socket in a loop doesn't make us spin
_OPTIONS = (("grpc.so_reuseport", 0),)


class UnixServer:
    """Serves `register`'s services at `path`.

    With `make_directory` the socket's directory is ours and is created; without, it is somebody else's (the kubelet's
    registry) and is waited for. With `take_over` a live socket at `path` is replaced: right for names that no other
    instance can have.
    """

    def __init__(
        self,
        path: Path,
        register: Callable[[grpc.aio.Server], None],
        *,
        interceptors: Sequence[grpc.aio.ServerInterceptor] = (),
        make_directory: bool = False,
        take_over: bool = False,
    ) -> None:
        self.path = path
        self.serving = asyncio.Event()
        self._register = register
        self._interceptors = tuple(interceptors)
        self._make_directory = make_directory
        self._take_over = take_over
        self._server: grpc.aio.Server | None = None
        self._inode: tuple[int, int] | None = None
        self._retiring: set[asyncio.Task[None]] = set()
        self._waiting = False

    async def run(self) -> None:
        """Serve until cancelled, then remove the socket, if it is still ours.

        :raises ServeError: the socket can't be served, or another live instance has its name.
        """
        watch = DirectoryWatch(self.path.parent)
        try:
            while True:
                if self._make_directory:
                    _make(self.path.parent)
                watch.arm()
                if await self._ensure():
                    await watch.changed()
                await asyncio.sleep(_PAUSE)
        finally:
            watch.close()
            self._remove()

    async def stop(self, grace: float) -> None:
        """Refuse new calls, give those under way `grace` seconds, then cancel them."""
        self._remove()
        server, self._server = self._server, None
        if server is not None:
            await server.stop(grace)
        for task in self._retiring:
            task.cancel()
        await asyncio.gather(*self._retiring, return_exceptions=True)

    async def _ensure(self) -> bool:
        """Serve if that is needed; say whether the next step is to wait for a change."""
        if self._server is not None and self._is_ours():
            return True
        self.serving.clear()
        if not self.path.parent.is_dir():
            return self._wait_for_directory()
        try:
            self._refuse_to_rob()
            sweep(self.path.parent)
            server = await self._serve()
        except FileNotFoundError:
            return False  # the directory went away in this moment
        except OSError as exc:
            raise ServeError(f"cannot serve {self.path}: {exc.strerror or exc}") from exc
        self._retire(self._server)
        self._server = server
        self._waiting = False
        self.serving.set()
        log.info("serving %s", self.path)
        return True

    def _wait_for_directory(self) -> bool:
        if not self._waiting:
            log.warning(
                "%s does not exist: waiting for the kubelet to create it; is the kubelet root right?", self.path.parent
            )
        self._waiting = True
        return not self._make_directory

    def _refuse_to_rob(self) -> None:
        found = probe(self.path)
        if found is Peer.FOREIGN:
            raise ServeError(f"{self.path} exists and is no socket: move it away")
        if found is Peer.LIVE and not self._take_over:
            raise ServeError(
                f"another process serves {self.path}: stop it first, or give each instance its pod UID "
                "(rolling update), so that their sockets have different names"
            )
        if found is Peer.DEAD:
            log.info("replacing the socket %s that a former process left", self.path)

    async def _serve(self) -> grpc.aio.Server:
        server = grpc.aio.server(interceptors=self._interceptors, options=_OPTIONS)
        self._register(server)
        hidden = hidden_path(self.path)
        try:
            server.add_insecure_port(f"unix:{hidden}")
        except RuntimeError as exc:
            if not self.path.parent.is_dir():
                raise FileNotFoundError(self.path.parent) from exc
            raise ServeError(f"cannot bind a socket in {self.path.parent}: {_access(self.path.parent)}") from exc
        try:
            hidden.chmod(0o600)
            await server.start()
            found = hidden.stat()
            hidden.rename(self.path)
        except BaseException:
            await server.stop(None)
            hidden.unlink(missing_ok=True)
            raise
        self._inode = (found.st_dev, found.st_ino)
        return server

    def _is_ours(self) -> bool:
        try:
            found = self.path.lstat()
        except OSError:
            return False
        return (found.st_dev, found.st_ino) == self._inode

    def _remove(self) -> None:
        self.serving.clear()
        if self._inode is not None and self._is_ours():
            try:
                self.path.unlink(missing_ok=True)
            except OSError as exc:
                log.warning("cannot remove socket %s: %s", self.path, exc.strerror)
        self._inode = None

    def _retire(self, server: grpc.aio.Server | None) -> None:
        if server is None:
            return
        log.warning("socket %s was gone; a new one is served", self.path)
        task = asyncio.create_task(server.stop(_GRACE))
        self._retiring.add(task)
        task.add_done_callback(self._retiring.discard)


def _make(directory: Path) -> None:
    try:
        directory.mkdir(mode=0o750, parents=True, exist_ok=True)
    except OSError as exc:
        raise ServeError(f"cannot create {directory} for the driver's socket: {exc.strerror or exc}") from exc


def _access(directory: Path) -> str:
    return "is it a local, writable file system?" if os.access(directory, os.W_OK) else "it is not writable"
