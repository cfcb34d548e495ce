"""The connections of the driver's process, as the kernel lists them: who is connected to it, and it to whom."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

_LISTENS = 1 << 16  # a flag of /proc/net/unix (__SO_ACCEPTCON)
_ESTABLISHED = "01"  # a state of /proc/net/tcp
_UNIX_CONNECTED = "03"  # a state of /proc/net/unix


@dataclass(frozen=True, slots=True, kw_only=True)
class Connections:
    """Inodes: a connection that is made anew has another one, for as long as the old one lives."""

    kubelet: frozenset[int]
    """Those to the driver's sockets."""
    api_server: frozenset[int]
    """Those that it has made over TCP."""


def connections_of(pid: int, sockets: Path) -> Connections:
    """Return the connections of a process whose Unix sockets are bound in a directory, and all of which are its own."""
    return Connections(kubelet=_to_sockets_in(sockets), api_server=_established() & _open(pid))


def _to_sockets_in(directory: Path) -> frozenset[int]:
    """Return the accepted connections: they have the path at which the listening socket was bound."""
    rows = [row.split(maxsplit=7) for row in Path("/proc/net/unix").read_text().splitlines()[1:]]
    return frozenset(
        int(row[6])
        for row in rows
        if len(row) == 8
        and row[7].startswith(f"{directory}/")
        and row[5] == _UNIX_CONNECTED
        and not int(row[3], 16) & _LISTENS
    )


def _established() -> frozenset[int]:
    files = [path for name in ("tcp", "tcp6") if (path := Path("/proc/net", name)).exists()]
    rows = [row.split() for path in files for row in path.read_text().splitlines()[1:]]
    return frozenset(int(row[9]) for row in rows if row[3] == _ESTABLISHED)


def _open(pid: int) -> frozenset[int]:
    """Return the sockets among a process's open files."""
    directory = f"/proc/{pid}/fd"
    links = [os.readlink(f"{directory}/{name}") for name in os.listdir(directory)]
    return frozenset(int(link[len("socket:[") : -1]) for link in links if link.startswith("socket:["))
