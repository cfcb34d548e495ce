"""What `gpu-dra status` shows, as one JSON document: devices, owners, holders, health, use. Pure."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from driver.model.device import MigDevice
from driver.telemetry.sample import Sample

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from driver.model.device import Gpu
    from driver.model.health import Health
    from driver.model.holder import Holder
    from driver.model.json_object import JsonObject
    from driver.model.snapshot import Snapshot
    from driver.model.usage import Usage

VERSION = 1
"""Of the document; fields are only ever added to it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentState:
    """What the agent says about itself. `since` is when claims were prepared, by UID (RFC 3339)."""

    node: str
    version: str
    pid: int
    time: str  # RFC 3339
    missing: Mapping[str, str]
    since: Mapping[str, str]
    problem: str = ""  # why the use can't be seen
    age: float | None = None  # seconds since the use was looked at
    unreadable: Mapping[str, str] = field(default_factory=dict)  # claims whose records can't be read, and what to do


def describe(agent: AgentState, snapshot: Snapshot, sample: Sample | None) -> JsonObject:
    """Return the document."""
    seen = sample or Sample()
    return {
        "version": VERSION,
        "node": agent.node,
        "time": agent.time,
        "agent": {
            "version": agent.version,
            "pid": agent.pid,
            "ready": not agent.missing,
            "missing": dict(agent.missing),
        },
        "driver": {"version": snapshot.versions.driver, "cuda": snapshot.versions.cuda},
        "usage": {"age": None if agent.age is None else round(agent.age, 1), "problem": agent.problem},
        "gpus": [_gpu(gpu, snapshot, seen, agent.since) for gpu in snapshot.gpus],
        "problems": [
            *({"object": one.object, "message": one.message} for one in snapshot.problems),
            *({"object": name, "message": why} for name, why in agent.unreadable.items()),
        ],
    }


def _gpu(gpu: Gpu, snapshot: Snapshot, seen: Sample, since: Mapping[str, str]) -> JsonObject:
    ownership = snapshot.ownership_of(gpu.uuid)
    usage = seen.usage.get(gpu.uuid)
    return {
        "name": gpu.name,
        "index": gpu.index,
        "uuid": gpu.uuid,
        "product": gpu.product,
        "pciBusID": gpu.pci_bus_id or "",
        "owner": str(ownership.owner),
        "wanted": str(ownership.wanted),
        "waitingFor": ownership.waiting_for,
        "health": _health(snapshot.health_of(gpu.uuid)),
        "use": _use(usage.whole if usage is not None else None),
        "holders": _holders(seen.holders.get(gpu.uuid, ()), since),
        "devices": list(_devices(gpu, snapshot, seen, since)),
    }


def _devices(gpu: Gpu, snapshot: Snapshot, seen: Sample, since: Mapping[str, str]) -> Iterator[JsonObject]:
    """Yield the MIG devices; one that was made since the GPUs were read has its UUID only."""
    usage = seen.usage.get(gpu.uuid)
    parts = dict(usage.mig) if usage is not None else {}
    instances = gpu.mig.instances if gpu.mig is not None and gpu.mig.enabled else ()
    for instance in sorted(instances, key=lambda one: (one.placement, one.compute_instance_id)):
        device = MigDevice(gpu=gpu, instance=instance)
        yield {
            "name": device.name,
            "uuid": instance.uuid,
            "profile": instance.name,
            "placement": {"start": instance.placement.start, "size": instance.placement.size},
            "health": _health(snapshot.health_of_device(device)),
            "use": _use(parts.pop(instance.uuid, None)),
            "holders": _holders(seen.holders.get(instance.uuid, ()), since),
        }
    for uuid, part in parts.items():
        yield {
            "name": next((one.device for one in seen.holders.get(uuid, ()) if one.device), uuid),
            "uuid": uuid,
            "health": _health(snapshot.health_of(gpu.uuid)),
            "use": _use(part),
            "holders": _holders(seen.holders.get(uuid, ()), since),
        }


def _health(health: Health) -> JsonObject:
    taints = [{"key": one.key, "value": one.value, "effect": str(one.effect)} for one in health.taints]
    return {"healthy": health.healthy, "reason": health.reason, "taints": taints}


def _use(usage: Usage | None) -> JsonObject:
    if usage is None:
        return {}
    values = {one.name: getattr(usage, one.name) for one in dataclasses.fields(usage)}
    return {_camel(name): _rounded(value) for name, value in values.items() if value is not None}


def _camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(word.title() for word in others)


def _rounded(value: Any) -> Any:
    return round(value, 3) if isinstance(value, float) else value


def _holders(holders: tuple[Holder, ...], since: Mapping[str, str]) -> list[JsonObject]:
    return [_holder(one, since.get(one.claim_uid, "")) for one in holders]


def _holder(holder: Holder, since: str) -> JsonObject:
    found: JsonObject = {"pod": "", "claim": "", "since": since}
    if holder.pod:
        found |= {"pod": f"{holder.namespace}/{holder.pod}", "container": holder.container}
    if holder.claim:
        found |= {
            "claim": f"{holder.claim_namespace}/{holder.claim}",
            "claimUID": holder.claim_uid,
            "device": holder.device,
        }
    more = {"share": holder.share_id, "adminAccess": holder.admin}
    return {**found, **{key: value for key, value in more.items() if value}}
