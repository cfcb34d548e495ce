"""Run as a program, `python -I -S launch.py JSON PROGRAM [ARGUMENT…]`: become one of the driver's tools.

What can't be done between fork and exec by a process with threads is done here: a mount namespace with directories
bound to where the tool looks for them (`binds`: source, target), another root directory (`root`), another control
group (`cgroup`, its directory), and the note of who this is (`identity`, a file; `tag` goes into it). The tool
keeps pid and start time of this process, so the note is there before the tool runs, whoever dies meanwhile.

Needs the standard library only: it has to start in milliseconds.
"""

# pathlib is slow to import; the rest is what it is for
# ruff: noqa: PTH103, PTH104, PTH123, S108, S606, T201

from __future__ import annotations

import ctypes
import errno
import json
import os
import signal
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing is slow to import
    from typing import Any

FAILED = 126
"""The exit status if the tool could not be started, as of a shell."""

_HINTS = {errno.EPERM: " (it takes CAP_SYS_ADMIN)"}
_CLONE_NEWNS, _CLONE_NEWCGROUP = 0x20000, 0x2000000
_MS_BIND, _MS_REC, _MS_SLAVE = 0x1000, 0x4000, 0x80000


def main(options: dict[str, Any], argv: list[str]) -> None:
    """Do what `options` say, then become the program."""
    if options.get("identity"):
        note(options["identity"], options["tag"])
    if options.get("cgroup"):
        enter_cgroup(options["cgroup"])
    root = options.get("root") or ""
    if options.get("binds"):
        bind(root, options["binds"])
    if root:
        os.chroot(root)
        os.chdir("/")
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # Python ignores it, and exec would pass that on
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    os.execv(argv[0], argv)


def note(path: str, tag: str) -> None:
    """Write down who this process is, at once or not at all; fails if the directory was removed meanwhile."""
    with open("/proc/self/stat", "rb") as stream:
        started = int(stream.read().rpartition(b")")[2].split()[19])
    with open("/proc/sys/kernel/random/boot_id") as stream:
        boot = stream.read().strip()
    temporary = f"{path}.{os.getpid()}"
    with open(temporary, "w") as stream:
        json.dump({"pid": os.getpid(), "started": started, "boot": boot, "tag": tag}, stream)
    os.rename(temporary, path)


def enter_cgroup(directory: str) -> None:
    """Enter a control group, made if missing: as the host, since nobody may leave a namespace of control groups."""
    try:
        host = os.open("/proc/1/ns/cgroup", os.O_RDONLY)
        _libc().setns(host, _CLONE_NEWCGROUP)
    except PermissionError:
        pass  # then this is no container that may do it, and writing tells
    os.makedirs(directory, exist_ok=True)
    with open(f"{directory}/cgroup.procs", "w") as procs:
        procs.write(str(os.getpid()))


def bind(root: str, binds: list[list[str]]) -> None:
    """Bind directories in a mount namespace of our own; what the host mounts later still comes in."""
    libc = _libc()

    def mount(source: str, target: str, kind: str, flags: int) -> None:
        arguments = [value.encode() for value in (source, target, kind)]
        _call(libc.mount(*arguments, ctypes.c_ulong(flags), None), f"mount on {target}")

    _call(libc.unshare(_CLONE_NEWNS), "mount namespace")
    mount("none", "/", "", _MS_REC | _MS_SLAVE)
    sources = [os.open(source, os.O_PATH | os.O_DIRECTORY) for source, _ in binds]  # what comes now may hide them
    if root and any(target.startswith("/tmp/") for _, target in binds):
        mount("tmpfs", f"{root}/tmp", "tmpfs", 0)  # the driver's root may be read-only, and must stay as it is
    for source, (_, target) in zip(sources, binds, strict=True):
        os.makedirs(root + target, exist_ok=True)
        mount(f"/proc/self/fd/{source}", root + target, "", _MS_BIND)


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _call(result: int, what: str) -> None:
    if result:
        error = ctypes.get_errno()
        raise OSError(error, f"{os.strerror(error)}{_HINTS.get(error, '')}", what)


if __name__ == "__main__":
    try:
        main(json.loads(sys.argv[1]), sys.argv[2:])
    except OSError as exc:
        print(f"cannot start {sys.argv[2]}: {exc}", file=sys.stderr)
        sys.exit(FAILED)
