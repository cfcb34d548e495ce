"""What an MPS control daemon has on disk, and who it is.

    <root>/<id>/identity      pid, start time, boot and settings, written by the daemon's own process before it is one
    <root>/<id>/p             its pipe directory, mounted into containers; a short name, since sockets' paths must be
    <root>/<id>/log           its own log, and its output
    <shm root>/<id>           its and its clients' /dev/shm

The shared memory is a directory of the host's /dev/shm: nothing is mounted that a crash could leave. Every process of
a daemon carries the directory's name in its environment, by which strays are found; a pid alone is never trusted.
"""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from driver.errors import InvalidValueError, StorageError
from driver.model import names
from driver.model.json_object import parse_json

if TYPE_CHECKING:
    from collections.abc import Iterator

MARK = "GPU_DRA_MPS_DAEMON"
"""The variable, with the daemon's directory, in the environment of its processes."""

_LONGEST_SOCKET = "control_privileged"
_PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class DaemonFiles:
    """The directories of one daemon."""

    directory: Path
    shm: Path

    @property
    def pipe(self) -> Path:
        """The directory of its sockets."""
        return self.directory / "p"

    @property
    def log(self) -> Path:
        """The directory of its logs."""
        return self.directory / "log"

    @property
    def identity(self) -> Path:
        """The file that says who it is."""
        return self.directory / "identity"

    def exist(self) -> bool:
        """Say whether there is anything to remove."""
        return os.path.lexists(self.directory) or os.path.lexists(self.shm)

    def make(self) -> None:
        """Make the directories, or keep them, and empty the pipe directory of a dead daemon's sockets.

        Containers may have mounted them, so they are never replaced.

        :raises StorageError: one can't be made.
        """
        try:
            self.shm.parent.mkdir(mode=0o711, parents=True, exist_ok=True)
            for path, mode in ((self.directory, 0o711), (self.pipe, 0o755), (self.log, 0o700), (self.shm, 0o1777)):
                path.mkdir(parents=True, exist_ok=True)
                path.chmod(mode)
            self.identity.unlink(missing_ok=True)
            for stale in self.pipe.iterdir():
                stale.unlink()
        except OSError as exc:
            raise StorageError(f"cannot make the directories of an MPS daemon: {exc}") from exc

    def remove(self) -> None:
        """Remove everything; nothing there is fine.

        :raises StorageError: something is left.
        """
        for path in (self.shm, self.directory):
            try:
                shutil.rmtree(path)
            except FileNotFoundError:
                continue
            except OSError as exc:
                raise StorageError(f"cannot remove {path} of an MPS daemon: {exc}") from exc

    def owner(self, boot_id: str) -> tuple[int, str] | None:
        """Return pid and tag of the daemon if it runs: the very process that wrote the file, not a later namesake."""
        try:
            value = parse_json(self.identity.read_bytes())
            pid, started, boot, tag = int(value["pid"]), value["started"], value["boot"], str(value["tag"])
        except (OSError, ValueError, KeyError, TypeError):
            return None
        if boot != boot_id or _start_time(pid) != started or _has_mark(pid, self._mark) is False:
            return None
        return pid, tag

    def processes(self) -> list[int]:
        """Return the pids of all processes of this daemon, its MPS servers too. Reads all of /proc: takes a while."""
        pids = [int(entry.name) for entry in _PROC.iterdir() if entry.name.isdecimal()]
        return [pid for pid in pids if self.owns(pid)]

    def owns(self, pid: int) -> bool:
        """Say whether a live process is this daemon's."""
        return _has_mark(pid, self._mark) is True

    def env(self) -> dict[str, str]:
        """Return the mark."""
        return {MARK: str(self.directory)}

    def last_words(self) -> str:
        """Return the last line of the daemon's logs, for messages."""
        for name in ("output", "control.log", "server.log"):
            with suppress(OSError):
                lines = (self.log / name).read_text(errors="replace").strip().splitlines()
                if lines:
                    return lines[-1][:300]
        return "it left no message"

    @property
    def _mark(self) -> bytes:
        return f"{MARK}={self.directory}".encode()


class DaemonRoot:
    """All daemons' directories."""

    def __init__(self, root: Path, shm_root: Path) -> None:
        self._root = root
        self._shm_root = shm_root

    def files(self, daemon_id: str) -> DaemonFiles:
        """Return one daemon's, whether it can be started or not.

        :raises InvalidValueError: the id is no file name.
        """
        names.check_uid(daemon_id, "MPS daemon")
        return DaemonFiles(self._root / daemon_id, self._shm_root / daemon_id)

    def usable(self, daemon_id: str) -> DaemonFiles:
        """Return those of a daemon that can be started.

        :raises InvalidValueError: as `files`, or its sockets' paths would be too long.
        """
        files = self.files(daemon_id)
        longest = names.UNIX_PATH_MAX - len(f"/{_LONGEST_SOCKET}")
        if len(bytes(files.pipe)) > longest:
            raise InvalidValueError(
                "MPS daemon",
                daemon_id,
                f"{files.pipe} may have {longest} bytes, as sockets are made there: use a shorter state_dir",
            )
        return files

    def ids(self) -> frozenset[str]:
        """Return the ids of which there is anything."""
        return frozenset(name for root in (self._root, self._shm_root) for name in _names(root))


def _names(directory: Path) -> Iterator[str]:
    with suppress(FileNotFoundError, NotADirectoryError):
        yield from (entry.name for entry in directory.iterdir())


def _start_time(pid: int) -> int | None:
    """Return when a process started, in clock ticks since boot; None if there is none, or a dead one."""
    try:
        fields = (_PROC / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None
    return None if fields[0] in (b"Z", b"X") else int(fields[19])


def _has_mark(pid: int, mark: bytes) -> bool | None:
    """Say whether a live process has a variable; None if we may not know."""
    try:
        return mark in (_PROC / str(pid) / "environ").read_bytes().split(b"\0")
    except PermissionError:
        return None
    except OSError:
        return False
