"""Which containers and claims hold which GPU or MIG device: the records joined with what the kubelet tells. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from driver.model.device import MigDevice
from driver.model.holder import ClaimedDevice, Holder

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from driver.claims.record import Record, RecordedDevice
    from driver.model.holder import Container
    from driver.model.snapshot import Snapshot

Holders = dict[str, tuple[Holder, ...]]
"""By the UUID of the GPU or MIG device, in stable order."""


def find_holders(records: Iterable[Record], containers: Iterable[Container], snapshot: Snapshot) -> Holders:
    """Join both. A claim that no container uses holds its devices all the same, without a pod."""
    found: dict[str, set[Holder]] = {}
    users = _users(containers)
    for record in records:
        for device in record.devices:
            uuid = uuid_of(record, device, snapshot)
            if uuid:
                found.setdefault(uuid, set()).update(_of_claim(record, device, users))
    for container in containers:
        for uuid in container.plugged:
            found.setdefault(uuid, set()).add(_plugged(container))
    return {uuid: tuple(sorted(holders)) for uuid, holders in sorted(found.items())}


def uuid_of(record: Record, device: RecordedDevice, snapshot: Snapshot) -> str:
    """Return the UUID of what a claim holds: the GPU, or the MIG device; empty while that is not made."""
    holding = device.holding
    if holding.placement is None:
        return holding.gpu_uuid
    made = record.partition(holding.device)
    if made is not None:
        return made.uuid
    known = snapshot.device(holding.device)
    return known.instance.uuid if isinstance(known, MigDevice) and known.gpu.uuid == holding.gpu_uuid else ""


def _users(containers: Iterable[Container]) -> Mapping[ClaimedDevice, list[Container]]:
    found: dict[ClaimedDevice, list[Container]] = {}
    for container in containers:
        for device in container.claimed:
            found.setdefault(device, []).append(container)
    return found


def _of_claim(
    record: Record, device: RecordedDevice, users: Mapping[ClaimedDevice, list[Container]]
) -> Iterator[Holder]:
    claim, holding = record.claim, device.holding
    key = ClaimedDevice(claim.namespace, claim.name, holding.device, holding.share_id)
    for container in users.get(key) or (None,):
        yield Holder(
            namespace=container.namespace if container else "",
            pod=container.pod if container else "",
            container=container.name if container else "",
            claim_namespace=claim.namespace,
            claim=claim.name,
            claim_uid=claim.uid,
            pool=device.pool,
            device=holding.device,
            share_id=holding.share_id or "",
            admin=holding.admin_access,
        )


def _plugged(container: Container) -> Holder:
    return Holder(namespace=container.namespace, pod=container.pod, container=container.name)
