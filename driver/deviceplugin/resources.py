"""Snapshot and config to extended resources: which devices each has, complete and in stable order. Pure.

With the MIG strategy `none`, a GPU in MIG mode is not offered, unlike the peer's: CUDA needs one of its MIG devices,
and a container that is given the GPU alone has none.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from driver.config.device_plugin import NamePattern, resource_name
from driver.errors import InvalidValueError
from driver.model.device import FullGpu, MigDevice
from driver.model.ownership import Owner

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from driver.config.device_plugin import PluginConfig, Replicas
    from driver.model.snapshot import Snapshot

Device = FullGpu | MigDevice

SEPARATOR = "::"
"""Stands between a device's UUID and a replica's number in an id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Offered:
    """One device as the kubelet counts it: a whole one, or a replica. `unhealthy` says why, empty if it is well."""

    id: str
    device: Device
    uuid: str
    index: str  # 0, or 0:1 for a MIG device
    unhealthy: str = ""
    replicas: int = 1  # of the same device

    @property
    def gpu_uuid(self) -> str:
        """The UUID of the GPU that the device is, or is a part of."""
        return self.device.gpu.uuid

    @property
    def numa_node(self) -> int | None:
        """The NUMA node, if there is one."""
        node = self.device.gpu.numa_node
        return node if node is not None and node >= 0 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource:
    """An extended resource. `sharing` is the kind of its replicas; `at_most_one` refuses several in one container."""

    name: str
    devices: tuple[Offered, ...] = ()
    sharing: str = "none"
    at_most_one: bool = False

    @property
    def endpoint(self) -> str:
        """The name of its socket without the suffix."""
        return f"nvidia-{self.name.partition('/')[2]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """All resources of a node by name, and what is left out or wrong, for people."""

    resources: Mapping[str, Resource] = field(default_factory=dict)
    problems: tuple[str, ...] = ()


def offer(snapshot: Snapshot, config: PluginConfig, *, mps: bool = False) -> Offer:
    """Return what the device-plugin API offers on this node. `mps` says whether replicas by MPS can be served."""
    problems: list[str] = []
    plain: dict[str, list[Offered]] = {}
    for device, index in _devices(snapshot, config.flags.mig_strategy, problems):
        try:
            name = name_of(device, config)
        except InvalidValueError as exc:  # it costs that device, not the resource (the peer fails as a whole)
            problems.append(str(exc))
            continue
        plain.setdefault(name, []).append(_whole(device, index, snapshot))
    if config.sharing.kind == "mps" and not mps:
        shared = {one.name for one in config.sharing.resources}
        problems.extend(f"{name} is not offered: sharing.mps can't be served by this agent" for name in sorted(shared))
        return Offer(resources={name: _resource(name, plain[name]) for name in plain if name not in shared},
                     problems=tuple(problems))  # fmt: skip
    return Offer(resources=_shared(plain, config, problems), problems=tuple(problems))


# --- devices ---------------------------------------------------------------------------------------------------------


def _devices(snapshot: Snapshot, strategy: str, problems: list[str]) -> Iterator[tuple[Device, str]]:
    gpus = [gpu for gpu in snapshot.gpus if snapshot.ownership_of(gpu.uuid).offers(Owner.DEVICE_PLUGIN)]
    parted = [gpu for gpu in gpus if gpu.mig is not None and gpu.mig.enabled]
    if strategy == "none":
        problems.extend(
            f"{gpu.name} is not offered: it is in MIG mode, and the MIG strategy is none; use single or mixed"
            for gpu in parted
        )
    elif strategy == "single" and parted:
        wrong = _not_single(snapshot, len(gpus), len(parted))
        if wrong:
            problems.append(f"no GPU is offered: {wrong}; use the MIG strategy mixed, or make all GPUs alike")
            return
    for gpu in gpus:
        if gpu not in parted:
            yield FullGpu(gpu=gpu), str(gpu.index)
        elif strategy != "none" and gpu.mig is not None:
            order = {one.uuid: number for number, one in enumerate(gpu.mig.instances)}
            for one in sorted(gpu.mig.instances, key=lambda one: (one.placement, one.compute_instance_id)):
                yield MigDevice(gpu=gpu, instance=one), f"{gpu.index}:{order[one.uuid]}"


def _not_single(snapshot: Snapshot, gpus: int, parted: int) -> str:
    """Say why the strategy `single` can't be used, or nothing: all devices have to be alike."""
    if parted != gpus:
        return f"the MIG strategy single needs MIG mode on all GPUs, but it is on for {parted} of {gpus}"
    profiles = {
        instance.name
        for gpu in snapshot.gpus
        if snapshot.ownership_of(gpu.uuid).offers(Owner.DEVICE_PLUGIN) and gpu.mig is not None
        for instance in gpu.mig.instances
    }
    if len(profiles) > 1:
        return f"the MIG strategy single needs one profile on all GPUs, but there are {', '.join(sorted(profiles))}"
    return ""


