"""Which sharing a process has: of fake GPUs, or by the driver's tools. Loads only what it makes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from driver.settings import Settings
    from driver.sharing.base import ComputeModePolicy, MpsControl, TimeSlicePolicy
    from driver.sharing.fake import FakeState
    from driver.sharing.pods import PodApi
    from driver.sharing.tools import ToolRoot, Tools


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharing:
    """The parts; `mps` is None where the settings switch it off."""

    time_slices: TimeSlicePolicy
    compute_modes: ComputeModePolicy
    mps: MpsControl | None


def make_sharing(settings: Settings, root: ToolRoot, boot_id: str, api: PodApi) -> Sharing:
    """Make what the settings ask for; nothing is run or read yet but the state of fake GPUs. `api` is for pods.

    Fake GPUs have fake sharing, but for tools that a setting names: so tools can be tried without a GPU.
    """
    from driver.sharing.fake import FakeState
    from driver.sharing.mps_client import PROGRAM as MPS_CONTROL
    from driver.sharing.nvidia_smi import PROGRAM as NVIDIA_SMI
    from driver.sharing.tools import Tools

    wanted = {NVIDIA_SMI: settings.nvidia_smi, MPS_CONTROL: settings.mps_control}
    tools = Tools(root, {name: path for name, path in wanted.items() if path is not None})
    fake = FakeState(settings.state / "fake-sharing.json", boot_id) if settings.fake else None
    time_slices, compute_modes = _policies(settings, tools, fake if settings.nvidia_smi is None else None)
    mps = _daemons(settings, tools, boot_id, api, fake if settings.mps_control is None else None)
    return Sharing(time_slices=time_slices, compute_modes=compute_modes, mps=mps)


def _policies(settings: Settings, tools: Tools, fake: FakeState | None) -> tuple[TimeSlicePolicy, ComputeModePolicy]:
    if fake is not None:
        from driver.sharing.fake import FakeComputeModes, FakeTimeSlices

        return FakeTimeSlices(fake), FakeComputeModes(fake)
    from driver.sharing.compute_mode import ComputeModes
    from driver.sharing.nvidia_smi import NvidiaSmi
    from driver.sharing.timeslice import TimeSlices

    run = NvidiaSmi(tools, limit=settings.tool_timeout)
    return TimeSlices(run), ComputeModes(run)


def _daemons(settings: Settings, tools: Tools, boot_id: str, api: PodApi, fake: FakeState | None) -> MpsControl | None:
    if settings.mps == "off":
        return None
    if fake is not None:
        from driver.sharing.fake import FakeMps

        return FakeMps(settings.mps_dir, fake)
    return _pods(settings, tools, api) if settings.mps == "pod" else _children(settings, tools, boot_id)


def _children(settings: Settings, tools: Tools, boot_id: str) -> MpsControl:
    from driver.sharing.mps import MpsDaemons, MpsOptions

    options = MpsOptions(
        root=settings.mps_dir,
        shm_root=settings.mps_shm_dir,
        boot_id=boot_id,
        ready_timeout=settings.mps_ready_timeout,
        cgroup=settings.mps_cgroup,
    )
    return MpsDaemons(tools, options)


def _pods(settings: Settings, tools: Tools, api: PodApi) -> MpsControl:
    from driver.sharing.mps_pod import MpsPods, PodOptions
    from driver.sharing.pods import Pods

    options = PodOptions(
        root=settings.mps_dir,
        shm_root=settings.mps_shm_dir,
        node=settings.node_name,
        driver_root=settings.driver_root,
        host_driver_root=settings.host_driver_root or settings.driver_root,
        image=settings.mps_image,
        pod_uid=settings.pod_uid,
        ready_timeout=settings.mps_ready_timeout,
    )
    return MpsPods(tools, Pods(api, settings.mps_namespace, settings.node_name), api, options)
