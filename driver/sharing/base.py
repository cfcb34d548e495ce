"""How GPUs are shared: what the claims engine asks for, and who does it.

Everything here is an effect that can be tried again: setting what is set, stopping what is stopped and adopting what
was adopted are successes. All calls are bounded in time, errors name the GPU or the daemon and the command.

Two claims never get different settings of one GPU: the plan refuses that before anything here is called.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

DEFAULT_TIME_SLICE: Final = 0
"""The level a GPU has after a reboot: what to restore where the earlier one could not be told."""

TIME_SLICES: Final = ("DEFAULT", "SHORT", "MEDIUM", "LONG")
"""The names that nvidia-smi gives the levels 0 to 3."""

COMPUTE_MODES: Final = ("DEFAULT", "EXCLUSIVE_PROCESS", "PROHIBITED")
"""The compute modes: any number of processes on a GPU, one (such as an MPS server), or none."""


class TimeSlicePolicy(Protocol):
    """The time slice of whole GPUs. A slice is shared by all processes of a GPU; MIG devices have none of their own."""

    async def get(self, gpu_uuid: str) -> int | None:
        """Return the level in force, 0 to 3; None if the driver doesn't say.

        :raises DeviceNotReadyError: there is no nvidia-smi (yet).
        :raises GpuToolError: it failed or hung.
        :raises SettingNotSupportedError: this GPU has no time slice to set (M7).
        """
        ...

    async def set(self, gpu_uuid: str, level: int) -> None:
        """Set the level.

        :raises DeviceNotReadyError: there is no nvidia-smi (yet).
        :raises GpuToolError: it failed or hung: whether the level was set is unknown.
        :raises SettingNotSupportedError: this GPU has no time slice to set (M7).
        """
        ...


class ComputeModePolicy(Protocol):
    """The compute mode of whole GPUs; it also rules their MIG devices."""

    async def get(self, gpu_uuid: str) -> str:
        """Return the mode in force, one of `COMPUTE_MODES` or an older one that a driver knows.

        :raises DeviceNotReadyError: there is no nvidia-smi (yet).
        :raises GpuToolError: it failed or hung.
        :raises SettingNotSupportedError: this GPU has no compute mode.
        """
        ...

    async def set(self, gpu_uuid: str, mode: str) -> None:
        """Set the mode.

        :raises DeviceNotReadyError: there is no nvidia-smi (yet).
        :raises GpuToolError: it failed or hung: whether the mode was set is unknown.
        :raises SettingNotSupportedError: this GPU's mode can't be set.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class MpsSpec:
    """What one control daemon serves. `devices` are UUIDs, in the order in which processes count them.

    `memory_limits` are in bytes by UUID; they and the percentage hold for each client process, not for all together.
    """

    devices: tuple[str, ...]
    active_thread_percentage: int | None = None
    memory_limits: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    multi_user: bool = False

    def encode(self) -> dict[str, Any]:
        """Return a JSON form, in which any two specs differ."""
        return {
            "devices": list(self.devices),
            "activeThreadPercentage": self.active_thread_percentage,
            "memoryLimits": dict(self.memory_limits),
            "multiUser": self.multi_user,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class BindMount:
    """A directory of the host that a container gets."""

    host_path: str
    container_path: str
    options: tuple[str, ...] = ("rw", "nosuid", "nodev", "bind")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientEdits:
    """What a client's container gets: as in CDI, but this package doesn't know CDI."""

    env: Mapping[str, str]
    mounts: tuple[BindMount, ...]


PIPE_DIRECTORY = "/tmp/nvidia-mps"  # noqa: S108 - CUDA's own default, in the container
"""Where a container finds its daemon."""


def client_edits(pipe: str, shm: str) -> ClientEdits:
    """Return what lets a container's CUDA processes reach the daemon with these directories of the host."""
    return ClientEdits(
        env={"CUDA_MPS_PIPE_DIRECTORY": PIPE_DIRECTORY},
        mounts=(
            BindMount(host_path=pipe, container_path=PIPE_DIRECTORY),
            BindMount(host_path=shm, container_path="/dev/shm"),  # noqa: S108
        ),
    )


OnDeath = Callable[[str, str], None]
"""Called on the event loop with a daemon's id and a message for people, once, when it ends without being asked to."""


class MpsControl(Protocol):
    """MPS control daemons by id. An id is a claim's UID, or anything else that is safe as a file name."""

    on_death: OnDeath | None

    async def start(self, daemon_id: str, spec: MpsSpec) -> None:
        """Have a daemon with these limits that answers. One that runs so already stays; any other is replaced.

        Cancelled or failed, it leaves no process behind. Directories may stay, until `stop`: containers may use them.

        :raises DeviceNotReadyError: the driver's tools are not there (yet).
        :raises GpuToolError: the daemon ended, or does not answer in time.
        :raises InvalidValueError: the id is no file name, or too long for a Unix socket's path.
        :raises SettingNotSupportedError: the daemon refuses a limit.
        :raises StorageError: its directories can't be made.
        """
        ...

    async def stop(self, daemon_id: str) -> None:
        """End the daemon, its servers with it, and remove all that it had. An unknown id is success.

        :raises GpuToolError: a process can't be killed.
        :raises StorageError: a directory can't be removed.
        """
        ...

    async def adopt(self, daemon_id: str, spec: MpsSpec) -> bool:
        """Take over a daemon that an earlier agent started. False: there is none with this spec that answers.

        What is false is left as it is: `start` makes it right and keeps the directories, `stop` removes it.
        """
        ...

    def running(self) -> frozenset[str]:
        """Return the ids of the daemons that were started or adopted and live."""
        ...

    async def sweep(self, keep: Callable[[], Awaitable[Collection[str]]]) -> frozenset[str]:
        """Stop every daemon that `keep` does not return, of earlier agents too; return their ids. Errors are logged.

        `keep` is asked after it was seen which daemons there are: so one that another agent starts meanwhile, which is
        recorded before it is started, is no stray.
        """
        ...

    def edits(self, daemon_id: str) -> ClientEdits:
        """Return what the clients' containers need to reach the daemon. For a share add `limits.client_env`.

        :raises InvalidValueError: the id is none with which `start` could work.
        """
        ...

    async def aclose(self) -> None:
        """Stop watching. The daemons live on."""
        ...