def _whole(device: Device, index: str, snapshot: Snapshot) -> Offered:
    health = snapshot.health_of_device(device)
    uuid = device.gpu.uuid if isinstance(device, FullGpu) else device.instance.uuid
    unhealthy = "" if health.healthy else health.reason or "it is unhealthy"
    return Offered(id=uuid, device=device, uuid=uuid, index=index, unhealthy=unhealthy)


def name_of(device: Device, config: PluginConfig) -> str:
    """Return the resource that a device is offered as, if it is not shared under another name.

    :raises InvalidValueError: what would be its name is none.
    """
    prefix = config.flags.resource_prefix
    if isinstance(device, FullGpu):
        return _matched(config.gpus, device.gpu.product) or f"{prefix}/gpu"
    profile = device.instance.name
    found = _matched(config.mig, profile)
    if found:
        return found
    if config.flags.mig_strategy == "single":
        return f"{prefix}/gpu"
    return resource_name(f"mig-{profile.replace('+', '.')}", f"the resource of {device.name}", prefix)


def _matched(patterns: tuple[NamePattern, ...], word: str) -> str:
    return next((pattern.name for pattern in patterns if pattern.matches(word)), "")


# --- sharing ---------------------------------------------------------------------------------------------------------


def _shared(plain: Mapping[str, list[Offered]], config: PluginConfig, problems: list[str]) -> dict[str, Resource]:
    """Return the resources with replicas in place of the devices that are shared."""
    sharing = config.sharing
    by_name = {one.name: one for one in sharing.resources}
    problems.extend(
        f"{one.path} shares {one.name}, but this node offers no such resource"
        for one in sharing.resources
        if one.name not in plain and plain
    )
    devices: dict[str, list[Offered]] = {}
    for name, whole in plain.items():
        if name not in by_name:
            devices.setdefault(name, []).extend(whole)
            continue
        rule = by_name[name]
        chosen = _chosen(rule, whole, problems)
        if sharing.kind == "mps":
            chosen = _but_mig(chosen, whole, rule, problems)
        for one in whole:
            target = rule.offered_as if one.uuid in chosen else name
            devices.setdefault(target, []).extend(_replicas(one, rule.replicas) if one.uuid in chosen else [one])
    kinds = {one.offered_as for one in sharing.resources}
    return {
        name: _resource(name, found, sharing.kind, sharing.fail_requests_greater_than_one)
        if name in kinds
        else _resource(name, found)
        for name, found in sorted(devices.items())
    }


def _resource(name: str, devices: Iterable[Offered], kind: str = "none", at_most_one: bool = False) -> Resource:
    return Resource(name=name, devices=tuple(devices), sharing=kind, at_most_one=at_most_one)


def _chosen(rule: Replicas, devices: list[Offered], problems: list[str]) -> set[str]:
    """Return the UUIDs of the devices that a rule shares."""
    wanted = rule.devices
    if wanted is None:
        return {one.uuid for one in devices}
    if isinstance(wanted, int):
        if wanted > len(devices):
            problems.append(f"{rule.path}.devices: {wanted} are to be shared, but {rule.name} has {len(devices)}")
        return {one.uuid for one in devices[:wanted]}
    known = {key: one.uuid for one in devices for key in (one.index, one.uuid)}
    missing = [ref for ref in wanted if ref not in known]
    if missing:
        problems.append(f"{rule.path}.devices: {rule.name} has no device {', '.join(missing)}")
    return {known[ref] for ref in wanted if ref in known}


def _but_mig(chosen: set[str], devices: list[Offered], rule: Replicas, problems: list[str]) -> set[str]:
    parts = {one.uuid for one in devices if isinstance(one.device, MigDevice)} & chosen
    if parts:
        problems.append(f"{rule.path}: MIG devices can't be shared by MPS here; {rule.name} has {len(parts)}, unshared")
    return chosen - parts


def _replicas(one: Offered, count: int) -> list[Offered]:
    return [
        Offered(
            id=f"{one.uuid}{SEPARATOR}{number}",
            device=one.device,
            uuid=one.uuid,
            index=one.index,
            unhealthy=one.unhealthy,
            replicas=count,
        )
        for number in range(count)
    ]
