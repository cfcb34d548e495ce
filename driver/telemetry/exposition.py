"""Prometheus' text of the GPUs' use: a series per device and container that has it. Pure.

The memory and load of a GPU that is cut into MIG devices are told of these alone, as dcgm-exporter does: sums would
count them twice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from driver.model.device import MigDevice
from driver.model.health import HEALTHY
from driver.telemetry.series import SERIES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from driver.model.device import Gpu
    from driver.model.health import Health
    from driver.model.holder import Holder
    from driver.model.mig import MigInstance
    from driver.model.snapshot import Snapshot
    from driver.model.usage import GpuUsage, Usage

_XID = "gpu.nvidia.com/xid"
_NONE: tuple[Holder, ...] = ()


class _Target(NamedTuple):
    """A GPU or MIG device: its use, and a set of labels for each holder."""

    usage: Usage
    labels: tuple[str, ...]
    parts: bool  # tells the series that belong to parts
    whole: bool  # tells the others


def exposition(
    snapshot: Snapshot, usage: Mapping[str, GpuUsage], holders: Mapping[str, tuple[Holder, ...]], hostname: str
) -> str:
    """Return all series; a GPU without a usage has its health only."""
    host = f'Hostname="{escape(hostname)}"'
    targets = [target for gpu in snapshot.gpus for target in _targets(gpu, usage.get(gpu.uuid), holders, host)]
    return "\n".join(
        [*_usage_lines(targets), *_healthy_lines(snapshot, host), *_xid_lines(snapshot, holders, host), ""]
    )


def verdicts(snapshot: Snapshot, hostname: str) -> str:
    """Return the GPUs' health alone, for where nobody wants their use."""
    return "\n".join([*_healthy_lines(snapshot, f'Hostname="{escape(hostname)}"'), ""])


def _usage_lines(targets: Iterable[_Target]) -> Iterator[str]:
    for series in SERIES:
        name, value_of, of_part = series.name, series.value, series.of_part
        head = True
        for target in targets:
            if not (target.parts if of_part else target.whole):
                continue
            value = value_of(target.usage)
            if value is None:
                continue
            if head:
                yield f"# HELP {name} {series.help}"
                yield f"# TYPE {name} {series.kind}"
                head = False
            text = number(value)
            for labels in target.labels:
                yield f"{name}{{{labels}}} {text}"


def _targets(
    gpu: Gpu, usage: GpuUsage | None, holders: Mapping[str, tuple[Holder, ...]], host: str
) -> Iterator[_Target]:
    if usage is None:
        return
    base = _gpu_labels(gpu)
    cut = bool(usage.mig)
    labels = _each_holder(base, "", host, holders.get(gpu.uuid, _NONE))
    yield _Target(usage.whole, labels, parts=not cut, whole=True)
    known = {one.uuid: one for one in gpu.mig.instances} if gpu.mig is not None else {}
    for uuid, part in usage.mig.items():
        middle = _mig_labels(known.get(uuid))
        own = _each_holder(base, middle, f'{host},dra_mig_device_uuid="{escape(uuid)}"', holders.get(uuid, _NONE))
        yield _Target(part, own, parts=True, whole=False)


def _healthy_lines(snapshot: Snapshot, host: str) -> Iterator[str]:
    """Yield each GPU's verdict, and each MIG device's, which may be out of service alone."""
    if snapshot.gpus:
        yield "# HELP gpu_dra_gpu_healthy 1 if the GPU may be used."
        yield "# TYPE gpu_dra_gpu_healthy gauge"
    for gpu in snapshot.gpus:
        healthy = snapshot.health_of(gpu.uuid).healthy
        yield f"gpu_dra_gpu_healthy{{{_gpu_labels(gpu)},{host}}} {healthy:d}"
    if devices := _mig_devices(snapshot):
        yield "# HELP gpu_dra_mig_device_healthy 1 if the MIG device may be used."
        yield "# TYPE gpu_dra_mig_device_healthy gauge"
    for device in devices:
        healthy = snapshot.health_of_device(device).healthy
        yield f"gpu_dra_mig_device_healthy{{{_device_labels(device)},{host}}} {healthy:d}"


