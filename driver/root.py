"""A directory that is `/` to somebody else: a driver installation, as this process sees it and as the host names it.

An agent in a container sees the host's `/run/nvidia/driver` at `/driver-root`, say, while a CDI spec has to name the
host's path, and the container gets the path without either.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

_MAX_LINKS = 40  # as the kernel


class Root:
    """A root directory. Paths inside it are written with a leading `/`, as a process in it would."""

    def __init__(self, seen: Path, host: Path | None = None) -> None:
        self.seen = seen
        self.host = str(host or seen).rstrip("/")

    def __str__(self) -> str:
        return self.host or "/"

    def seen_path(self, inside: str) -> Path:
        """Return where this process finds a path."""
        return self.seen / inside.lstrip("/")

    def host_path(self, inside: str) -> str:
        """Return what the host calls a path."""
        return f"{self.host}{inside}"

    def of_host(self) -> Root | None:
        """Return the host's own `/`, where this root is seen at its host's path below that: /host/run/nvidia/driver."""
        seen = os.fspath(self.seen)
        if not self.host or seen == self.host or not seen.endswith(self.host):
            return None
        return Root(Path(seen.removesuffix(self.host)), Path("/"))

    def resolve(self, inside: str) -> str | None:
        """Follow symbolic links as a process in this root would, never out of it; None if the path is not there."""
        todo = _parts(inside)
        done: list[str] = []
        links = 0
        while todo:
            part = todo.pop()
            if part == "..":
                done = done[:-1]
                continue
            path = self.seen_path("/".join([*done, part]))
            try:
                if not stat.S_ISLNK(path.lstat().st_mode):
                    done.append(part)
                    continue
                target = os.fspath(path.readlink())
            except OSError:
                return None
            links += 1
            if links > _MAX_LINKS:
                return None
            done = [] if target.startswith("/") else done
            todo += _parts(target)
        return "/" + "/".join(done)

    def names(self, inside: str) -> list[str]:
        """Return the sorted names in a directory, links followed; none if it is not there or can't be read."""
        resolved = self.resolve(inside)
        try:
            return sorted(path.name for path in self.seen_path(resolved).iterdir()) if resolved else []
        except OSError:
            return []


def _parts(inside: str) -> list[str]:
    """Return the components, the first one last."""
    return [part for part in reversed(inside.split("/")) if part not in ("", ".")]
