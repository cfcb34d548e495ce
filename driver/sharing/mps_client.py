"""Talks to one MPS control daemon: by the same program, which finds the daemon by its pipe directory."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from driver.errors import GpuToolError, SettingNotSupportedError
from driver.sharing.base import PIPE_DIRECTORY
from driver.sharing.limits import control_commands

if TYPE_CHECKING:
    from driver.sharing.base import MpsSpec
    from driver.sharing.daemon_files import DaemonFiles
    from driver.sharing.tools import Tool, Tools

PROGRAM = "nvidia-cuda-mps-control"

_LIMIT = 5.0  # seconds for one conversation
_NUMBER = re.compile(r"\d+(?:\.\d+)?", re.ASCII)
_REFUSAL = re.compile(r"error|invalid|fail|unsupported|not supported|unknown|unrecognized|out of range", re.IGNORECASE)
_LOG_DIRECTORY = "/tmp/nvidia-mps-log"  # noqa: S108 - with the driver's root as root directory, on a tmpfs of our own


class MpsClient:
    """Knows one daemon's place, as the daemon and its control program see it."""

    def __init__(self, daemon_id: str, files: DaemonFiles, tools: Tools) -> None:
        self.name = f"MPS control daemon {daemon_id}"
        self._files = files
        self._tools = tools

    def tool(self) -> Tool:
        """Return the control program.

        :raises DeviceNotReadyError: it is not there (yet).
        """
        return self._tools.find(PROGRAM)

    def env(self, tool: Tool) -> dict[str, str]:
        """Return the variables by which daemon and control program meet."""
        pipe, log = (PIPE_DIRECTORY, _LOG_DIRECTORY) if tool.root else (self._files.pipe, self._files.log)
        return {"CUDA_MPS_PIPE_DIRECTORY": str(pipe), "CUDA_MPS_LOG_DIRECTORY": str(log)}

    def binds(self, tool: Tool) -> list[tuple[str, str]]:
        """Return the directories that have to be bound for that; another root directory doesn't have ours."""
        if not tool.root:
            return []
        return [(str(self._files.pipe), PIPE_DIRECTORY), (str(self._files.log), _LOG_DIRECTORY)]

    async def ask(self, *commands: str, limit: float = _LIMIT) -> str:
        """Return what the daemon answers.

        :raises DeviceNotReadyError: the control program is not there (yet).
        :raises GpuToolError: no answer.
        """
        tool = self.tool()
        what = f"{self.name}: {'; '.join(commands)}"
        stdin = "".join(f"{command}\n" for command in commands)
        argv = tool.argv(binds=self.binds(tool))
        output = await self._tools.run(tool, argv, limit=limit, what=what, stdin=stdin, env=self.env(tool))
        if output.status:
            raise GpuToolError(f"{what}: {output.last_line}")
        return output.text

    async def configure(self, spec: MpsSpec, *, limit: float = _LIMIT) -> None:
        """Tell the daemon its limits, and make sure that it took them; that it answers is what makes it ready.

        :raises DeviceNotReadyError: the control program is not there (yet).
        :raises GpuToolError: no answer: not ready yet, or no more.
        :raises SettingNotSupportedError: it refuses a limit.
        """
        question = (*control_commands(spec), "get_default_active_thread_percentage")
        answer = await self.ask(*question, limit=min(limit, _LIMIT))
        refusal = next((line for line in answer.splitlines() if _REFUSAL.search(line)), None)
        if refusal is not None:
            raise SettingNotSupportedError(f"{self.name} refused its limits: {refusal.strip()}")
        numbers = _NUMBER.findall(answer)
        if not numbers:
            raise GpuToolError(f"{self.name} gave no thread percentage but {answer.strip()[:200]!r}")
        wanted = spec.active_thread_percentage
        if wanted is not None and float(numbers[-1]) != wanted:
            raise SettingNotSupportedError(
                f"{self.name} has an active thread percentage of {numbers[-1]} in spite of "
                f"defaultActiveThreadPercentage {wanted}"
            )
