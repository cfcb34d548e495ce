"""Unix socket files: how they are called, whether somebody serves one, and notice of what happens to them."""

from __future__ import annotations

import asyncio
import contextlib
import enum
import errno
import hashlib
import logging
import re
import secrets
import socket
import stat
from typing import TYPE_CHECKING

from driver.errors import ServeError
from driver.model.names import DRIVER, UNIX_PATH_MAX, check_uid

if TYPE_CHECKING:
    from pathlib import Path

log = logging.getLogger(__name__)

_POLL_SECONDS = 2.0
_HIDDEN = re.compile(r"\.[0-9a-f]{6}")


def service_path(plugins: Path, pod_uid: str = "") -> Path:
    """Return the path of the DRA service socket under `plugins`, the kubelet's directory of that name.

    `pod_uid` makes it that of one instance among several (rolling update).

    :raises ServeError: no form of it fits into a socket address.
    """
    return _path(plugins / DRIVER, "dra", ".sock", pod_uid)


def registration_path(registry: Path, pod_uid: str = "") -> Path:
    """Return the path of the registration socket in `registry`, the kubelet's `plugins_registry`.

    :raises ServeError: no form of it fits into a socket address.
    """
    return _path(registry, DRIVER, "-reg.sock", pod_uid)


def _path(directory: Path, stem: str, suffix: str, pod_uid: str) -> Path:
    candidates = [f"{stem}{suffix}"]
    if pod_uid:
        digest = hashlib.sha256(check_uid(pod_uid, "pod UID").encode()).hexdigest()
        candidates = [f"{stem}-{part}{suffix}" for part in (pod_uid, digest[:16], digest[:8])]
    for name in candidates:
        if len(bytes(directory / name)) <= UNIX_PATH_MAX:
            return directory / name
    raise ServeError(
        f"socket path {directory / candidates[-1]} has {len(bytes(directory / candidates[-1]))} bytes, "
        f"but a Unix socket address holds {UNIX_PATH_MAX}: use a shorter kubelet root"
    )


class Peer(enum.Enum):
    """What is found at a socket's path."""

    ABSENT = enum.auto()
    DEAD = enum.auto()  # a socket that nobody serves: left by a process that was killed
    LIVE = enum.auto()
    FOREIGN = enum.auto()  # no socket: never ours to remove


def probe(path: Path) -> Peer:
    """Find out who is at `path`, without waiting.

    :raises ServeError: it can't be found out.
    """
    try:
        if not stat.S_ISSOCK(path.lstat().st_mode):
            return Peer.FOREIGN
        with socket.socket(socket.AF_UNIX) as client:
            client.setblocking(False)
            client.connect(str(path))
    except FileNotFoundError:
        return Peer.ABSENT
    except ConnectionRefusedError:
        return Peer.DEAD
    except BlockingIOError:  # its queue is full: somebody has it open
        return Peer.LIVE
    except OSError as exc:
        raise ServeError(f"cannot look at socket {path}: {exc.strerror or exc}") from exc
    return Peer.LIVE


def hidden_path(path: Path) -> Path:
    """Return where to bind a socket before it is renamed to `path`; the kubelet passes over such names."""
    return path.with_name(f".{secrets.token_hex(3)}")


def sweep(directory: Path) -> None:
    """Remove hidden sockets that a process left which was killed before it renamed them."""
    for path in directory.glob(".??????"):
        if _HIDDEN.fullmatch(path.name) and probe(path) is Peer.DEAD:
            path.unlink(missing_ok=True)


class DirectoryWatch:
    """Wakes when something appears in or vanishes from a directory, or when the directory itself comes or goes.

    `arm`, look at the files, `changed`: nothing that happens in between is missed.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._notify: _Notify | None = None

    def arm(self) -> None:
        """Watch from now on, afresh. Where the directory is missing, its nearest existing parent is watched for it."""
        self.close()
        self._notify = _Notify()
        watched = None
        while watched != (nearest := self._nearest()):  # it may come or go while it is about to be watched
            watched = nearest if self._notify.add(nearest) else None

    async def changed(self) -> None:
        """Wait for the next change after `arm`."""
        if self._notify is not None:
            await self._notify.event()

    def close(self) -> None:
        """Stop watching."""
        if self._notify is not None:
            self._notify.close()
            self._notify = None

    def _nearest(self) -> Path:
        return next(path for path in (self._directory, *self._directory.parents) if path.is_dir())


class _Notify:
    """inotify on one directory; a slow poll where the node has no inotify instance left for us."""

    def __init__(self) -> None:
        from asyncinotify import Inotify

        self._inotify: Inotify | None = None
        try:
            self._inotify = Inotify()
        except OSError as exc:
            log.warning("no inotify (%s): polling every %g s; raise fs.inotify.max_user_instances", exc, _POLL_SECONDS)

    def add(self, directory: Path) -> bool:
        """Watch a directory; say whether it is there. One that can't be watched is polled."""
        from asyncinotify import Mask

        if self._inotify is None:
            return True
        mask = Mask.CREATE | Mask.DELETE | Mask.MOVE | Mask.DELETE_SELF | Mask.MOVE_SELF | Mask.ONLYDIR
        try:
            self._inotify.add_watch(directory, mask)
        except OSError as exc:
            if exc.errno in (errno.ENOENT, errno.ENOTDIR):
                return False
            log.warning("cannot watch %s (%s): polling it every %g s", directory, exc.strerror, _POLL_SECONDS)
            self.close()
        return True

    async def event(self) -> None:
        """Wait for a change; when polling, for the next look."""
        if self._inotify is None:
            await asyncio.sleep(_POLL_SECONDS)
        else:
            await self._inotify.get()

    def close(self) -> None:
        """Stop watching; `event` polls then."""
        if self._inotify is not None:
            with contextlib.suppress(OSError):
                self._inotify.close()
            self._inotify = None
