"""Run as a program: start or stop an MPS daemon in a process that dies before its N-th change to the node.

Changes are what Python's audit events tell of: files opened for writing, modes, removals, and processes started.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

from driver.sharing.base import MpsSpec
from driver.sharing.mps import MpsDaemons, MpsOptions
from tests.fakes.install import FakeDriver

CHANGES = {"os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.chmod", "shutil.rmtree"}
DAEMON = "claim"
SPEC = MpsSpec(devices=("GPU-1",), active_thread_percentage=40, memory_limits={"GPU-1": 1 << 30})


def die_before(step: int, roots: tuple[str, ...]) -> None:
    """Kill this process without warning before its `step`-th change below `roots`."""
    count = 0

    def hook(event: str, args: tuple[object, ...]) -> None:
        nonlocal count
        writes = event == "open" and isinstance(args[2], int) and args[2] & (os.O_WRONLY | os.O_RDWR)
        changes = (event in CHANGES or writes) and str(args[0]).startswith(roots)
        if changes or event in {"os.posix_spawn", "signal.pidfd_send_signal"}:
            count += 1
            if count == step:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)


def daemons(root: Path, shm_root: Path) -> MpsDaemons:
    """What an agent has on the node at `root`; the driver is there already."""
    boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    options = MpsOptions(
        root=root / "mps", shm_root=shm_root, boot_id=boot_id, private_shm=False, ready_timeout=20, quit_timeout=5
    )
    return MpsDaemons(FakeDriver(root / "driver").tools(), options)


async def main(root: str, shm_root: str, operation: str, step: int) -> None:
    """Do `operation`."""
    agent = daemons(Path(root), Path(shm_root))
    die_before(step, (f"{root}/mps", shm_root))
    if operation == "start":
        await agent.start(DAEMON, SPEC)
    else:
        await agent.stop(DAEMON)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])))
