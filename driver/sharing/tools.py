"""The driver's tools, `nvidia-smi` and `nvidia-cuda-mps-control`, run where they belong.

The driver root decides how. `/`: as they are. A whole root file system elsewhere (a driver container's
`/run/nvidia/driver`, the host's root in an agent's container; it has a shell): with it as root directory, since tool,
libraries and loader belong together; that takes root's rights. A mere collection of files (GKE's
`/home/kubernetes/bin/nvidia`): as they are, with its libraries first in `LD_LIBRARY_PATH`.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from driver.errors import DeviceNotReadyError, GpuToolError
from driver.sharing.process import Process, memory_file

if TYPE_CHECKING:
    from collections.abc import Mapping

_LAUNCH = str(Path(__file__).with_name("launch.py"))
_LONGEST_OUTPUT = 64 * 1024
_REAP = 1.0  # seconds for a killed process to go away
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class ToolRoot(Protocol):
    """Where the driver's tools are; `driver.inventory.driver_root.DriverRoot` is one."""

    path: Path

    def binary(self, name: str) -> Path | None:
        """Find a program, as a path of this process."""
        ...

    def library_directory(self) -> Path | None:
        """Find the directory with the driver's libraries, as a path of this process."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A program, and how to run it: with which root directory (or none), and which variables."""

    name: str
    path: str
    root: str
    env: Mapping[str, str]

    def argv(self, *arguments: str, **launch: object) -> list[str]:
        """Return the command line; `launch` are options of `driver.sharing.launch`, if any."""
        options = {name: value for name, value in {"root": self.root, **launch}.items() if value}
        launcher = [sys.executable, "-I", "-S", _LAUNCH, json.dumps(options)] if options else []
        return [*launcher, self.path, *arguments]


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """What a tool said, both streams together, and its exit status (negative: the signal that killed it)."""

    status: int
    text: str

    @property
    def last_line(self) -> str:
        """The last line that is not blank, for messages."""
        lines = [line.strip() for line in self.text.splitlines() if line.strip()]
        return lines[-1][:300] if lines else "no output"


class Tools:
    """Finds and runs tools. `paths` are those that a setting names; they are paths of this process, under the root."""

    def __init__(self, root: ToolRoot, paths: Mapping[str, Path] | None = None) -> None:
        self._root = root
        self._paths = paths or {}
        self._stuck: dict[str, Process] = {}

    def find(self, name: str) -> Tool:
        """Return a tool as it can be run now; the driver may come, go or change at any time (P7).

        :raises DeviceNotReadyError: it is not there (yet).
        """
        path = self._paths.get(name) or self._root.binary(name)
        if path is None or not os.access(path, os.X_OK):
            where = f"at {path}" if path else f"under the driver root {self._root.path}"
            raise DeviceNotReadyError(f"no {name} {where}: install the GPU driver there, or correct the setting")
        root = self._root.path
        if root == Path("/") or not path.is_relative_to(root):
            return Tool(name=name, path=str(path), root="", env={"PATH": _PATH})
        if os.geteuid() == 0 and any(os.path.lexists(root / shell) for shell in ("bin/sh", "usr/bin/sh")):
            return Tool(name=name, path=f"/{path.relative_to(root)}", root=str(root), env={"PATH": _PATH})
        libraries = self._root.library_directory()
        env = {"PATH": f"{path.parent}:{_PATH}"} | ({"LD_LIBRARY_PATH": str(libraries)} if libraries else {})
        return Tool(name=name, path=str(path), root="", env=env)

    async def run(
        self,
        tool: Tool,
        argv: list[str],
        *,
        limit: float,
        what: str,
        stdin: str = "",
        env: Mapping[str, str] | None = None,
    ) -> Output:
        """Run a tool to its end, for at most `limit` seconds; `what` is for messages and names the object.

        :raises GpuToolError: it can't be executed, or had to be killed; or one that could not be killed still runs.
        """
        self._check_stuck(tool.name, what)
        source, output = memory_file(stdin.encode()), memory_file()
        try:
            try:
                process = Process.spawn(argv, {**tool.env, **(env or {})}, stdin=source, output=output)
            except OSError as exc:
                raise GpuToolError(f"{what}: cannot run {tool.name} at {tool.path}: {exc.strerror}") from exc
            await self._finish(process, tool.name, limit, what)
            text = os.pread(output, _LONGEST_OUTPUT, 0).decode(errors="replace")
            return Output(status=process.status or 0, text=text)
        finally:
            os.close(source)
            os.close(output)

    async def _finish(self, process: Process, name: str, limit: float, what: str) -> None:
        try:
            if await process.wait(limit):
                return
        finally:
            process.kill_group()  # too late, or cancelled: it is reaped when it ends
        if not await process.wait(_REAP):
            self._stuck[name] = process
        raise GpuToolError(f"{what}: {name} did not end within {limit:g} s and was killed; is the GPU driver stuck?")

    def _check_stuck(self, name: str, what: str) -> None:
        """Refuse while a killed one hangs in the kernel: another would hang beside it (H8)."""
        process = self._stuck.get(name)
        if process is None:
            return
        if process.alive:
            raise GpuToolError(f"{what}: not tried, as {name} with pid {process.pid} hangs in the GPU driver")
        del self._stuck[name]
