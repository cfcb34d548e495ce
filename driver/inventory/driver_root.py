"""The driver root: where the host's NVIDIA driver is, as this process sees it (`/`, `/run/nvidia/driver`, …)."""

from __future__ import annotations

import os
import stat
import struct
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from driver.root import Root

LIBRARY = "libnvidia-ml.so.1"
LIBRARY_STEM = "libnvidia-ml.so"

LIBRARY_DIRECTORIES = (
    "usr/lib64",  # Red Hat, SUSE, Amazon Linux, Flatcar
    "usr/lib/x86_64-linux-gnu",  # Debian, Ubuntu
    "usr/lib/aarch64-linux-gnu",
    "lib64",  # GKE's driver root, /home/kubernetes/bin/nvidia
    "lib/x86_64-linux-gnu",
    "lib/aarch64-linux-gnu",
    "usr/lib",  # Arch
    "lib",
    "usr/local/nvidia/lib64",  # where the container toolkit and GKE mount the driver
    "usr/local/nvidia/lib",
    "usr/local/glibc/usr/lib",  # Talos
    "run/opengl-driver/lib",  # NixOS
    "usr/lib/wsl/lib",  # WSL
)
BINARY_DIRECTORIES = (
    "usr/bin",
    "usr/sbin",
    "bin",
    "sbin",
    "usr/local/bin",
    "usr/local/nvidia/bin",
    "run/current-system/sw/bin",
    "usr/lib/wsl/lib",
)


@dataclass(frozen=True, slots=True)
class LibraryFile:
    """A library file; equal ones are the same bytes. `identity` is device, inode, mtime in ns, size in bytes."""

    path: Path
    identity: tuple[int, int, int, int]


class DriverRoot:
    """Finds the driver's files below one directory."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._root = Root(path)

    def library(self) -> LibraryFile | None:
        """Find `libnvidia-ml.so.1` of this process's architecture, whole; None if there is none (yet)."""
        for directory in LIBRARY_DIRECTORIES:
            path = self._found(f"{directory}/{LIBRARY}")
            file = _loadable(path) if path else None
            if file:
                return file
        return None

    def unfit_library(self) -> Path | None:
        """Find a `libnvidia-ml.so.1` that can't be loaded: half a copy, of another architecture, unreadable."""
        for directory in LIBRARY_DIRECTORIES:
            path = self._found(f"{directory}/{LIBRARY}")
            if path and not _loadable(path):
                return path
        return None

    def library_directory(self) -> Path | None:
        """Find the directory of `libnvidia-ml.so.1`, as a path of this process."""
        library = self.library()
        return library.path.parent if library else None

    def binary(self, name: str) -> Path | None:
        """Find a program, as a path of this process."""
        for directory in BINARY_DIRECTORIES:
            path = self._found(f"{directory}/{name}")
            if path and stat.S_ISREG(_mode(path)) and os.access(path, os.X_OK):
                return path
        return None

    def watched(self) -> dict[Path, set[str]]:
        """Return existing directories and the beginnings of names whose coming or going may matter.

        Where a library directory is missing, that is the next name on the way to it, in its nearest existing ancestor.
        """
        result: dict[Path, set[str]] = {}
        for directory in LIBRARY_DIRECTORIES:
            where, prefix = self._nearest(directory)
            result.setdefault(where, set()).add(prefix)
        return result

    def _found(self, inside: str) -> Path | None:
        resolved = self._root.resolve(inside)
        return self._root.seen_path(resolved) if resolved is not None else None

    def _nearest(self, directory: str) -> tuple[Path, str]:
        parts = [*self.path.absolute().parts[1:], *directory.split("/")]
        inside = len(parts) - len(directory.split("/"))
        for count in range(len(parts), -1, -1):
            existing = self._found("/".join(parts[inside:count])) if count >= inside else Path("/", *parts[:count])
            if existing and stat.S_ISDIR(_mode(existing)):
                return existing, parts[count] if count < len(parts) else LIBRARY_STEM
        return Path("/"), parts[0]


def _mode(path: Path) -> int:
    """Return a file's mode, 0 where it can't be reached: no permission is as good as no file."""
    try:
        return path.stat().st_mode
    except OSError:
        return 0


def _loadable(path: Path) -> LibraryFile | None:
    """Return the file if it is an ELF library of our architecture and whole: half a copy, once mapped, kills us."""
    try:
        with path.open("rb") as stream:
            status = os.fstat(stream.fileno())
            header = stream.read(64)
        own = _own_header()
    except OSError:
        return None
    if len(header) < 64 or (header[:6], header[18:20]) != (own[:6], own[18:20]):
        return None
    if _sections_end(header) > status.st_size:
        return None
    return LibraryFile(path, (status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size))


@cache
def _own_header() -> bytes:
    with Path("/proc/self/exe").open("rb") as stream:
        return stream.read(64)


def _sections_end(header: bytes) -> int:
    """Return where the section headers end, the last thing in a library file (ELF-64 layout)."""
    order = "<" if header[5] == 1 else ">"
    (offset,) = struct.unpack_from(f"{order}Q", header, 0x28)
    size, count = struct.unpack_from(f"{order}HH", header, 0x3A)
    return int(offset + size * count)
