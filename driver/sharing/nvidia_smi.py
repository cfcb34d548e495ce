"""nvidia-smi: runs it for one GPU and tells from its answer what went wrong.

There is no NVML call for time slices, so there is no way around the tool. Its manual (nvidia-smi(1), RETURN VALUE)
gives status 3 to what a GPU does not support, 4 to a lack of permission, 6 and 15 to a GPU that is not there; but some
settings that a GPU lacks end with "Treating as warning and moving on." and status 0, so the words count too.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from driver.errors import GpuLostError, GpuToolError, PermanentError, SettingNotSupportedError

if TYPE_CHECKING:
    from driver.sharing.tools import Output, Tools

PROGRAM = "nvidia-smi"
_UNSUPPORTED, _NO_PERMISSION = 3, 4
_LOST = (6, 15)  # "a query to find an object was unsuccessful", "the GPU has fallen off the bus"
_NOT_SUPPORTED = re.compile(r"not[ _]?supported|unsupported", re.IGNORECASE)
_FORBIDDEN = re.compile(r"insufficient permissions|do(es)? not have permission", re.IGNORECASE)
_GPU = re.compile(r"GPU-[0-9A-Za-z-]+", re.ASCII)


class NvidiaSmi:
    """Runs nvidia-smi for one GPU, for at most `limit` seconds."""

    def __init__(self, tools: Tools, *, limit: float = 10.0) -> None:
        self._tools = tools
        self._limit = limit

    async def __call__(self, gpu_uuid: str, *arguments: str) -> str:
        """Return what `nvidia-smi ARGUMENTS` says.

        :raises DeviceNotReadyError: there is no nvidia-smi (yet).
        :raises GpuToolError: it failed, or hung and was killed.
        :raises SettingNotSupportedError: it says that the GPU doesn't support this.
        :raises GpuLostError: it says that the GPU is not there any more.
        :raises PermanentError: it lacks permissions.
        """
        if not _GPU.fullmatch(gpu_uuid):
            raise GpuToolError(f"{gpu_uuid!r} is no GPU's UUID: nvidia-smi was not run")
        what = f"GPU {gpu_uuid}: {PROGRAM} {' '.join(arguments)}"
        tool = self._tools.find(PROGRAM)
        output = await self._tools.run(tool, tool.argv(*arguments), limit=self._limit, what=what)
        _check(output, what)
        return output.text


def _check(output: Output, what: str) -> None:
    if output.status == _UNSUPPORTED or _NOT_SUPPORTED.search(output.text):
        said = next((line for line in output.text.splitlines() if _NOT_SUPPORTED.search(line)), output.last_line)
        raise SettingNotSupportedError(f"{what}: this GPU or its driver does not support it: {said.strip()}")
    if output.status == _NO_PERMISSION or _FORBIDDEN.search(output.text):
        raise PermanentError(f"{what}: not permitted, the agent has to run as root on the node: {output.last_line}")
    if output.status in _LOST:
        raise GpuLostError(f"{what}: the GPU is not there any more: {output.last_line}")
    if output.status < 0:
        raise GpuToolError(f"{what}: killed by signal {-output.status}: {output.last_line}")
    if output.status:
        raise GpuToolError(f"{what}: exit status {output.status}: {output.last_line}")