def _mig_devices(snapshot: Snapshot) -> list[MigDevice]:
    return [MigDevice(gpu=gpu, instance=one) for gpu in snapshot.gpus if gpu.mig for one in gpu.mig.instances]


def _xid_lines(snapshot: Snapshot, holders: Mapping[str, tuple[Holder, ...]], host: str) -> Iterator[str]:
    """Yield the last XID that counts, as dcgm-exporter does; those of a MIG device's own programs with it."""
    if snapshot.gpus:
        yield "# HELP DCGM_FI_DEV_XID_ERRORS The XID error that the GPU suffers from, 0 if none."
        yield "# TYPE DCGM_FI_DEV_XID_ERRORS gauge"
    for gpu in snapshot.gpus:
        xid = _xid(snapshot.health_of(gpu.uuid)) or "0"
        for labels in _each_holder(_gpu_labels(gpu), "", host, holders.get(gpu.uuid, _NONE)):
            yield f"DCGM_FI_DEV_XID_ERRORS{{{labels}}} {xid}"
    for device in _mig_devices(snapshot) if snapshot.device_health else ():
        if xid := _xid(snapshot.device_health.get(device.name, HEALTHY)):
            for labels in _each_holder(_device_labels(device), "", host, holders.get(device.instance.uuid, _NONE)):
                yield f"DCGM_FI_DEV_XID_ERRORS{{{labels}}} {xid}"


def _xid(health: Health) -> str:
    return next((one.value for one in health.taints if one.key == _XID and one.value.isdigit()), "")


def _gpu_labels(gpu: Gpu) -> str:
    bus = f"0000{gpu.pci_bus_id}".upper() if gpu.pci_bus_id and len(gpu.pci_bus_id) == 12 else gpu.pci_bus_id or ""
    return (
        f'gpu="{gpu.index}",UUID="{escape(gpu.uuid)}",pci_bus_id="{escape(bus)}",'
        f'device="nvidia{gpu.minor if gpu.minor is not None else gpu.index}",modelName="{escape(gpu.product)}"'
    )


def _device_labels(device: MigDevice) -> str:
    uuid = escape(device.instance.uuid)
    return f'{_gpu_labels(device.gpu)},{_mig_labels(device.instance)},dra_mig_device_uuid="{uuid}"'


def _mig_labels(instance: MigInstance | None) -> str:
    if instance is None:  # made since the GPUs were read
        return ""
    return f'GPU_I_PROFILE="{escape(instance.name)}",GPU_I_ID="{instance.gpu_instance_id}"'


def _each_holder(base: str, middle: str, host: str, holders: tuple[Holder, ...]) -> tuple[str, ...]:
    """Return a set of labels per holder, without repetition; one without a pod if there is none."""
    common = ",".join(part for part in (base, middle, host) if part)
    if not holders:
        return (common,)
    return tuple(dict.fromkeys(f"{common}{_holder_labels(holder)}" for holder in holders))


def _holder_labels(holder: Holder) -> str:
    labels = {"container": holder.container, "namespace": holder.namespace, "pod": holder.pod}
    if holder.claim:
        labels |= {
            "dra_claim_name": holder.claim,
            "dra_claim_namespace": holder.claim_namespace,
            "dra_pool_name": holder.pool,
            "dra_device_name": holder.device,
            "dra_share_id": holder.share_id,
        }
    return "".join(f',{name}="{escape(value)}"' for name, value in labels.items() if value)


def escape(text: str) -> str:
    """Write a label's value as Prometheus' text format wants it."""
    if "\\" in text or '"' in text or "\n" in text:
        return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
    return text


def number(value: float) -> str:
    """Write a sample's value."""
    if isinstance(value, bool):
        return "1" if value else "0"
    return str(value) if isinstance(value, int) else repr(round(value, 6))
