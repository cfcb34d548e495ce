"""The container runtime: CDI resolution as containerd does it, then a process started by our init as runc does it.

It outlives a kubelet's restart, as containerd does. There is no sandbox in the sense of security: containers keep each
other and the host from being changed by accident, not from attack.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import secrets
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

import driver
from driver.localcluster.containers import cdi
from driver.localcluster.containers.errors import CdiError, ContainerError
from driver.localcluster.containers.execution import Execution
from driver.localcluster.containers.oci import ContainerRequest, configuration
from driver.localcluster.containers.output_times import TimeKeeper
from driver.localcluster.containers.process import Container

if TYPE_CHECKING:
    from collections.abc import Sequence

Mode: TypeAlias = Literal["root", "user", "plain"]

_log = logging.getLogger(__name__)

_START_TIMEOUT = 30.0  # seconds for init and hooks
_INIT = "import sys; sys.path.insert(0, sys.argv.pop(1)); from driver.localcluster.containers import init; init."
_SOURCE = str(Path(driver.__file__).parents[1])
_PYTHON = (sys.executable, "-I", "-S", "-c", f"{_INIT}main(sys.argv[1:])", _SOURCE)
_PYTHON_EXEC = (sys.executable, "-I", "-S", "-c", f"{_INIT}enter(sys.argv[1:])", _SOURCE)


class ContainerRuntime:
    """Starts containers and keeps what it knows of them until they are removed.

    `mode` is how containers get a root file system (see `init`); by default the best one that this machine allows.
    """

    def __init__(self, root: Path, *, cdi_dirs: Sequence[Path], mode: Mode | None = None) -> None:
        self.cdi_dirs = tuple(cdi_dirs)
        self.containers: dict[str, Container] = {}
        self._root = root
        self._mode = mode
        self._probe = asyncio.Lock()
        self._times = TimeKeeper()
        self._starting: dict[Path, asyncio.Event] = {}

    async def mode(self) -> Mode:
        """Find out, once, what this machine allows."""
        async with self._probe:
            if self._mode is None:
                self._mode = await self._best_mode()
            return self._mode

    async def start(self, request: ContainerRequest) -> Container:
        """Start a container.

        :raises ContainerError: with the words of containerd or runc.
        """
        started = self._starting[request.log_path] = asyncio.Event()
        try:
            return await self._start(request)
        finally:
            self._starting.pop(request.log_path, None)
            started.set()

    async def writer(self, log_path: Path) -> Container | None:
        """Return the running container that writes a log; one that is being started is waited for."""
        if log_path in self._starting:
            await self._starting[log_path].wait()
        found = (item for item in self.containers.values() if item.running and item.request.log_path == log_path)
        return next(found, None)

    async def _start(self, request: ContainerRequest) -> Container:
        name, mode = secrets.token_hex(8), await self.mode()
        try:
            edits = cdi.read(self.cdi_dirs).inject(request.cdi_devices)
            edits.append({"deviceNodes": [cdi.filled(node) for node in request.devices]})
        except CdiError as exc:
            text = f'failed to generate container "{name}" spec: failed to generate spec: {exc}'
            raise ContainerError(text, reason="CreateContainerError") from exc
        bundle = self._root / name
        (bundle / "fs").mkdir(parents=True)
        config = configuration(request, edits, bundle / "fs" / "root")
        (bundle / "config.json").write_text(json.dumps(config), encoding="utf-8")
        try:
            process = await self._launch(mode, bundle, name, request.log_path)
        except BaseException:
            shutil.rmtree(bundle, ignore_errors=True)
            raise
        container = self.containers[name] = Container(name, request, process, bundle)
        return container

    async def _launch(self, mode: Mode, bundle: Path, name: str, log_path: Path) -> subprocess.Popen[bytes]:
        """Start init and wait until it has become the container's program.

        :raises ContainerError: with init's words.
        """
        reader, writer = os.pipe()
        log_path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with log_path.open("ab") as log:
                self._times.follow(log_path)
                process = subprocess.Popen(  # noqa: ASYNC220, S603 (a spawn takes a millisecond; the program is our own)
                    [*_PYTHON, mode, str(bundle), name, str(writer)],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    pass_fds=[writer],
                    env={},
                    start_new_session=True,
                )
        finally:
            os.close(writer)
        try:
            text = await _read_all(reader, process)
        except BaseException:  # nobody waits for this container any more
            process.kill()
            process.wait()
            raise
        if text:
            process.wait()
            raise ContainerError(text, reason="RunContainerError")
        return process

    async def exec(self, container: Container, command: Sequence[str], timeout: float | None) -> int:  # noqa: ASYNC109
        """Run a command in a running container, output thrown away; return its exit code, -1 if it took too long."""
        process = await asyncio.create_subprocess_exec(
            *await self._entering(container, command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={},
        )
        try:
            async with asyncio.timeout(timeout):
                return await process.wait()
        except TimeoutError:
            return -1
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()

    async def attach(self, container: Container, command: Sequence[str], *, stdin: bool, tty: bool) -> Execution:
        """Run a command in a running container for somebody who looks at it.

        :raises OSError: it can't be started.
        """
        return await Execution.start(await self._entering(container, command), stdin=stdin, tty=tty)

    async def _entering(self, container: Container, command: Sequence[str]) -> list[str]:
        return [*_PYTHON_EXEC, await self.mode(), str(container.pid), str(container.bundle), *command]

    def of_pod(self, pod_uid: str) -> list[Container]:
        """Return the pod's containers, in the order of their start."""
        return [container for container in self.containers.values() if container.request.pod_uid == pod_uid]

    def remove(self, container: Container) -> None:
        """Forget a container that has ended."""
        self.containers.pop(container.id, None)
        shutil.rmtree(container.bundle, ignore_errors=True)

    async def aclose(self) -> None:
        """Kill what still runs and remove everything."""
        await asyncio.gather(*(container.stop(0) for container in self.containers.values() if container.running))
        for container in list(self.containers.values()):
            self.remove(container)
        await self._times.aclose()

    async def works(self, mode: Mode) -> bool:
        """Say whether this machine allows containers of a mode, by starting one."""
        trial = ContainerRuntime(self._root / "probe", cdi_dirs=(), mode=mode)
        try:
            container = await trial.start(_trial(self._root / "probe"))
            return (await container.wait()).code == 0
        except ContainerError as exc:
            _log.debug("containers of mode %s do not work here: %s", mode, exc)
            return False
        finally:
            await trial.aclose()
            shutil.rmtree(self._root / "probe", ignore_errors=True)

    async def _best_mode(self) -> Mode:
        candidates: list[Mode] = ["root", "user"] if os.geteuid() == 0 else ["user"]
        for mode in candidates:
            if await self.works(mode):
                return mode
        _log.warning(
            "neither root nor user namespaces are allowed here: containers see the host's files, and their mounts "
            "only through PATH and LD_LIBRARY_PATH"
        )
        return "plain"


def _trial(root: Path) -> ContainerRequest:
    """Return a container that needs what a mounted `nvidia-smi` does."""
    mount = {"source": "/bin/true", "destination": "/usr/bin/localcluster-probe", "options": ["ro", "bind"]}
    return ContainerRequest(
        pod_uid="", pod_name="probe", namespace="", name="probe", args=("localcluster-probe",), mounts=(mount,),
        log_path=root / "probe.log",
    )  # fmt: skip


async def _read_all(handle: int, process: subprocess.Popen[bytes]) -> str:
    loop, stream = asyncio.get_running_loop(), asyncio.StreamReader()
    transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(stream), os.fdopen(handle, "rb"))
    try:
        async with asyncio.timeout(_START_TIMEOUT):
            return (await stream.read()).decode(errors="replace")
    except TimeoutError:
        process.kill()
        return f"context deadline exceeded: the container did not start within {_START_TIMEOUT:.0f} s"
    finally:
        transport.close()
