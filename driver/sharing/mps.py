"""MPS: one control daemon per claim, started here as a child process and watched; a `MpsControl`.

The daemon (`nvidia-cuda-mps-control -f`) runs in a session and a mount namespace of its own: its /dev/shm is a
directory that only its clients get. It starts an MPS server when the first client comes, and another for another user
unless it serves all users at once (`multi_user`): then clients of all users run as the server's.

What MPS isolates: each client has its own GPU address space (Volta and later). What it does not: a fatal fault of one
client ends all clients on that GPU; limits hold for each process (see `driver.sharing.limits`), cache and bandwidth are
shared by all; whoever is in a container with the pipe directory can become a client. For hard walls there is MIG.

The daemon lives on when the agent ends, and is found again by `adopt`. In a container that takes more: the runtime
kills what is left in the container's pid namespace and control group, so the pod needs `hostPID`, and `cgroup` has to
be a group outside; that also keeps the servers' memory out of the agent's limit. Else the daemon ends with its agent's
container, and so do its clients' CUDA contexts; the next agent's `adopt` is false, and `start` makes a new daemon in
the same directories. `driver.sharing.mps_pod` runs each as a pod instead.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from driver.errors import DriverError, GpuToolError
from driver.sharing.base import client_edits
from driver.sharing.daemon_files import DaemonRoot
from driver.sharing.daemons import Daemons, tag_of
from driver.sharing.mps_client import MpsClient
from driver.sharing.mps_ready import configure_when_ready
from driver.sharing.process import Process

if TYPE_CHECKING:
    from pathlib import Path

    from driver.sharing.base import ClientEdits, MpsSpec
    from driver.sharing.daemon_files import DaemonFiles
    from driver.sharing.tools import Tools

log = logging.getLogger(__name__)

_KILL = 3.0  # seconds for a killed process to go away
_SHM = "/dev/shm"  # noqa: S108


@dataclass(frozen=True, slots=True, kw_only=True)
class MpsOptions:
    """How daemons are run.

    `ready_timeout` is in seconds from start to answer, `quit_timeout` for each of asking one to end, waiting for it,
    and waiting after SIGTERM. `cgroup` is the directory of their control group, if that is not to be the agent's.
    Without `private_shm` they share the host's /dev/shm, with each other and with all that use it: for tests without
    root's rights.
    """

    root: Path
    shm_root: Path
    boot_id: str
    ready_timeout: float = 10.0
    quit_timeout: float = 3.0
    cgroup: Path | None = None
    private_shm: bool = True


class MpsDaemons(Daemons[Process]):
    """Starts, adopts, watches and stops control daemons. What it does to one daemon, it does one after another."""

    def __init__(self, tools: Tools, options: MpsOptions) -> None:
        super().__init__(DaemonRoot(options.root, options.shm_root), tools)
        self._options = options

    def edits(self, daemon_id: str) -> ClientEdits:
        """Return what the containers get, as `MpsControl.edits`."""
        files = self._files.usable(daemon_id)
        return client_edits(str(files.pipe), str(files.shm) if self._options.private_shm else _SHM)

    # --- starting ----------------------------------------------------------------------------------------------------

    async def _launch(self, daemon_id: str, files: DaemonFiles, spec: MpsSpec) -> None:
        client = MpsClient(daemon_id, files, self._tools)
        tool = client.tool()
        files.make()
        argv = tool.argv(
            "-f",
            *(["-multiuser-server"] if spec.multi_user else []),
            identity=str(files.identity),
            tag=tag_of(spec),
            cgroup=str(self._options.cgroup or ""),
            binds=[*client.binds(tool), *([(str(files.shm), _SHM)] if self._options.private_shm else [])],
        )
        env = {**tool.env, **client.env(tool), **files.env(), "CUDA_VISIBLE_DEVICES": ",".join(spec.devices)}
        process = _spawn(client, files, argv, env)
        try:
            await configure_when_ready(client, files, process, spec, self._options.ready_timeout)
        except BaseException:
            process.kill_group()
            await process.wait(_KILL)
            raise
        self._watch(daemon_id, files, process, spec)

    # --- adopting ----------------------------------------------------------------------------------------------------

    async def _adopt(self, daemon_id: str, files: DaemonFiles, spec: MpsSpec) -> bool:
        """Take over the daemon of the identity file, if it is this one and answers."""
        process = self._find(files, tag_of(spec))
        if process is None:
            return False
        return await self._take_over(daemon_id, files, process, spec)

    def _find(self, files: DaemonFiles, tag: str | None = None) -> Process | None:
        """Return the running daemon of the identity file; with `tag`, only if it has these settings."""
        owner = files.owner(self._options.boot_id)
        if owner is None or tag not in (None, owner[1]):
            return None
        try:
            process = Process(owner[0], child=False)
        except ProcessLookupError:
            return None
        if files.owner(self._options.boot_id) == owner:  # still that process, now that it is held
            return process
        process.close()
        return None

    # --- ending ------------------------------------------------------------------------------------------------------

    async def _end(self, daemon_id: str, files: DaemonFiles) -> None:
        """End all processes of a daemon: by asking, by SIGTERM, by SIGKILL."""
        daemon = self._daemons.get(daemon_id)
        if daemon is not None:
            daemon.stopping = True
        process = daemon.life if daemon is not None else self._find(files)
        try:
            if process is not None:
                await self._ask_to_end(daemon_id, files, process)
        finally:
            if daemon is None and process is not None:
                process.close()
        await _kill_all(daemon_id, files)
        if daemon is not None:
            await daemon.life.wait(_KILL)  # so that it is reaped
            self._daemons.pop(daemon_id, None)

    async def _ask_to_end(self, daemon_id: str, files: DaemonFiles, process: Process) -> None:
        with suppress(DriverError):
            client = MpsClient(daemon_id, files, self._tools)
            await process.unless_ended(client.ask("quit", limit=self._options.quit_timeout))
            if await process.wait(self._options.quit_timeout):
                return
        if process.alive:
            log.warning("MPS control daemon %s did not quit, it is sent SIGTERM", daemon_id)
            process.signal(signal.SIGTERM)
            await process.wait(self._options.quit_timeout)

    async def _exists(self, daemon_id: str, files: DaemonFiles) -> bool:
        return files.exist()

    async def _known(self) -> frozenset[str]:
        return self._files.ids()


async def _kill_all(daemon_id: str, files: DaemonFiles) -> None:
    """Kill whatever is left of a daemon: itself, if it did not end, and MPS servers that outlived it."""
    until = asyncio.get_running_loop().time() + _KILL
    while pids := await asyncio.to_thread(files.processes):
        if asyncio.get_running_loop().time() > until:
            raise GpuToolError(f"MPS control daemon {daemon_id}: can't be killed: {', '.join(map(str, pids))}")
        for process in _held(files, pids):
            process.signal(signal.SIGKILL)
            await process.wait(_KILL)
            process.close()


def _held(files: DaemonFiles, pids: list[int]) -> list[Process]:
    """Return those of the processes that are still the daemon's, held so that their numbers can't become another's."""
    held = []
    for pid in pids:
        with suppress(ProcessLookupError):
            held.append(Process(pid, child=False))
    ours = [process for process in held if files.owns(process.pid)]
    for process in held:
        if process not in ours:
            process.close()
    return ours


def _spawn(client: MpsClient, files: DaemonFiles, argv: list[str], env: dict[str, str]) -> Process:
    with ExitStack() as stack:
        try:
            source = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
            stack.callback(os.close, source)
            output = os.open(files.log / "output", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            stack.callback(os.close, output)
            return Process.spawn(argv, env, stdin=source, output=output)
        except OSError as exc:
            raise GpuToolError(f"{client.name}: cannot run {argv[0]}: {exc.strerror}") from exc
