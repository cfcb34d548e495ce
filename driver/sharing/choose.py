"""Which sharing a process has: of fake GPUs, or by the driver's tools. Loads only what it makes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from driver.settings import Settings
    from driver.sharing.base import ComputeModePolicy, MpsControl, TimeSlicePolicy
    from driver.sharing.tools import ToolRoot


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharing:
    """The parts; `mps` is None where the settings switch it off."""

    time_slices: TimeSlicePolicy
    compute_modes: ComputeModePolicy
    mps: MpsControl | None


def make_sharing(settings: Settings, root: ToolRoot, boot_id: str) -> Sharing:
    """Make what the settings ask for; nothing is run or read yet but the state of fake GPUs."""
    if settings.fake:
        return _fake(settings, boot_id)
    from driver.sharing.compute_mode import ComputeModes
    from driver.sharing.mps import MpsDaemons, MpsOptions
    from driver.sharing.mps_client import PROGRAM as MPS_CONTROL
    from driver.sharing.nvidia_smi import PROGRAM as NVIDIA_SMI
    from driver.sharing.nvidia_smi import NvidiaSmi
    from driver.sharing.timeslice import TimeSlices
    from driver.sharing.tools import Tools

    wanted = {NVIDIA_SMI: settings.nvidia_smi, MPS_CONTROL: settings.mps_control}
    tools = Tools(root, {name: path for name, path in wanted.items() if path is not None})
    run = NvidiaSmi(tools, limit=settings.tool_timeout)
    options = MpsOptions(
        root=settings.mps_dir,
        shm_root=settings.mps_shm_dir,
        boot_id=boot_id,
        ready_timeout=settings.mps_ready_timeout,
        cgroup=settings.mps_cgroup,
    )
    mps = MpsDaemons(tools, options) if settings.mps == "child" else None
    return Sharing(time_slices=TimeSlices(run), compute_modes=ComputeModes(run), mps=mps)


def _fake(settings: Settings, boot_id: str) -> Sharing:
    from driver.sharing.fake import FakeComputeModes, FakeMps, FakeState, FakeTimeSlices

    state = FakeState(settings.state / "fake-sharing.json", boot_id)
    mps = FakeMps(settings.mps_dir, state) if settings.mps == "child" else None
    return Sharing(time_slices=FakeTimeSlices(state), compute_modes=FakeComputeModes(state), mps=mps)
