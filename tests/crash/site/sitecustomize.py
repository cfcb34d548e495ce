"""Put on PYTHONPATH of an unmodified agent, this makes it die: before its N-th change to the files it keeps.

CRASH_BEFORE is N, CRASH_BELOW the directories that count (separated by ':'), and nothing counts until CRASH_ARMED
exists. Changes are what audit events tell of: files opened for writing, renames, removals. Dying before step N+1 is
dying after step N, so all N together cover every state that a `kill -9` can leave.
"""

import os
import signal
import sys


def _install(step: int, below: tuple[str, ...], armed: str) -> None:
    count = 0

    def hook(event: str, args: tuple[object, ...]) -> None:
        nonlocal count
        if event not in ("open", "os.rename", "os.remove"):
            return
        if event == "open" and not (isinstance(args[2], int) and args[2] & (os.O_WRONLY | os.O_RDWR)):
            return
        if str(args[0]).startswith(below) and os.access(armed, os.F_OK):
            count += 1
            if count == step:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)


if "CRASH_BEFORE" in os.environ:
    _install(int(os.environ["CRASH_BEFORE"]), tuple(os.environ["CRASH_BELOW"].split(":")), os.environ["CRASH_ARMED"])
