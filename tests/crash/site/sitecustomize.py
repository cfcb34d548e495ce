"""Put on PYTHONPATH of an unmodified agent, this makes it die: before its N-th change to the files it keeps.

CRASH_ARMED names a file that holds N; nothing counts until it exists. CRASH_BELOW are the files and directories that
count, separated by ':'. Changes are what audit events tell of: files opened for writing, renames, removals, directories
made. Dying before step N+1 is dying after step N, so all N together cover every state that a `kill -9` can leave.
"""

import os
import signal
import sys

CHANGES = ("os.rename", "os.remove", "os.mkdir", "os.rmdir")


def _install(below: tuple[str, ...], armed: str) -> None:
    count = 0

    def hook(event: str, args: tuple[object, ...]) -> None:
        nonlocal count
        writes = event == "open" and isinstance(args[2], int) and args[2] & (os.O_WRONLY | os.O_RDWR)
        if not (writes or event in CHANGES) or not str(args[0]).startswith(below) or not os.access(armed, os.F_OK):
            return
        count += 1
        with open(armed) as file:
            if count == int(file.read()):
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)


if "CRASH_ARMED" in os.environ:
    _install(tuple(os.environ["CRASH_BELOW"].split(":")), os.environ["CRASH_ARMED"])
