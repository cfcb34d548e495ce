"""The few system calls that Python's `os` lacks (before 3.12), through the C library.

Imported by the container's init before every start: it imports nothing that is slow.
"""

from __future__ import annotations

import ctypes
import os

CLONE_NEWNS = 0x00020000
CLONE_NEWUTS = 0x04000000
CLONE_NEWUSER = 0x10000000

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC = 0x1, 0x2, 0x4, 0x8
MS_REMOUNT, MS_NOATIME, MS_NODIRATIME = 0x20, 0x400, 0x800
MS_BIND, MS_REC, MS_PRIVATE, MS_RELATIME = 0x1000, 0x4000, 0x40000, 0x200000

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


def unshare(flags: int) -> None:
    """Leave the namespaces that `flags` names.

    :raises OSError:
    """
    _check(_libc.unshare(flags), "unshare")


def setns(handle: int) -> None:
    """Enter the namespace that the open file stands for.

    :raises OSError:
    """
    _check(_libc.setns(handle, 0), "setns")


def mount(source: str, target: str, kind: str = "", flags: int = 0, data: str = "") -> None:
    """Mount a file system, or bind one that is mounted.

    :raises OSError:
    """
    arguments = (source.encode(), target.encode(), kind.encode() or None, ctypes.c_ulong(flags), data.encode() or None)
    _check(_libc.mount(*arguments), target)


def set_hostname(name: str) -> None:
    """Name this UTS namespace.

    :raises OSError:
    """
    raw = name.encode()[:64]
    _check(_libc.sethostname(raw, ctypes.c_size_t(len(raw))), "sethostname")


def die_with_parent(signal: int) -> None:
    """Let this process, and what it becomes by exec, get `signal` when its parent ends."""
    _libc.prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal), 0, 0, 0)


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), what)
