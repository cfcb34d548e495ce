"""What Allocate answers: which devices a container gets, by each way of telling the runtime."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

from driver._pb import device_plugin_v1beta1_pb2 as pb
from driver.config.plugin_flags import LIST_STRATEGIES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from driver.cdi.spec import DeviceNode
    from driver.config.device_plugin import PluginConfig
    from driver.deviceplugin.resources import Offered

_VISIBLE = "NVIDIA_VISIBLE_DEVICES"
_CHANNELS = "NVIDIA_IMEX_CHANNELS"
_VOLUMES = "/var/run/nvidia-container-devices"
_SWITCHES = (("gds", "NVIDIA_GDS"), ("mofed", "NVIDIA_MOFED"), ("gdrcopy", "NVIDIA_GDRCOPY"))
_ANNOTATION = "nvidia-device-plugin_"


def container_answer(
    devices: Sequence[Offered],
    config: PluginConfig,
    *,
    cdi_name: Callable[[str], str],
    nodes: Iterable[DeviceNode] = (),
) -> pb.ContainerAllocateResponse:
    """Return the answer for one container; replicas of one device give it once. `nodes` are passed where so set."""
    flags = config.flags
    distinct = {one.uuid: one for one in devices}
    ids = [one.index if flags.device_id_strategy == "index" else one.uuid for one in distinct.values()]
    answer = pb.ContainerAllocateResponse()
    for strategy in sorted(flags.device_list_strategy, key=LIST_STRATEGIES.index):  # of two for a variable, mounts win
        match strategy:
            case "envvar":
                answer.envs[_VISIBLE] = ",".join(ids)
                if config.imex_channels:
                    answer.envs[_CHANNELS] = ",".join(map(str, config.imex_channels))
            case "volume-mounts":
                _add_mounts(answer, [*ids, *(f"imex/{channel}" for channel in config.imex_channels)])
            case "cdi-annotations":
                key = f"{flags.cdi_annotation_prefix}{_ANNOTATION}{uuid.uuid4()}"
                answer.annotations[key] = ",".join(map(cdi_name, distinct))
            case "cdi-cri":
                answer.cdi_devices.extend(pb.CDIDevice(name=cdi_name(one)) for one in distinct)
    answer.envs.update({variable: "enabled" for flag, variable in _SWITCHES if getattr(flags, flag)})
    for node in nodes:
        path = node.host_path or node.path
        answer.devices.add(container_path=node.path, host_path=path, permissions=node.permissions)
    return answer


def _add_mounts(answer: pb.ContainerAllocateResponse, ids: Iterable[str]) -> None:
    answer.envs[_VISIBLE] = _VOLUMES
    for one in ids:
        answer.mounts.add(container_path=f"{_VOLUMES}/{one}", host_path="/dev/null")
